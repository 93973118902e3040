"""A load generator that costs little: it sends ready-made frames and counts receipts, or counts messages.

The frames are built with the generated protobuf module alone, before the clock starts, so that what is
measured is the broker. A window of unreceipted frames is kept, as a client's pending queue would, and
permits are given as a client's receive queue would.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence

import crc32c

from benchmarks.harness import Measurement, process_cpu_seconds
from geminga.wire.proto import pulsar_wire_pb2 as pb


def _frame(command: pb.BaseCommand, entry: bytes = b"") -> bytes:
    body = command.SerializeToString()
    return struct.pack(">II", 4 + len(body) + len(entry), len(body)) + body + entry


def _send_command(sequence_id: int, messages: int) -> pb.BaseCommand:
    send = pb.BaseCommand(type=pb.BaseCommand.SEND)
    send.send.producer_id, send.send.sequence_id = 1, sequence_id
    if messages > 1:
        send.send.num_messages = messages
    return send


PONG = _frame(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong()))


def batch_entry(messages: int, size: int) -> bytes:
    """A stored entry: ``messages`` of ``size`` bytes as a batch, or one plain message."""
    payload = (bytes(range(33, 127)) * (size // 94 + 1))[:size]
    return entry_of([payload] * messages)


def entry_of(payloads: Sequence[bytes]) -> bytes:
    """A stored entry: a batch of the payloads, or one plain message."""
    metadata = pb.MessageMetadata(producer_name="load", sequence_id=0, publish_time=int(time.time() * 1000))
    body = payloads[0]
    if len(payloads) > 1:
        metadata.num_messages_in_batch = len(payloads)
        heads = {
            size: pb.SingleMessageMetadata(payload_size=size).SerializeToString()
            for size in {len(each) for each in payloads}
        }
        framed = {size: struct.pack(">I", len(head)) + head for size, head in heads.items()}
        body = b"".join(part for each in payloads for part in (framed[len(each)], each))
        metadata.uncompressed_size = len(body)
    head = metadata.SerializeToString()
    checked = struct.pack(">I", len(head)) + head + body
    return b"\x0e\x01" + struct.pack(">I", crc32c.crc32c(checked)) + checked


class Link:
    """A connection with the few commands of the protocol that look up a topic."""

    def __init__(self, address: tuple[str, int], topic: str) -> None:
        self.socket = self.connect(address)
        self._buffer = bytearray()
        connect = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
        connect.connect.client_version = "geminga-load"
        connect.connect.protocol_version = 20
        self.ask(connect, pb.BaseCommand.CONNECTED)
        lookup = pb.BaseCommand(type=pb.BaseCommand.PARTITIONED_METADATA)
        lookup.partitionMetadata.topic = topic
        lookup.partitionMetadata.request_id = 1
        self.ask(lookup, pb.BaseCommand.PARTITIONED_METADATA_RESPONSE)
        lookup = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
        lookup.lookupTopic.topic = topic
        lookup.lookupTopic.request_id = 2
        lookup.lookupTopic.authoritative = False
        self.ask(lookup, pb.BaseCommand.LOOKUP_RESPONSE)

    def connect(self, address: tuple[str, int]) -> socket.socket:
        """The socket to the broker."""
        connected = socket.create_connection(address, timeout=60)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected

    def _read_frame(self) -> pb.BaseCommand:
        while len(self._buffer) < 4 or len(self._buffer) < 4 + int.from_bytes(self._buffer[:4], "big"):
            data = self.socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._buffer += data
        total = int.from_bytes(self._buffer[:4], "big")
        size = int.from_bytes(self._buffer[4:8], "big")
        command = pb.BaseCommand.FromString(bytes(self._buffer[8 : 8 + size]))
        del self._buffer[: 4 + total]
        return command

    def ask(self, command: pb.BaseCommand, answer: int) -> pb.BaseCommand:
        self.socket.sendall(_frame(command))
        while True:
            got = self._read_frame()
            if got.type == answer:
                return got
            if got.type in (pb.BaseCommand.ERROR, pb.BaseCommand.SEND_ERROR):
                raise RuntimeError(str(got))

    def close(self) -> None:
        self.socket.close()


class Peer(Link):
    """A connection with a producer."""

    def __init__(self, address: tuple[str, int], topic: str) -> None:
        super().__init__(address, topic)
        self._unread = b""
        """Bytes of a receipt that is not complete yet."""
        producer = pb.BaseCommand(type=pb.BaseCommand.PRODUCER)
        producer.producer.topic = topic
        producer.producer.producer_id = 1
        producer.producer.request_id = 3
        self.ask(producer, pb.BaseCommand.PRODUCER_SUCCESS)

    def publish(self, *, entries: int, messages: int, size: int, window: int) -> float:
        """Send ``entries`` entries of ``messages`` messages; return the seconds until the last receipt."""
        return self.publish_these([batch_entry(messages, size)] * entries, messages=messages, window=window)

    def publish_these(self, entries: Sequence[bytes], *, messages: int, window: int = 64) -> float:
        """Send entries of ``messages`` messages each; return the seconds until the last receipt."""
        chunk_entries = max(1, min(256, (1 << 20) // len(entries[0])))
        chunks = []
        for first in range(0, len(entries), chunk_entries):
            frames = []
            for index in range(first, min(len(entries), first + chunk_entries)):
                frames.append(_frame(_send_command(index * messages, messages), entries[index]))
            chunks.append((len(frames), b"".join(frames)))
        permits = threading.Semaphore(0)
        failure: deque[BaseException] = deque()
        reader = threading.Thread(
            target=self._count_receipts, args=(len(entries), permits, failure), daemon=True
        )
        start = time.perf_counter()
        reader.start()
        in_flight = 0
        for count, data in chunks:
            while in_flight + count > window and in_flight > 0:
                permits.acquire()
                in_flight -= 1
                while in_flight and permits.acquire(blocking=False):
                    in_flight -= 1
                if failure:
                    raise failure[0]
            self.socket.sendall(data)
            in_flight += count
        reader.join(timeout=120)
        if failure:
            raise failure[0]
        if reader.is_alive():
            raise TimeoutError("receipts are missing after 120 s")
        return time.perf_counter() - start

    def _count_receipts(
        self, entries: int, permits: threading.Semaphore, failure: deque[BaseException]
    ) -> None:
        left = entries
        try:
            while left:
                _, counted = self._receipts()
                left -= counted
                if counted:
                    permits.release(counted)
        except BaseException as error:
            failure.append(error)
            permits.release(1)

    def _receipts(self) -> tuple[float, int]:
        """Read bytes; return their time (`time.perf_counter`) and the number of receipts that they complete.

        Only the type of each frame is read: parsing frames would measure this process.
        """
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the broker closed the connection with receipts missing")
        now = time.perf_counter()
        buffer = self._unread + data if self._unread else data
        offset, limit, count = 0, len(buffer), 0
        while limit - offset >= 10:
            total = int.from_bytes(buffer[offset : offset + 4], "big") + 4
            if limit - offset < total:
                break
            kind = buffer[offset + 9]
            if kind == pb.BaseCommand.SEND_RECEIPT:
                count += 1
            elif kind == pb.BaseCommand.PING:
                self.socket.sendall(PONG)
            elif kind == pb.BaseCommand.SEND_ERROR:
                raise RuntimeError(str(pb.BaseCommand.FromString(buffer[offset + 8 : offset + total])))
            offset += total
        self._unread = buffer[offset:]
        return now, count


class Stream(Peer):
    """A peer that publishes until it is closed, and counts its receipts.

    It publishes as fast as ``window`` entries without receipts allow; or, with ``rate``, that number of
    entries a second at fixed times, even if earlier ones have no receipt yet: latencies count from the fixed
    times.
    """

    def __init__(
        self, address: tuple[str, int], topic: str, *, messages: int, size: int = 100, window: int = 64,
        rate: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(address, topic)
        self.received = 0
        """Entries with a receipt."""
        self.times: list[tuple[float, float]] = []
        """With a fixed rate: the time of each receipt (`time.perf_counter`), and its latency in seconds."""
        self._due: deque[float] = deque()
        self._window, self._rate = window, rate
        self._permits = threading.Semaphore(0)
        self._failure: deque[BaseException] = deque()
        self._stopped = threading.Event()
        self._frame = _frame(_send_command(0, messages), batch_entry(messages, size))
        target = self._send_evenly if rate else self._send
        self._threads = [threading.Thread(target=each, daemon=True) for each in (target, self._receive)]
        for each in self._threads:
            each.start()

    def _send(self) -> None:
        count = max(1, min(self._window // 4, (1 << 20) // len(self._frame)))
        data, in_flight = self._frame * count, 0
        try:
            while not self._stopped.is_set():
                while in_flight + count > self._window:
                    self._permits.acquire()
                    in_flight -= 1
                    while in_flight and self._permits.acquire(blocking=False):
                        in_flight -= 1
                self.socket.sendall(data)
                in_flight += count
        except OSError as error:
            self._failed(error)

    def _send_evenly(self) -> None:
        due = time.perf_counter()
        try:
            while not self._stopped.is_set():
                wait = due - time.perf_counter()
                if wait > 0:
                    time.sleep(wait)
                self._due.append(due)
                self.socket.sendall(self._frame)
                due += 1 / self._rate
        except OSError as error:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        if not self._stopped.is_set():
            self._failure.append(error)

    def _receive(self) -> None:
        try:
            while not self._stopped.is_set():
                now, count = self._receipts()
                self.received += count
                if self._rate:
                    self.times += [(now, now - self._due.popleft()) for _ in range(count)]
                else:
                    self._permits.release(count)
        except (OSError, RuntimeError) as error:
            self._failed(error)
            self._permits.release(self._window)

    def check(self) -> None:
        """Raise the error of a thread, if there is one."""
        if self._failure:
            raise self._failure[0]

    def close(self) -> None:
        self._stopped.set()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self._permits.release(self._window)
        for each in self._threads:
            each.join(10)
        super().close()


class Receiver(Link):
    """A connection with an Exclusive consumer from the beginning; it gives permits as it receives."""

    def __init__(self, address: tuple[str, int], topic: str, subscription: str) -> None:
        super().__init__(address, topic)
        subscribe = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        body = subscribe.subscribe
        body.topic, body.subscription, body.subType = topic, subscription, pb.CommandSubscribe.Exclusive
        body.consumer_id, body.request_id = 1, 3
        body.initialPosition = pb.CommandSubscribe.Earliest
        self.ask(subscribe, pb.BaseCommand.SUCCESS)

    def receive(self, *, entries: int, messages: int, permits: int) -> float:
        """Receive ``entries`` entries of ``messages`` messages; return the seconds it took."""

        def flow(count: int) -> bytes:
            command = pb.BaseCommand(type=pb.BaseCommand.FLOW)
            command.flow.consumer_id, command.flow.messagePermits = 1, count
            return _frame(command)

        more = flow(permits // 2)
        buffer, left, used = bytes(self._buffer), entries, 0
        start = time.perf_counter()
        self.socket.sendall(flow(permits))
        while left > 0:
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionError(f"the broker closed the connection with {left} entries missing")
            buffer = buffer + data if buffer else data
            offset, limit = 0, len(buffer)
            while limit - offset >= 10:
                total = int.from_bytes(buffer[offset : offset + 4], "big") + 4
                if limit - offset < total:
                    break
                kind = buffer[offset + 9]
                if kind == pb.BaseCommand.MESSAGE:
                    left -= 1
                    used += messages
                elif kind == pb.BaseCommand.PING:
                    self.socket.sendall(PONG)
                offset += total
            buffer = buffer[offset:]
            while used >= permits // 2:
                self.socket.sendall(more)
                used -= permits // 2
        return time.perf_counter() - start


def measure_delivery(
    work: str, who: str, address: tuple[str, int], pid: int, topic: str, *,
    entries: int, messages: int, permits: int,
) -> Measurement:  # fmt: skip
    """One consumer receives what was published; the broker's rate and CPU."""
    receiver = Receiver(address, topic, f"s-{time.time_ns()}")
    try:
        cpu = process_cpu_seconds(pid)
        seconds = receiver.receive(entries=entries, messages=messages, permits=permits)
        cpu = process_cpu_seconds(pid) - cpu
    finally:
        receiver.close()
    return Measurement(work=work, who=who, messages=entries * messages, seconds=seconds, cpu_seconds=cpu)


def measure(
    work: str, who: str, address: tuple[str, int], pid: int, topic: str, *,
    entries: int, messages: int, size: int = 100, window: int, note: str = "",
) -> Measurement:  # fmt: skip
    """Publish and measure the broker's rate and CPU."""
    peer = Peer(address, topic)
    try:
        cpu = process_cpu_seconds(pid)
        seconds = peer.publish(entries=entries, messages=messages, size=size, window=window)
        cpu = process_cpu_seconds(pid) - cpu
    finally:
        peer.close()
    return Measurement(
        work=work, who=who, messages=entries * messages, seconds=seconds, cpu_seconds=cpu, note=note
    )
