"""Counts of messages and bytes against plain lists, over restarts, damage and little memory."""

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from geminga.broker.delivery.ranges import RangeSet
from geminga.broker.entries import entry_counts
from geminga.broker.entries.entry_counts import CountsCache, EntryCounts, blocks_key, totals_key
from geminga.broker.entries.entry_facts import backlog_count
from geminga.errors import StoreDamaged
from geminga.ledger.damage import Damage, DamageLoss, EntriesDamaged
from geminga.ledger.memory import MemoryStore
from geminga.wire.metadata import build_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

OWNER = "persistent://public/default/t"


def an_entry(messages: int, size: int = 0, **fields: int) -> bytes:
    """Return an entry with ``messages`` in its metadata, padded to ``size`` bytes if that is more."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields)
    if messages > 1:
        metadata.num_messages_in_batch = messages
    head = metadata.SerializeToString()
    return build_entry(head, b"x" * max(1, size - len(build_entry(head, b""))))


@dataclass
class Ledger:
    ledger_id: int
    base: int
    entries: int = 0
    size_bytes: int = 0


class Topic:
    """A topic's ledgers as `ManagedLedger` keeps them, and a list that says what each entry holds."""

    def __init__(self, cache_bytes: int = 1 << 20) -> None:
        self.store = MemoryStore()
        self.cache_bytes = cache_bytes
        self.ledgers: list[Ledger] = []
        self.bases: list[int] = []
        self.model: list[tuple[int, int]] = []
        self.rolled = False
        self.open()

    def open(self) -> None:
        self.cache = CountsCache(self.cache_bytes)
        self.counts = EntryCounts(self.store, OWNER, self.cache, self.ledgers, self.bases)
        self.rolled = False

    def roll(self) -> None:
        ledger = Ledger(self.store.create_ledger(OWNER), len(self.model))
        self.ledgers.append(ledger)
        self.bases.append(ledger.base)
        self.counts.roll(ledger.ledger_id)
        self.rolled = True

    def append(self, entry: bytes, *, counted: bool = True) -> None:
        if not self.rolled:
            self.roll()
        ledger = self.ledgers[-1]
        self.store.append(ledger.ledger_id, entry, lambda error: None)
        ledger.entries += 1
        ledger.size_bytes += len(entry)
        if counted:
            self.counts.append(backlog_count(entry), len(entry))
        self.model.append((backlog_count(entry), len(entry)))

    def append_run(self, entries: list[bytes]) -> None:
        """Entries of a message each."""
        if not self.rolled:
            self.roll()
        ledger, sizes = self.ledgers[-1], [len(entry) for entry in entries]
        self.store.append_run(ledger.ledger_id, entries, lambda error: None)
        ledger.entries += len(entries)
        ledger.size_bytes += sum(sizes)
        self.counts.append_run(sizes, sum(sizes))
        self.model += [(1, size) for size in sizes]

    def trim(self, count: int) -> None:
        gone = self.ledgers[:count]
        del self.ledgers[:count], self.bases[:count]
        self.store.delete_ledgers([each.ledger_id for each in gone])
        self.counts.forget(gone)

    def expected(self, start: int, stop: int) -> tuple[int, int]:
        held = self.model[max(start, self.bases[0]) : stop] if self.bases else []
        return sum(each[0] for each in held), sum(each[1] for each in held)


