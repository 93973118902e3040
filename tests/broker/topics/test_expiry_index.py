"""The index of what is due: in order, once, and nothing lost by a crash."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from doubles import calls_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from geminga.broker.topics.expiry_index import GONE, NEVER, PLANNED_MS_MAX, Due, ExpiryIndex
from geminga.broker.topics.record import TopicRecord
from geminga.ledger.api import PrefetchRequest
from geminga.ledger.memory import MemoryKeys, MemoryStore

TOPICS = [f"persistent://public/default/{number}" for number in range(6)]


class SmallPages(MemoryKeys):
    """Keys of a store whose pages are short: what changes meanwhile is before, in and behind them."""

    def names_page(self, prefix: str, *, after: str = "") -> tuple[list[str], str | None]:
        names = list(islice(self.names(prefix, after=after), 2))
        return names, names[-1] if len(names) == 2 else None


def small_pages() -> MemoryStore:
    store = MemoryStore()
    store.keys = SmallPages(store.reports)
    return store


def due(index: ExpiryIndex[Any], now_ms: int) -> Iterator[Due]:
    return (each for each in index.due(now_ms) if not isinstance(each, PrefetchRequest))


def arm(index: ExpiryIndex[Any], text: str, record: TopicRecord, when_ms: int) -> None:
    """As a topic does: the record is written in between, which here it always is."""
    index.disarm(text, index.arm(text, record, when_ms))


def test_due_topics_are_returned_in_order_and_once():
    index, records = ExpiryIndex(small_pages()), [TopicRecord() for _ in TOPICS]
    times = (50, 10, 30, 10**12, 20, NEVER)
    for when, text, record in zip(times, TOPICS, records, strict=True):
        arm(index, text, record, when)
    assert list(due(index, 9)) == []
    assert [when for when, _ in due(index, 30)] == [10, 20, 30]
    assert list(due(index, 30)) == []
    assert [when for when, _ in due(index, 100)] == [50]
    assert [record.due_ms for record in records] == [50, 10, 30, 10**12, 20, 0]


def test_nothing_is_written_before_the_read_position():
    store, record, other = MemoryStore(), TopicRecord(), TopicRecord()
    index = ExpiryIndex(store)
    arm(index, TOPICS[0], record, 10)
    arm(index, TOPICS[1], other, 15)
    reading = due(index, 20)
    assert next(reading) == (10, TOPICS[0])
    arm(index, TOPICS[0], record, 5)
    assert record.due_ms > 20, "the store may have read ahead"
    assert list(reading) == [(15, TOPICS[1])]
    assert list(due(index, 30)) == [(record.due_ms, TOPICS[0])]


def test_nothing_is_read_while_nothing_is_due(monkeypatch):
    store = small_pages()
    index = ExpiryIndex(store)
    scans = calls_of(monkeypatch, store.keys, "scan")
    assert list(due(index, 10)) == []
    arm(index, TOPICS[0], TopicRecord(), 100)
    assert list(due(index, 50)) == []
    assert len(scans) == 1
    assert list(due(index, 100)) == [(100, TOPICS[0])]
    assert list(due(index, 10**12)) == []
    assert len(scans) == 2


def test_an_interrupted_read_continues_with_the_next_key():
    index = ExpiryIndex(small_pages())
    for number, text in enumerate(TOPICS):
        arm(index, text, TopicRecord(), 10 + number)
    reading = due(index, 100)
    next(reading)
    next(reading)
    reading.close()
    assert [when for when, _ in due(index, 100)] == [12, 13, 14, 15]


def test_walks_are_stored_with_their_progress():
    store = small_pages()
    index = ExpiryIndex(store)
    index.begin_walk("public/default")
    index.begin_walk("public/other", "last")
    assert list(due(index, 10**12)) == []
    assert ExpiryIndex(store).walks() == [("public/default", ""), ("public/other", "last")]
    index.end_walk("public/default")
    assert ExpiryIndex(store).walks() == [("public/other", "last")]


class Topic:
    def __init__(self, name: str) -> None:
        self.name = name
        self.check_ms = NEVER


def planned(index: ExpiryIndex[Topic], now_ms: int) -> list[str]:
    return [topic.name for topic in index.take_planned(now_ms)]


def test_a_topic_is_checked_once_at_its_earliest_planned_time():
    index, a, b = ExpiryIndex[Topic](MemoryStore()), Topic("a"), Topic("b")
    for when_ms in (30_000, 19_500, 50_000):
        index.plan(a, when_ms)
    index.plan(b)
    index.plan(b)
    assert [planned(index, now_ms) for now_ms in (0, 19_999, 20_000, 60_000)] == [["b"], [], ["a"], []]


def test_changes_during_a_round_are_for_the_next_one():
    index, a, b, c, d = ExpiryIndex[Topic](MemoryStore()), *map(Topic, "abcd")
    for topic in (a, b, c):
        index.plan(topic)
    index.plan(d, 1000)
    running = index.take_planned(1000)
    assert next(running) is a
    index.plan(a)
    index.plan(b)  # it is checked in this round anyway
    index.plan(d)
    index.drop(c)
    assert [topic.name for topic in running] == ["b", "d"]
    assert planned(index, 1000) == ["a"]
    assert [topic.check_ms for topic in (a, b, c, d)] == [NEVER, NEVER, GONE, NEVER]


def test_dropped_topics_are_not_checked_and_leave_nothing_in_the_index():
    index, topics = ExpiryIndex[Topic](MemoryStore()), [Topic(str(number)) for number in range(50)]
    for number, topic in enumerate(topics):
        index.plan(topic, number * 1000)
    for topic in topics:
        index.drop(topic)
        index.drop(topic)
        index.plan(topic)
    assert planned(index, 10**9) == []
    assert not index._planned


def test_a_clock_that_is_set_back_does_not_delay_checks():
    index, topic = ExpiryIndex[Topic](MemoryStore()), Topic("a")
    index.plan(topic, 10**12 + 60_000)
    assert planned(index, 10**12 - PLANNED_MS_MAX // 2) == []
    assert planned(index, 10**12 - 3_600_000) == ["a"]


class Lives(RuleBasedStateMachine):
    """Each armed topic is reported in time, across restarts, even if others are armed during the read."""

    def __init__(self) -> None:
        super().__init__()
        self.store = small_pages()
        self.records = {text: TopicRecord() for text in TOPICS}
        self.wanted: dict[str, int] = {}
        self.now_ms = 0
        self.start()

    def start(self) -> None:
        self.index = ExpiryIndex(self.store)
        self.told: set[str] = set()
        self.reading: Any = None

    @rule(text=st.sampled_from(TOPICS), delay=st.integers(-50, 200))
    def arm(self, text: str, delay: int) -> None:
        arm(self.index, text, self.records[text], self.now_ms + delay)
        self.wanted[text] = self.records[text].due_ms
        self.told.discard(text)

    @rule(text=st.sampled_from(TOPICS))
    def forget(self, text: str) -> None:
        arm(self.index, text, self.records[text], NEVER)
        self.wanted.pop(text, None)

    @rule(milliseconds=st.integers(0, 150))
    def pass_time(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @rule(steps=st.integers(1, 3))
    def read_some(self, steps: int) -> None:
        for _ in range(steps):
            self.reading = self.reading or due(self.index, self.now_ms)
            found = next(self.reading, None)
            if found is None:
                self.reading = None
                return
            when_ms, text = found
            assert when_ms <= self.now_ms
            if self.records[text].due_ms == when_ms:
                self.told.add(text)

    @rule()
    def crash(self) -> None:
        self.start()

    @invariant()
    def there_is_one_key_a_topic(self) -> None:
        assert len(list(self.store.keys.scan("due/"))) == len(self.wanted)

    def teardown(self) -> None:
        self.now_ms += 10_000
        for reading in (self.reading or (), due(self.index, self.now_ms)):
            self.told |= {text for when, text in reading if self.wanted.get(text) == when}
        assert self.told >= self.wanted.keys()


Lives.TestCase.settings = settings(stateful_step_count=30)
test_lives = Lives.TestCase
