"""Runs of messages and acknowledgements one by one, while the process dies or the disk is full.

What was receipted is there afterwards. An acknowledgement that was answered holds, and nothing else is taken
for acknowledged: every other message is delivered, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from geminga.ids import TopicName
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from geminga.testing.faulty_filesystem import Fate, FaultyFileSystem, Plan, PowerLoss, SimulatedDisk
from geminga.wire.frames import encode_command, encode_send
from geminga.wire.metadata import parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import Harness, entry_bytes

KINDS = ("Exclusive", "Failover", "Shared", "Key_Shared")
NAME = TopicName.parse("t")
LIVES = 4
SETTINGS = StoreSettings(
    log_file_bytes=16_384, preallocate_bytes=1024, cache_bytes=2_000, checkpoint_records=60,
    checkpoint_state_bytes=20_000, rewrite_live_fraction=0.6, garbage_bytes_min=1, deletion_delay_seconds=0.0,
)  # fmt: skip


class Clients:
    """A producer, and a subscription of each kind: what they did, and what was confirmed of it."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.number = 0
        self.receipted: set[int] = set()
        self.sure: dict[str, set[int]] = {kind: set() for kind in KINDS}
        """Acknowledged, and that was answered."""
        self.asked: dict[str, set[int]] = {kind: set() for kind in KINDS}

    def live(self, harness: Harness, disk: SimulatedDisk) -> None:
        """Until the end of this life."""
        random = self.random
        producer = harness.peer()
        producer.producer("t")
        peers = {kind: harness.peer() for kind in KINDS}
        for kind, peer in peers.items():
            peer.subscribe("t", kind, kind=kind, permits=10_000)
        held: dict[str, dict[int, tuple[int, int]]] = {kind: {} for kind in KINDS}
        questions: dict[int, tuple[str, int]] = {}
        harness.auto_poll = False
        for _ in range(random.randrange(20, 80)):
            kind, chance = random.choice(KINDS), random.random()
            if chance < 0.3:
                producer.send_bytes(b"".join(self._sends(random.choice((1, 3, 40)))))
            elif chance < 0.35:
                disk.capacity_bytes = random.choice((disk.used_bytes + 200, 1 << 40))
            elif held[kind]:
                chosen = random.sample(sorted(held[kind]), min(len(held[kind]), random.choice((1, 1, 20))))
                acks = [
                    self._ack(held[kind].pop(number), len(questions) + at) for at, number in enumerate(chosen)
                ]
                questions |= {len(questions) + at: (kind, number) for at, number in enumerate(chosen)}
                self.asked[kind].update(chosen)
                peers[kind].send_bytes(b"".join(acks))
            if random.random() < 0.5:
                harness.poll()
            self.receipted.update(receipt.sequence_id for receipt in producer.receipts())
            for each, peer in peers.items():
                for answer in peer.take(pb.BaseCommand.ACK_RESPONSE):
                    subscription, number = questions[answer.command.ackResponse.request_id]
                    self.sure[subscription].add(number)
                held[each] |= {number_of(m.entry): (m.ledger_id, m.entry_id) for m in peer.messages()}

    def _sends(self, count: int) -> Iterator[bytes]:
        for _ in range(count):
            self.number += 1
            entry = entry_bytes(b"%d" % self.number, partition_key=str(self.number % 5))
            yield encode_send(1, self.number, 1, None, len(entry)) + entry

    def _ack(self, place: tuple[int, int], request_id: int) -> bytes:
        command = pb.BaseCommand(type=pb.BaseCommand.ACK)
        command.ack.consumer_id, command.ack.request_id = 1, request_id
        command.ack.ack_type = pb.CommandAck.Individual
        command.ack.message_id.add(ledgerId=place[0], entryId=place[1])
        return encode_command(command)

    def check(self, harness: Harness) -> None:
        """In the next life."""
        topic: Any = harness.broker.topics.find(NAME)
        ledger = topic.ledger if topic is not None else None
        stored = (
            {number_of(ledger.read_one(at)) for at in range(ledger.start, ledger.end)} if ledger else set()
        )
        assert self.receipted <= stored
        for kind in KINDS if stored else ():
            peer = harness.peer()
            peer.subscribe("t", kind, kind=kind, permits=100_000)
            harness.advance(1)
            delivered = [number_of(message.entry) for message in peer.messages()]
            assert len(delivered) == len(set(delivered))
            assert not self.sure[kind] & set(delivered), kind
            assert stored - self.asked[kind] <= set(delivered), kind
            self.asked[kind] = self.sure[kind] = stored - set(delivered)
            self.asked[kind] = set(self.asked[kind])
        assert not any(harness.broker.scheduler.failures.values())
        self.receipted = set(stored)


def number_of(entry: Any) -> int:
    return int(bytes(parse_entry(entry).payload))


def open_store(disk: SimulatedDisk, plan: Plan | None = None) -> FileStore:
    return FileStore.open(
        "/data/store", settings=SETTINGS, filesystem=FaultyFileSystem(disk, plan), threads=False
    )


@pytest.mark.parametrize("seed", range(8))
def test_an_acknowledgement_that_was_answered_holds_and_nothing_else_is_lost(seed: int) -> None:
    random = Random(seed)
    clients, disk = Clients(random), SimulatedDisk()
    for _ in range(LIVES):
        plan = Plan(crash_at=random.randrange(1, 500)) if random.random() < 0.7 else None
        try:
            entries_max = random.choice((10, 100, 50_000))
            store = open_store(disk, plan)
            clients.live(Harness(store, ledger_entries_max=entries_max, disk_low_water_bytes=0), disk)
        except PowerLoss:
            pass  # at a write; otherwise between two
        disk.capacity_bytes = 1 << 40
        disk = disk.kill() if random.random() < 0.5 else disk.crash(Fate.by_chance(random))
        store = open_store(disk)
        assert store.damage.found == []
        clients.check(Harness(store))
        disk = disk.kill()