class CountsMachine(RuleBasedStateMachine):
    """After any publishing, rolling, trimming and restarts, sums and single entries equal those of a list."""

    @initialize(cache_bytes=st.sampled_from([1, 2_000, 1 << 20]))
    def begin(self, cache_bytes: int) -> None:
        self.topic = Topic(cache_bytes)

    @rule(
        entries=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 300)), max_size=30),
        repeat=st.integers(1, 5),
    )
    def publish(self, entries: list[tuple[int, int]], repeat: int) -> None:
        for messages, size in entries * repeat:
            self.topic.append(an_entry(messages, size))

    @rule(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=60))
    def publish_run(self, sizes: list[int]) -> None:
        self.topic.append_run([an_entry(1, size) for size in sizes])

    @rule()
    def roll(self) -> None:
        if self.topic.ledgers and self.topic.ledgers[-1].entries:
            self.topic.roll()

    @rule()
    def restart(self) -> None:
        while self.topic.ledgers and not self.topic.ledgers[-1].entries:
            # Loading a topic forgets ledgers without entries.
            self.topic.ledgers.pop()
            self.topic.bases.pop()
        self.topic.open()

    @precondition(lambda self: len(self.topic.ledgers) > 1)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        self.topic.trim(data.draw(st.integers(1, len(self.topic.ledgers) - 1)))

    @precondition(lambda self: self.topic.ledgers and self.topic.rolled)
    @rule(index=st.integers(0, 50))
    def damage(self, index: int) -> None:
        """Blocks or totals are gone, or no longer what they were."""
        ledger = self.topic.ledgers[index % len(self.topic.ledgers)]
        if index % 3:
            self.topic.store.keys.put(blocks_key(OWNER, ledger.ledger_id), b"\x07rubbish"[: index % 5])
        else:
            self.topic.store.keys.delete(totals_key(OWNER))

    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        end = len(self.topic.model)
        start = data.draw(st.integers(0, end))
        stop = data.draw(st.integers(start, min(end, start + data.draw(st.sampled_from([1, 5, 10_000])))))
        assert self.topic.counts.between(start, stop) == self.topic.expected(start, stop)
        chosen = RangeSet()
        chosen.add_all(data.draw(st.sets(st.integers(0, max(0, end - 1)), max_size=40)) if end else ())
        held = [self.topic.expected(at, at + 1) for at in range(start, stop) if at in chosen]
        total = sum(each[0] for each in held), sum(each[1] for each in held)
        assert self.topic.counts.held(chosen, start, stop) == total
        if start < end:
            assert self.topic.counts.of(start) == self.topic.expected(start, start + 1)

    @invariant()
    def all_of_it(self) -> None:
        if hasattr(self, "topic"):
            end = len(self.topic.model)
            assert self.topic.counts.between(0, end) == self.topic.expected(0, end)
            assert self.topic.counts._totals._all().keys() <= {each.ledger_id for each in self.topic.ledgers}


@pytest.fixture(autouse=True, scope="module")
def _small_blocks():
    patch = pytest.MonkeyPatch()
    patch.setattr(entry_counts, "BLOCK_ENTRIES", 16)
    patch.setattr(entry_counts, "BLOCK_BYTES", 3_000)
    patch.setattr(entry_counts, "TAIL_KEPT_ENTRIES", 4)
    yield patch
    patch.undo()


CountsMachine.TestCase.settings = settings(stateful_step_count=20)
TestCounts = CountsMachine.TestCase


def test_single_messages_are_known_only_for_counts_in_memory():
    topic = Topic()
    topic.append_run([an_entry(1, 100)] * 700)
    topic.append(an_entry(3, 100))
    topic.append(an_entry(1, 100, chunk_id=0, num_chunks_from_msg=2))
    topic.append_run([an_entry(1, 100)] * 20)
    singles = topic.counts.singles
    for start in range(0, 722, 7):
        for count in (1, 5, 100, 1000):
            found = singles(start, start + count)
            assert found <= count
            assert all(topic.model[at][0] == 1 for at in range(start, start + found))
    assert singles(0, 100) == 100
    assert singles(702, 722) == singles(702, 900) == 20
    assert singles(690, 701) == 10
    assert singles(700, 701) == singles(701, 702) == singles(722, 723) == 0
    topic.open()
    assert topic.counts.singles(0, 100) == 0
    assert topic.counts.of(5) == topic.model[5]
    assert topic.counts.singles(0, 100) == 100


def test_only_the_last_chunk_of_a_message_counts():
    chunks = [an_entry(1, chunk_id=number, num_chunks_from_msg=3) for number in range(3)]
    assert [backlog_count(each) for each in chunks] == [0, 0, 1]
    assert [backlog_count(each) for each in (an_entry(1), an_entry(9), b"no entry")] == [1, 9, 1]


