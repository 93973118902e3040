"""CPU of the broker for TLS: the same ready-made batches, in and out, through a plain port and a TLS port.

``python -m benchmarks.tls`` starts one broker with both ports and uses them in turn. Compare the broker's CPU
a message and the ratio within one run; rates depend on the other load of the machine. Batches are made before
the measurement, and the CPU of the generator, which encrypts and decrypts too, is not counted.
"""

from __future__ import annotations

import argparse
import socket
import ssl
import time
from pathlib import Path
from typing import Final

from benchmarks import brokers
from benchmarks.harness import process_cpu_seconds
from benchmarks.load import PONG, Link, _frame, batch_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.support.certificates import Authority

WINDOW: Final = 64
"""Batches that are sent and not receipted."""
ROUNDS: Final = 4


class One(Link):
    """One connection, used by one thread."""

    def __init__(self, address: tuple[str, int], topic: str, context: ssl.SSLContext | None) -> None:
        self._context = context
        super().__init__(address, topic)

    def connect(self, address: tuple[str, int]) -> socket.socket:
        plain = super().connect(address)
        return (
            plain if self._context is None else self._context.wrap_socket(plain, server_hostname="localhost")
        )

    def _count(self, buffer: bytes, kind: int) -> tuple[bytes, int]:
        """The frames of a kind in ``buffer``, and what is left of it."""
        offset, found, limit = 0, 0, len(buffer)
        while limit - offset >= 10:
            total = int.from_bytes(buffer[offset : offset + 4], "big") + 4
            if limit - offset < total:
                break
            if buffer[offset + 9] == kind:
                found += 1
            elif buffer[offset + 9] == pb.BaseCommand.PING:
                self.socket.sendall(PONG)
            elif buffer[offset + 9] == pb.BaseCommand.SEND_ERROR:
                raise RuntimeError(str(pb.BaseCommand.FromString(buffer[offset + 8 : offset + total])))
            offset += total
        return buffer[offset:], found

    def publish(self, topic: str, *, entries: int, messages: int, size: int) -> None:
        producer = pb.BaseCommand(type=pb.BaseCommand.PRODUCER)
        producer.producer.topic, producer.producer.producer_id, producer.producer.request_id = topic, 1, 3
        self.ask(producer, pb.BaseCommand.PRODUCER_SUCCESS)
        entry = batch_entry(messages, size)
        frames = []
        for index in range(entries):
            send = pb.BaseCommand(type=pb.BaseCommand.SEND)
            send.send.producer_id, send.send.sequence_id = 1, index * messages
            send.send.num_messages = messages
            frames.append(_frame(send, entry))
        sent, receipted, buffer = 0, 0, b""
        while receipted < entries:
            while sent < entries and sent - receipted < WINDOW:
                self.socket.sendall(frames[sent])
                sent += 1
            data = self.socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the broker closed the connection")
            buffer, found = self._count(buffer + data, pb.BaseCommand.SEND_RECEIPT)
            receipted += found

    def receive(self, topic: str, *, entries: int, messages: int) -> None:
        subscribe = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        body = subscribe.subscribe
        body.topic, body.subscription, body.subType = (
            topic,
            f"s-{time.time_ns()}",
            pb.CommandSubscribe.Exclusive,
        )
        body.consumer_id, body.request_id = 1, 3
        body.initialPosition = pb.CommandSubscribe.Earliest
        self.ask(subscribe, pb.BaseCommand.SUCCESS)
        flow = pb.BaseCommand(type=pb.BaseCommand.FLOW)
        flow.flow.consumer_id, flow.flow.messagePermits = 1, WINDOW // 2 * messages
        more = _frame(flow)
        self.socket.sendall(more + more)
        left, used, buffer = entries, 0, b""
        while left > 0:
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionError("the broker closed the connection")
            buffer, found = self._count(buffer + data, pb.BaseCommand.MESSAGE)
            left, used = left - found, used + found
            while used >= WINDOW // 2:
                self.socket.sendall(more)
                used -= WINDOW // 2


def measure(folder: Path, *, entries: int, messages: int, size: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of the broker's CPU, by direction and kind of port, a figure a round."""
    authority = Authority(folder)
    found: dict[str, dict[str, list[float]]] = {way: {"plain": [], "TLS": []} for way in ("in", "out")}
    context = ssl.create_default_context(cafile=str(authority.certificate))
    with brokers.geminga(folder, certificate=authority.sign("broker")) as broker:
        for turn in range(ROUNDS + 1):
            for kind in ("plain", "TLS"):
                topic = f"persistent://public/default/{kind}-{turn}"
                address = broker.address if kind == "plain" else (broker.address[0], broker.tls_port)
                for way in ("in", "out"):
                    peer = One(address, topic, None if kind == "plain" else context)
                    before = process_cpu_seconds(broker.pid)
                    if way == "in":
                        peer.publish(topic, entries=entries, messages=messages, size=size)
                    else:
                        peer.receive(topic, entries=entries, messages=messages)
                    used = process_cpu_seconds(broker.pid) - before
                    peer.close()
                    if turn:  # the first round warms up
                        found[way][kind].append(used)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=1_500, help="batches a round")
    parser.add_argument("--messages", type=int, default=1_000, help="messages a batch")
    parser.add_argument("--size", type=int, default=100, help="bytes a message")
    arguments = parser.parse_args()
    with brokers.work_folder() as folder:
        found = measure(folder, entries=arguments.entries, messages=arguments.messages, size=arguments.size)
    count = ROUNDS * arguments.entries * arguments.messages
    both = {kind: sum(found["in"][kind]) + sum(found["out"][kind]) for kind in ("plain", "TLS")}
    for way in ("in", "out"):
        _print(way, sum(found[way]["plain"]), sum(found[way]["TLS"]), count)
    _print("both", both["plain"], both["TLS"], count)


def _print(way: str, plain: float, tls: float, count: int) -> None:
    """Clock ticks are 10 ms: all rounds together say more than each."""
    figures = f"plain {1e6 * plain / count:.4f} us/message  TLS {1e6 * tls / count:.4f} us/message"
    print(f"{way:4}  {figures}  ratio {tls / plain if plain else 0:.2f}")


if __name__ == "__main__":
    main()
