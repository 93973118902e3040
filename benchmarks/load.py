"""A load generator that costs little: it sends ready-made frames and counts receipts, or counts messages.

The frames are built with the generated protobuf module alone, before the clock starts, so that what is
measured is the broker. A window of unreceipted frames is kept, as a client's pending queue would, and
permits are given as a client's receive queue would.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import deque

import crc32c

from benchmarks.harness import Measurement, process_cpu_seconds
from geminga.wire.proto import pulsar_wire_pb2 as pb


def _frame(command: pb.BaseCommand, entry: bytes = b"") -> bytes:
    body = command.SerializeToString()
    return struct.pack(">II", 4 + len(body) + len(entry), len(body)) + body + entry


PONG = _frame(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong()))


def batch_entry(messages: int, size: int) -> bytes:
    """A stored entry: ``messages`` of ``size`` bytes as a batch, or one plain message."""
    metadata = pb.MessageMetadata(producer_name="load", sequence_id=0, publish_time=int(time.time() * 1000))
    payload = bytes(range(33, 127)) * (size // 94 + 1)
    body = payload[:size]
    if messages > 1:
        metadata.num_messages_in_batch = messages
        single = pb.SingleMessageMetadata(payload_size=size).SerializeToString()
        body = (struct.pack(">I", len(single)) + single + payload[:size]) * messages
        metadata.uncompressed_size = len(body)
    head = metadata.SerializeToString()
    checked = struct.pack(">I", len(head)) + head + body
    return b"\x0e\x01" + struct.pack(">I", crc32c.crc32c(checked)) + checked


class Link:
    """A plain connection that speaks just enough of the protocol to find a topic."""

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
    """One that publishes."""

    def __init__(self, address: tuple[str, int], topic: str) -> None:
        super().__init__(address, topic)
        producer = pb.BaseCommand(type=pb.BaseCommand.PRODUCER)
        producer.producer.topic = topic
        producer.producer.producer_id = 1
        producer.producer.request_id = 3
        self.ask(producer, pb.BaseCommand.PRODUCER_SUCCESS)

    def publish(self, *, entries: int, messages: int, size: int, window: int) -> float:
        """Send ``entries`` entries of ``messages`` messages; seconds until the last receipt."""
        entry = batch_entry(messages, size)
        chunk_entries = max(1, min(256, (1 << 20) // len(entry)))
        chunks = []
        for first in range(0, entries, chunk_entries):
            frames = []
            for index in range(first, min(entries, first + chunk_entries)):
                send = pb.BaseCommand(type=pb.BaseCommand.SEND)
                send.send.producer_id = 1
                send.send.sequence_id = index * messages
                if messages > 1:
                    send.send.num_messages = messages
                frames.append(_frame(send, entry))
            chunks.append((len(frames), b"".join(frames)))
        permits = threading.Semaphore(0)
        failure: deque[BaseException] = deque()
        reader = threading.Thread(target=self._count_receipts, args=(entries, permits, failure), daemon=True)
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
        """Every receipt is looked at by its type only: parsing them would measure this process."""
        buffer = b""
        left = entries
        try:
            while left:
                data = self.socket.recv(1 << 18)
                if not data:
                    raise ConnectionError(f"the broker closed the connection with {left} receipts missing")
                buffer = buffer + data if buffer else data
                offset, counted = 0, 0
                limit = len(buffer)
                while limit - offset >= 10:
                    total = int.from_bytes(buffer[offset : offset + 4], "big") + 4
                    if limit - offset < total:
                        break
                    kind = buffer[offset + 9]
                    if kind == pb.BaseCommand.SEND_RECEIPT:
                        counted += 1
                    elif kind == pb.BaseCommand.PING:
                        self.socket.sendall(PONG)
                    elif kind == pb.BaseCommand.SEND_ERROR:
                        raise RuntimeError(
                            str(pb.BaseCommand.FromString(buffer[offset + 8 : offset + total]))
                        )
                    offset += total
                buffer = buffer[offset:]
                left -= counted
                if counted:
                    permits.release(counted)
        except BaseException as error:
            failure.append(error)
            permits.release(1)


class Receiver(Link):
    """One that subscribes from the beginning, alone, and gives permits as fast as it receives."""

    def __init__(self, address: tuple[str, int], topic: str, subscription: str) -> None:
        super().__init__(address, topic)
        subscribe = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        body = subscribe.subscribe
        body.topic, body.subscription, body.subType = topic, subscription, pb.CommandSubscribe.Exclusive
        body.consumer_id, body.request_id = 1, 3
        body.initialPosition = pb.CommandSubscribe.Earliest
        self.ask(subscribe, pb.BaseCommand.SUCCESS)

    def receive(self, *, entries: int, messages: int, permits: int) -> float:
        """Take so many entries of ``messages`` messages; seconds from the first permits to the last one."""

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
