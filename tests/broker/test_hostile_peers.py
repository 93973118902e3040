"""Peers that send arbitrary bytes: the core never fails, and other connections are not affected.

Commands are generated from the schema, with edge values in every field, sane handles in between, broken
entries and flipped bytes. The core runs without sockets; an exception that leaves it is a failure.
"""

import random
import struct
from typing import Any

import pytest

from geminga.wire.checksum import crc32c
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import encoded

NAMES = (
    "t", "persistent://public/default/t", "persistent://public/default/p", "public/default", "s", "",
    "non-persistent://public/default/n", "persistent://public/nowhere/x", "ü", "a" * 300,
    "persistent://public/default/p-partition-0", "..", "persistent://../../x",
)  # fmt: skip
EDGES = {
    "uint64": (0, 1, 2, 3, (1 << 64) - 1, (1 << 63) - 1, 1 << 63),
    "int64": (0, -1, 1, (1 << 63) - 1, -(1 << 63)),
    "uint32": (0, 1, 2, 1000, (1 << 32) - 1),
    "int32": (0, -1, 1, (1 << 31) - 1, -(1 << 31)),
    "string": NAMES,
    "bytes": (b"", b"x", bytes(8), b"\xff" * 20),
    "bool": (False, True),
    "double": (0.0, -1.5),
}
KINDS = {1: "double", 2: "double", 3: "int64", 4: "uint64", 5: "int32", 6: "uint64", 8: "bool", 9: "string",
         12: "bytes", 13: "uint32"}  # fmt: skip
MESSAGE, ENUM = 11, 14


class Hostile:
    """Makes frames that range from sane to absurd."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        bodies = {
            f.message_type.name.lower(): f.name for f in pb.BaseCommand.DESCRIPTOR.fields if f.message_type
        }
        self.commands = [
            (number, bodies[f"command{name.replace('_', '')}".lower()])
            for name, number in pb.BaseCommand.Type.items()
            if f"command{name.replace('_', '')}".lower() in bodies
        ]

    def fill(self, message: Any, share: float, depth: int = 0) -> None:
        for field in message.DESCRIPTOR.fields:
            required, repeated = field.is_required, field.is_repeated
            if not required and self.chance.random() > share:
                continue
            for _ in range(self.chance.choice((0, 1, 2, 5)) if repeated else 1):
                self._fill_field(message, field, repeated, share, depth)

    def _fill_field(self, message: Any, field: Any, repeated: bool, share: float, depth: int) -> None:
        place = getattr(message, field.name)
        if field.type == MESSAGE:
            inner = place.add() if repeated else place
            if depth < 4:
                self.fill(inner, share, depth + 1)
            if not repeated:
                inner.SetInParent()
            return
        if field.type == ENUM:
            value = self.chance.choice(field.enum_type.values).number
        else:
            value = self.chance.choice(EDGES[KINDS[field.type]])
        if repeated:
            place.append(value)
        else:
            setattr(message, field.name, value)

    def command(self) -> bytes:
        number, body = self.chance.choice(self.commands)
        command = pb.BaseCommand(type=number)
        getattr(command, body).SetInParent()
        self.fill(getattr(command, body), self.chance.choice((0.3, 0.8)))
        raw = command.SerializePartialToString()
        return struct.pack(">II", 4 + len(raw), len(raw)) + raw

    def send(self) -> bytes:
        command = pb.BaseCommand(type=pb.BaseCommand.SEND)
        command.send.producer_id, command.send.sequence_id = self.chance.choice((1, 1, 1, 2)), 0
        command.send.num_messages = self.chance.choice((1, 1, 5, 0, -3, (1 << 31) - 1))
        if self.chance.random() < 0.2:
            self.fill(command.send, 0.5)
        raw, entry = command.SerializePartialToString(), self.entry()
        return struct.pack(">II", 4 + len(raw) + len(entry), len(raw)) + raw + entry

    def entry(self) -> bytes:
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        if self.chance.random() < 0.5:
            self.fill(metadata, 0.2)
        head = metadata.SerializePartialToString()
        checked = struct.pack(">I", len(head)) + head + b"payload"
        crc = crc32c(checked) if self.chance.random() < 0.9 else 5
        return b"\x0e\x01" + struct.pack(">I", crc) + checked

    def session(self) -> bytes:
        """A handshake, a producer and a consumer that work, then anything."""
        choose = self.chance.choice
        client = {"client_version": choose(("x", "Pulsar-CPP-v4.2.0"))}
        wanted = {"subscription": f"s{self.chance.randrange(3)}", "subType": self.chance.randrange(4)}
        frames = [
            encoded("connect", protocol_version=choose((0, 6, 19, 21)), **client),
            encoded("producer", topic="t", producer_id=1, request_id=5),
            encoded("subscribe", topic="t", consumer_id=1, request_id=6, **wanted),
            encoded("flow", consumer_id=1, messagePermits=1000),
        ]
        for _ in range(self.chance.randrange(1, 30)):
            frames.append(self.send() if self.chance.random() < 0.3 else self.command())
        data = b"".join(frames)
        if self.chance.random() < 0.2:
            place = self.chance.randrange(len(data))
            data = data[:place] + self.chance.randbytes(1) + data[place + 1 :]
        return data


@pytest.mark.parametrize("seed", range(3))
def test_no_input_of_a_peer_breaks_the_broker(make_harness, seed):
    chance = random.Random(seed)
    hostile, harness = Hostile(chance), make_harness(partitions_max=50)
    harness.auto_poll = False
    for _ in range(300):
        peer = harness.peer(connect=False)
        peer.answers_pings = False
        data = hostile.session()
        place = 0
        while place < len(data):
            size = chance.choice((1, 7, 100, 5000))
            peer.send_bytes(data[place : place + size])
            place += size
            if chance.random() < 0.3:
                harness.broker.poll(harness.now, harness.now_ms)
        harness.broker.poll(harness.now, harness.now_ms)
        harness.now += chance.choice((0.0, 0.5, 20.0))
        harness.broker.tick(harness.now, harness.now_ms)
        if chance.random() < 0.9:
            peer.session.closed(harness.now)
    assert not any(harness.broker.scheduler.failures.values()), harness.broker.scheduler.failures
    harness.auto_poll = True
    assert harness.peer().producer("calm").producer_ready
