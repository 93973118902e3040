"""Peers that send anything: whatever happens to them, nobody else notices and nothing breaks."""

from __future__ import annotations

import random
from typing import Any

import pytest

from geminga.wire.frames import encode_command, encode_send
from geminga.wire.proto import pulsar_wire_pb2 as pb

TOPIC = "persistent://public/default/t"
Command = pb.BaseCommand
NUMBERS = {
    "u32": [0, 1, 2, 1000, (1 << 31) - 1, (1 << 32) - 1],
    "u64": [0, 1, 2, 1000, (1 << 31), (1 << 63) - 1, 1 << 63, (1 << 64) - 1],
    "i32": [0, 1, -1, 1000, -(1 << 31), (1 << 31) - 1],
    "i64": [0, 1, -1, 1000, -(1 << 63), (1 << 63) - 1],
}
KINDS = {3: "i64", 4: "u64", 5: "i32", 13: "u32"}  # field types of protobuf's descriptors
TEXTS = [
    "", TOPIC, f"{TOPIC}-partition-0", "non-persistent://public/default/n", "s", "s2", "a\x00b", "x" * 3000,
    "public/default", ".*", "(", "../..", "persistent://public/default/\u2028", "\U0001f600", "none",
]  # fmt: skip
SMALL_IDS = ("producer_id", "consumer_id", "request_id", "watcher_id", "ledgerId", "entryId")


class Hostile:
    """Makes commands with random bodies."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def command(self) -> bytes:
        choice = self.random.random()
        if choice < 0.15:
            return self._send()
        field = self.random.choice([f for f in Command.DESCRIPTOR.fields if f.name != "type"])
        if choice < 0.75:
            field = Command.DESCRIPTOR.fields_by_name[
                self.random.choice(
                    ["producer", "subscribe", "flow", "ack", "seek", "unsubscribe", "close_consumer",
                     "close_producer", "redeliverUnacknowledgedMessages", "getLastMessageId",
                     "getOrCreateSchema", "partitionMetadata", "watchTopicList", "getTopicsOfNamespace"]
                )
            ]  # fmt: skip
        command = Command(type=field.number)  # type: ignore[arg-type]
        body = getattr(command, field.name)
        body.SetInParent()
        self._fill(body, 0)
        return encode_command(command)

    def _send(self) -> bytes:
        source = self.random
        metadata = pb.MessageMetadata()
        self._fill(metadata, 0)
        data = metadata.SerializeToString()
        entry = len(data).to_bytes(4, "big") + data + source.randbytes(source.randrange(20))
        if source.random() < 0.2:
            entry = source.randbytes(source.randrange(30))
        return (
            encode_send(
                source.choice([0, 1, 2]), source.choice(NUMBERS["u64"]), source.choice([1, 1, 1, 3, 0]),
                source.choice([None, None, 0, 5, (1 << 64) - 1]), len(entry), is_chunk=source.random() < 0.2,
            )
            + entry
        )  # fmt: skip

    def _fill(self, body: Any, depth: int) -> None:
        for field in body.DESCRIPTOR.fields:
            if not field.is_required and self.random.random() < 0.4:
                continue
            if field.is_repeated:
                for _ in range(self.random.randrange(4)):
                    self._add(body, field, depth)
            elif field.message_type is not None:
                getattr(body, field.name).SetInParent()
                self._fill(getattr(body, field.name), depth + 1)
            else:
                setattr(body, field.name, self._value(field))

    def _add(self, body: Any, field: Any, depth: int) -> None:
        target = getattr(body, field.name)
        if field.message_type is not None:
            self._fill(target.add(), depth + 1)
        else:
            target.append(self._value(field))

    def _value(self, field: Any) -> Any:
        source = self.random
        if field.name in SMALL_IDS and source.random() < 0.7:
            return source.choice([0, 1, 2])
        if field.enum_type is not None:
            return source.choice(field.enum_type.values).number
        if field.type in KINDS:
            return source.choice(NUMBERS[KINDS[field.type]])
        if field.type == field.TYPE_STRING:
            return TOPIC if field.name == "topic" and source.random() < 0.6 else source.choice(TEXTS)
        if field.type == field.TYPE_BYTES:
            return source.choice([b"", b"x", b"{}", b"\xff" * 8, b"\x00" * 8, source.randbytes(20)])
        if field.type == field.TYPE_BOOL:
            return source.random() < 0.5
        return source.choice([0.0, 1.5, float("inf")])


@pytest.mark.parametrize("seed", range(12))
def test_random_commands_harm_nobody_else(make_harness: Any, seed: int) -> None:
    harness = make_harness(deduplication=seed % 2 == 1)
    hostile = Hostile(seed)
    bystander = harness.peer()
    own = "persistent://public/default/own"
    bystander.producer(own, producer_name="bystander")
    bystander.subscribe(own)
    peers: list[Any] = []
    for step in range(1500):
        peers = [peer for peer in peers if not peer.is_closed]
        if len(peers) < 3:
            peers.append(harness.peer())
        peer = hostile.random.choice(peers)
        peer.send_bytes(hostile.command())
        peer.frames.clear()
        if step % 50 == 0:
            harness.advance(hostile.random.choice([0.0, 0.3, 6.0]))
        if step % 100 == 0:
            bystander.send(step)
            [receipt] = bystander.receipts()
            [message] = bystander.messages()
            assert (receipt.ledger_id, receipt.entry_id) == (message.ledger_id, message.entry_id)
            bystander.ack((message.ledger_id, message.entry_id), request_id=step)
            assert bystander.pop().command.ackResponse.request_id == step
    harness.restart()
    for text in harness.broker.topics.list("public/default", "persistent"):
        harness.peer().subscribe(text, "after", kind="Shared")


@pytest.mark.parametrize("seed", range(10))
def test_random_bytes_end_their_own_connection(harness: Any, seed: int) -> None:
    source = random.Random(seed)
    bystander = harness.peer()
    bystander.producer(TOPIC)
    for step in range(200):
        peer = harness.peer(connect=source.random() < 0.5)
        good = bytearray(Hostile(step).command())
        for _ in range(source.randrange(1, 4)):
            good[source.randrange(len(good))] = source.randrange(256)
        peer.send_bytes(bytes(good) if source.random() < 0.7 else source.randbytes(40))
        peer.disconnect()
    bystander.send(0)
    assert len(bystander.receipts()) == 1
    assert len(harness.broker.sessions) == 1