def test_after_a_kill_only_the_entries_behind_the_last_block_are_read():
    topic = Topic()
    for number in range(100):
        topic.append(an_entry(number % 3 + 1, 80))
    topic.open()  # nothing was closed
    read: list[int] = []
    plain = topic.store.read

    def counting(ledger_id: int, first: int, **limits: int) -> list[bytes]:
        found = plain(ledger_id, first, **limits)
        read.append(len(found))
        return found

    topic.store.read = counting
    assert topic.counts.between(0, 100) == topic.expected(0, 100)
    assert sum(read) <= 16
    topic.open()
    read.clear()
    assert topic.counts.between(0, 100) == topic.expected(0, 100)
    assert not read  # the totals are known now


def test_entries_without_stored_counts_are_counted_at_their_first_use():
    topic = Topic()
    for _ in range(3):
        topic.roll()
        for number in range(100):
            topic.append(an_entry(number % 4 + 1, 60), counted=False)
    topic.open()
    assert topic.counts.between(50, 250) == topic.expected(50, 250)
    topic.open()
    assert topic.counts.between(50, 250) == topic.expected(50, 250)


def test_a_damaged_entry_counts_as_a_message_of_no_bytes():
    topic = Topic()
    for _ in range(10):
        topic.append(an_entry(3, 100))
    topic.open()
    plain = topic.store.read

    def damaged(ledger_id: int, first: int, **limits: int) -> list[bytes]:
        if first == 4:
            raise StoreDamaged("entry 4")
        return plain(ledger_id, first, **limits)[: 4 - first if first < 4 else 10]

    topic.store.read = damaged
    assert topic.counts.between(0, 10) == (9 * 3 + 1, 9 * 100)
    assert topic.counts.of(4) == (1, 0)


def test_entries_lost_together_are_counted_after_one_read():
    """A missing log file may hold a million entries: a read for each would stop the broker for minutes."""
    topic = Topic()
    for _ in range(2000):
        topic.append(an_entry(1, 60), counted=False)
    topic.open()
    plain, reads = topic.store.read, 0

    def lost(ledger_id: int, first: int, **limits: int) -> list[bytes]:
        nonlocal reads
        reads += 1
        if first < 1990:
            damage = Damage("log-0000000001", 0, "it is missing", ledger_id, 0, 1989, DamageLoss.ENTRIES)
            raise EntriesDamaged("entries 0 to 1989", damage)
        return plain(ledger_id, first, **limits)

    topic.store.read = lost
    assert topic.counts.between(0, 2000) == (2000, 10 * 60)
    assert reads == 2


def test_trimming_and_deleting_remove_the_counts():
    topic = Topic()
    for _ in range(4):
        topic.roll()
        for _ in range(40):
            topic.append(an_entry(1, 60))
    assert topic.counts.between(0, 160) == topic.expected(0, 160)
    topic.trim(3)
    assert topic.counts.between(0, 160) == topic.expected(0, 160)
    left = [key for key, _ in topic.store.keys.scan("counts/")]
    assert left == [blocks_key(OWNER, topic.ledgers[0].ledger_id)]
    gone = list(topic.ledgers)
    topic.ledgers.clear()
    topic.bases.clear()
    topic.counts.delete_all(gone)
    assert not list(topic.store.keys.scan("counts/"))


def test_an_idle_topic_stores_no_counts():
    topic = Topic()
    for _ in range(3):
        topic.append(an_entry(1, 60))
    assert not list(topic.store.keys.scan("counts/"))


def test_the_memory_for_counts_is_bounded(monkeypatch):
    monkeypatch.setattr(entry_counts, "BLOCK_ENTRIES", 512)
    monkeypatch.setattr(entry_counts, "BLOCK_BYTES", 1 << 20)
    random = Random(3)
    for least, most, expected in ((130, 131, 1.5), (130, 300, 2.5), (100, 2_000, 2.9)):
        topic = Topic(1 << 24)
        topic.roll()
        for _ in range(20_000):
            topic.counts.append(1, random.randrange(least, most))
        assert topic.cache._bytes / 20_000 < expected
    topic = Topic(10_000)
    for _ in range(2):
        topic.roll()
        for _ in range(20_000):
            topic.counts.append(1, random.randrange(130, 300))
    assert topic.cache._bytes <= 10_000 + 20_000 * 2.5  # one ledger always stays in the cache
