"""Stored messages from any position, forward and backward, with a filter, over several requests."""

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from web_requests import ask

import geminga
from geminga.broker.admin import browsing, overview
from geminga.broker.admin.browsing import Browser, bounds, whole_message
from geminga.broker.admin.tailing import PAYLOAD_SHOWN_BYTES, MessageFilter
from geminga.ids import TopicName
from geminga.wire.batch import encode_plain_batch
from tests.broker.conftest import TOPIC


@pytest.fixture
def topic(harness, make_entry):
    """Return a topic with ten messages, a second apart, with the keys a and b in turn."""
    peer = harness.producer(TOPIC)
    for number in range(10):
        entry = make_entry(b"value %d" % number, partition_key="ab"[number % 2], publish_time=harness.now_ms)
        peer.send(number, entry)
        harness.advance(1)
    return harness.actions.topic(TopicName.parse(TOPIC))


def browse(
    topic: Any, position: str = "earliest", count: int = 100, *, older: bool = False, after: Any = None,
    until_ms: int | None = None, **wanted: str,
) -> dict[str, Any]:  # fmt: skip
    start, stop = bounds(topic, position, after, until_ms, older)
    browser = Browser(topic, MessageFilter(**wanted), count, older=older, start=start, stop=stop)
    while not browser.is_done:
        browser.step()
    return browser.answer()


def entries(found: dict[str, Any]) -> list[int]:
    return [int(each["id"].partition(":")[2]) for each in found["messages"]]


def test_messages_are_read_forward_in_pages(topic):
    first = browse(topic, count=4)
    assert entries(first) == [0, 1, 2, 3]
    assert first["left"] == 6
    ledger_id, entry_id = map(int, first["next"].split(":"))
    rest = browse(topic, after=(ledger_id, entry_id))
    assert entries(rest) == [4, 5, 6, 7, 8, 9]
    assert rest["left"] == 0


def test_messages_are_read_backward_in_pages(topic):
    newest = browse(topic, "latest", 3, older=True)
    assert entries(newest) == [9, 8, 7]
    ledger_id, entry_id = map(int, newest["next"].split(":"))
    assert entries(browse(topic, count=100, older=True, after=(ledger_id, entry_id))) == [6, 5, 4, 3, 2, 1, 0]


def test_a_position_is_a_time_or_an_id(harness, topic):
    sent_ms = harness.now_ms - 10_000
    assert entries(browse(topic, str(sent_ms + 7_000))) == [7, 8, 9]
    assert entries(browse(topic, str(sent_ms + 7_000), until_ms=sent_ms + 8_000)) == [7, 8]
    assert entries(browse(topic, f"{topic.ledger.segments[0].ledger_id}:8")) == [8, 9]
    assert entries(browse(topic, "latest")) == []
    assert entries(browse(topic, "earliest", older=True)) == []


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [({"key": "b"}, [1, 3, 5, 7, 9]), ({"text": "value 4"}, [4]), ({"key": "a", "text": "value 4"}, [4]),
     ({"key": "b", "text": "value 4"}, [])],
)  # fmt: skip
def test_key_and_text_filter(topic, wanted, expected):
    found = browse(topic, **wanted)
    assert entries(found) == expected
    assert found["examined"] == 10


def test_a_filter_finds_messages_in_batches(harness, make_entry):
    peer = harness.producer(TOPIC)
    batch = encode_plain_batch([b"one", b"two"], 0)
    peer.send(0, make_entry(batch, num_messages_in_batch=2), messages=2)
    topic = harness.actions.topic(TopicName.parse(TOPIC))
    (found,) = browse(topic, text="two")["messages"]
    assert (found["batchIndex"], found["batchSize"]) == (1, 2)
    ledger_id = topic.ledger.segments[0].ledger_id
    whole = whole_message(topic, ledger_id, 0, 1, MessageFilter())
    assert whole["payload"] == found["payload"]
    assert whole_message(topic, ledger_id, 0, 2, MessageFilter()) is None
    assert whole_message(topic, ledger_id, 1, -1, MessageFilter()) is None


def test_a_single_message_is_returned_whole(harness, make_entry):
    harness.producer(TOPIC).send(0, make_entry(b"x" * 100_000))
    topic = harness.actions.topic(TopicName.parse(TOPIC))
    (shown,) = browse(topic)["messages"]
    assert len(shown["payload"]) == -(-PAYLOAD_SHOWN_BYTES // 3) * 4
    whole = whole_message(topic, topic.ledger.segments[0].ledger_id, 0, -1, MessageFilter())
    assert len(whole["payload"]) == -(-100_000 // 3) * 4


def test_an_empty_topic_has_no_messages(harness):
    harness.actions.create(TopicName.parse(TOPIC), lambda _error: None)
    topic = harness.actions.topic(TopicName.parse(TOPIC))
    for older in (False, True):
        assert browse(topic, "latest", older=older)["messages"] == []


def test_many_searches_at_once_leave_other_work_its_turns(monkeypatch):
    turns, stepped = itertools.count(), []

    class Slow(Browser):
        is_done = property(lambda self: self.examined >= 5)

        def step(self) -> None:
            loop = asyncio.get_running_loop()

            def turn() -> None:
                next(turns)
                loop.call_soon(turn)

            if not stepped:
                turn()
            self.examined += 1
            stepped.append(str(turns))

    monkeypatch.setattr(overview, "Browser", Slow)
    with geminga.embedded() as broker:
        url = f"{broker.admin_url}/admin/v2/persistent/public/default/t"
        ask(url, "PUT")
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(ask, [f"{url}/messages?from=earliest"] * 8))
    assert len(stepped) == 40
    assert len(set(stepped)) == 40


def test_large_messages_are_read_backward_in_small_parts(harness, make_entry, monkeypatch):
    monkeypatch.setattr(browsing, "READ_BYTES_AT_ONCE", 10_000)
    peer = harness.producer(TOPIC)
    peer.send_all(make_entry(b"%d" % number * 2_000) for number in range(40))
    topic, read = harness.actions.topic(TopicName.parse(TOPIC)), []
    real = topic.ledger.read
    monkeypatch.setattr(type(topic.ledger), "read", lambda _, *a, **k: read.append(real(*a, **k)) or read[-1])
    browser = Browser(topic, MessageFilter(), 100, older=True, start=topic.ledger.start, stop=40)
    sizes = []
    while not browser.is_done:
        read.clear()
        browser._read_older(float("-inf"))
        sizes.append(sum(len(entry) for found in read for entry in found))
    assert entries(browser.answer()) == [*reversed(range(40))]
    assert max(sizes[1:]) < 60_000
    assert sizes[0] < 100_000
