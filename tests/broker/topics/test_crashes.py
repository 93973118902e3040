"""Topics that are created, written to and deleted while the process dies or the power fails, at any write.

Receipted messages are there afterwards; deleted topics stay deleted and leave no records or files.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from geminga.errors import StoreError
from geminga.ids import TopicName
from geminga.ledger.settings import StoreSettings
from geminga.wire.metadata import parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import Harness, entry_bytes
from tests.support.disk_stores import open_store
from tests.support.faulty_filesystem import Fate, Plan, PowerLoss, SimulatedDisk

NAMES = [TopicName.parse(f"t{number:02}") for number in range(12)]
LIVES = 12
SETTINGS = StoreSettings(
    log_file_bytes=16_384,
    preallocate_bytes=1024,
    cache_bytes=2_000,
    checkpoint_records=60,
    checkpoint_state_bytes=20_000,
    rewrite_live_fraction=0.6,
    garbage_bytes_min=1,
    deletion_delay_seconds=0.0,
)


@dataclass
class Known:
    """A topic as its client knows it."""

    exists: bool = False
    asked: str = ""
    """A creation or deletion that was not receipted yet."""
    receipted: set[bytes] = field(default_factory=set)
    deletions: int = 0


class Client:
    """Asks for things at random and remembers what was confirmed."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.known = {name: Known() for name in NAMES}
        self.sent: dict[int, tuple[TopicName, bytes, int]] = {}
        self._number = 0

    def live(self, harness: Harness) -> None:
        """Until the end of this life."""
        harness.auto_poll = False
        peer = harness.peer()
        for _ in range(self.random.randrange(20, 120)):
            name = self.random.choice(NAMES)
            known = self.known[name]
            if known.asked:
                pass
            elif not known.exists and self.random.random() < 0.5:
                harness.actions.create(name, self._create(known))
            elif not known.exists or self.random.random() < 0.7:
                self._publish(harness, peer, name, known)
            else:
                self._subscribe_sometimes(harness, name)
                harness.actions.delete(name, True, self._delete(known))
            if self.random.random() < 0.4:
                harness.poll()
                self._take_receipts(peer)

    def _create(self, known: Known) -> Callable[[StoreError | None], None]:
        known.asked = "create"

        def done(error: StoreError | None) -> None:
            assert error is None
            known.exists, known.asked = True, ""

        return done

    def _delete(self, known: Known) -> Callable[[StoreError | None], None]:
        known.asked = "delete"
        known.deletions += 1

        def done(error: StoreError | None) -> None:
            assert error is None
            known.exists, known.asked = False, ""
            known.receipted.clear()

        return done

    def _subscribe_sometimes(self, harness: Harness, name: TopicName) -> None:
        topic: Any = harness.broker.topics.find(name)
        if self.random.random() < 0.5 and "s" not in topic.subscriptions:
            topic.subscription("s", offset=0)

    def _publish(self, harness: Harness, peer: Any, name: TopicName, known: Known) -> None:
        if not known.exists:
            known.asked = "create"
        self._number += 1
        payload = b"%d" % self._number
        self.sent[self._number] = name, payload, known.deletions
        peer.command("producer", topic=str(name), producer_id=self._number, request_id=1)
        peer.send(self._number, entry_bytes(payload), producer_id=self._number)
        peer.command("close_producer", producer_id=self._number, request_id=2)

    def _take_receipts(self, peer: Any) -> None:
        assert not peer.take(pb.BaseCommand.SEND_ERROR)
        for receipt in peer.receipts():
            name, payload, deletions = self.sent.pop(receipt.sequence_id)
            known = self.known[name]
            if deletions != known.deletions:
                continue  # of a topic that was deleted since
            known.exists, known.asked = True, ""
            known.receipted.add(payload)

    def check(self, harness: Harness) -> None:
        """In the next life: what was confirmed holds, what was not may be either way."""
        self.sent.clear()
        for name, known in self.known.items():
            exists = harness.broker.topics.is_stored(name)
            if not known.asked:
                assert exists == known.exists, name
            if exists and known.asked != "delete":
                assert known.receipted <= payloads(harness, name), name
            if not exists:
                assert left_of(harness, name) == []
            known.exists, known.asked = exists, ""
            known.receipted = payloads(harness, name) if exists else set()


def payloads(harness: Harness, name: TopicName) -> set[bytes]:
    topic: Any = harness.broker.topics.find(name)
    ledger = topic.ledger
    return {bytes(parse_entry(ledger.read_one(at)).payload) for at in range(ledger.start, ledger.end)}


def left_of(harness: Harness, name: TopicName) -> list[Any]:
    kinds = ("topic/", "ledgers/", "cursor/", "counts/", "dedup/")
    keys = [key for kind in kinds for key in harness.store.keys.names(f"{kind}{name}")]
    return [*keys, *harness.store.ledgers(str(name))]


@pytest.mark.parametrize("seed", range(12))
def test_receipted_messages_stay_and_deleted_topics_stay_deleted(seed):
    random = Random(seed)
    client, disk = Client(random), SimulatedDisk()
    for _ in range(LIVES):
        plan = Plan(crash_at=random.randrange(1, 400)) if random.random() < 0.8 else None
        try:
            client.live(Harness(open_store(disk, SETTINGS, plan)))
        except PowerLoss:
            pass  # at a write; otherwise between two
        disk = disk.kill() if random.random() < 0.4 else disk.crash(Fate.by_chance(random))
        store = open_store(disk, SETTINGS)
        assert store.damage.found == []
        client.check(Harness(store))
        disk = disk.kill()
