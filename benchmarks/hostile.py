"""Waits of a calm peer for a PONG while others attack, and the broker's memory.

Each attack is bytes that are made beforehand and sent, by a process of its own, over connections that are
never read from. The calm peer sends a PING every 5 ms.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import struct
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.harness import OURS, Figure, emit, resident_megabytes
from geminga.wire.frames import encode_command
from geminga.wire.proto import pulsar_wire_pb2 as pb

Command = pb.BaseCommand
Address = tuple[str, int]
TOPIC = "persistent://public/default/"
PING = encode_command(Command(type=Command.PING, ping=pb.CommandPing()))
HALF_FRAME_BYTES = 4 * 1024 * 1024


def command(kind: int, body: str, **fields: object) -> bytes:
    """A frame of ``kind`` whose ``body`` has the fields."""
    made = Command(type=kind)  # type: ignore[arg-type]
    place = getattr(made, body)
    place.SetInParent()
    for name, value in fields.items():
        setattr(place, name, value)
    return encode_command(made)


CONNECT = command(Command.CONNECT, "connect", client_version="hostile", protocol_version=19)


def pings() -> bytes:
    return PING * 20_000


def topic_lists() -> bytes:
    return b"".join(
        command(
            Command.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", request_id=n, namespace="public/default"
        )
        for n in range(2_000)
    )


def metadata_requests() -> bytes:
    return b"".join(
        command(Command.PARTITIONED_METADATA, "partitionMetadata", request_id=n, topic=f"{TOPIC}none-{n}")
        for n in range(5_000)
    )


def producers() -> bytes:
    return b"".join(
        command(Command.PRODUCER, "producer", request_id=n, producer_id=n, topic=f"{TOPIC}p{n % 5_000}")
        for n in range(100_000)
    )


def subscribers() -> bytes:
    return b"".join(
        command(
            Command.SUBSCRIBE, "subscribe", request_id=n, consumer_id=n, topic=f"{TOPIC}s{n % 5_000}",
            subscription="s", subType=1,
        )
        for n in range(100_000)
    )  # fmt: skip


def half_frames() -> bytes:
    return struct.pack(">I", 5 * 1024 * 1024) + bytes(HALF_FRAME_BYTES)


@dataclass(frozen=True, slots=True)
class Attack:
    """``data`` is sent over and over (or once) by ``connections`` peers; ``connects``: after a handshake."""

    data: Callable[[], bytes]
    connections: int
    connects: bool = True
    once: bool = False
    topics: int = 0


ATTACKS = {
    "pings that nobody reads": Attack(pings, 50),
    "lists of 20,000 topics": Attack(topic_lists, 20, topics=20_000),
    "metadata requests": Attack(metadata_requests, 5),
    "100,000 producers": Attack(producers, 2),
    "100,000 subscribers": Attack(subscribers, 2),
    "half frames before CONNECT": Attack(half_frames, 200, connects=False, once=True),
    "half frames": Attack(half_frames, 200, once=True),
}


def _connected(address: Address, *, connects: bool = True) -> socket.socket:
    peer = socket.create_connection(address, timeout=10)
    if connects:
        peer.sendall(CONNECT)
        peer.recv(4096)
    return peer


def _send_all(address: Address, attack: Attack, sending: object) -> None:
    """Sends on all connections in turn for as long as the process lives."""
    data = memoryview(attack.data())
    peers = [[_connected(address, connects=attack.connects), 0] for _ in range(attack.connections)]
    for peer, _ in peers:
        peer.setblocking(False)  # type: ignore[attr-defined]
    sending.set()  # type: ignore[attr-defined]
    while True:
        moved = False
        for entry in peers:
            peer, place = entry
            if attack.once and place == len(data):
                continue
            try:
                sent = peer.send(data[place:])  # type: ignore[attr-defined, index]
            except BlockingIOError:
                continue
            except OSError:
                entry[0] = _connected(address, connects=attack.connects)
                entry[0].setblocking(False)
                entry[1] = 0
                continue
            moved = True
            entry[1] = place + sent if attack.once else (place + sent) % len(data)  # type: ignore[operator]
        if not moved:
            time.sleep(0.002)


@contextmanager
def attacking(address: Address, attack: Attack) -> Iterator[None]:
    """Attack inside the ``with``."""
    context = multiprocessing.get_context("spawn")
    sending = context.Event()
    process = context.Process(target=_send_all, args=(address, attack, sending), daemon=True)
    process.start()
    try:
        sending.wait(30)
        time.sleep(0.3)
        yield
    finally:
        process.kill()
        process.join()


def make_topics(admin_url: str, count: int) -> None:
    """Partitions, as that is the quickest way to many topics."""
    for number in range(-(-count // 10_000)):
        request = urllib.request.Request(
            f"{admin_url}/admin/v2/persistent/public/default/many{number}/partitions",
            method="PUT", data=json.dumps(min(count, 10_000)).encode(),
            headers={"Content-Type": "application/json"},
        )  # fmt: skip
        urllib.request.urlopen(request, timeout=60).close()


def answer_seconds(address: Address, seconds: float) -> list[float]:
    """Return the calm peer's waits for a PONG, the shortest first."""
    waits = []
    with _connected(address) as calm:
        calm.settimeout(60)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            began = time.perf_counter()
            calm.sendall(PING)
            calm.recv(64)
            waits.append(time.perf_counter() - began)
            time.sleep(0.005)
    return sorted(waits)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--admin-url", required=True)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--attack", choices=tuple(ATTACKS), required=True)
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    attack, address = ATTACKS[given.attack], (given.host, given.port)
    if attack.topics:
        make_topics(given.admin_url, attack.topics)
    with attacking(address, attack):
        waits = answer_seconds(address, given.seconds)
        work = f"under attack: {given.attack}"
        emit(
            Figure(
                work=f"{work}: PONG, 99 of 100 within",
                who=OURS,
                value=waits[len(waits) * 99 // 100] * 1e3,
                unit="ms",
            ),
            Figure(work=f"{work}: PONG, the longest", who=OURS, value=waits[-1] * 1e3, unit="ms"),
            Figure(work=f"{work}: resident", who=OURS, value=resident_megabytes(given.pid), unit="MB"),
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
