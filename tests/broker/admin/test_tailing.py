"""Readable messages: every kind of entry is shown, sizes are bounded, and a tail receives new messages."""

import asyncio
import base64
import json
from typing import Any

import pytest
from entries import batch_entry, in_batch, single_entry

from geminga.broker.admin import browsing, tailing
from geminga.broker.admin.browsing import tail
from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.messages import entry_answer
from geminga.broker.admin.tailing import MessageFilter, messages_of
from geminga.ids import TopicName
from geminga.wire.metadata import build_entry, parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import TOPIC


def batch(*messages: tuple[bytes, dict[str, Any]], **fields: Any) -> bytes:
    parts = [in_batch(payload, sequence_id=n, **meta) for n, (payload, meta) in enumerate(messages)]
    return batch_entry(parts, **fields)


def opened(entry: bytes, wanted: MessageFilter | None = None, **options: Any) -> list[dict[str, Any]]:
    found = list(messages_of(entry, 3, 4, wanted or MessageFilter(), **options))
    json.dumps(found)
    return found


def test_a_single_message_is_shown_with_id_and_payload(make_entry):
    found = opened(make_entry(b"hello", partition_key="k", event_time=5, schema_version=bytes(7) + b"\x07"))
    assert len(found) == 1
    assert found[0]["id"] == "3:4"
    assert base64.b64decode(found[0]["payload"]) == b"hello"
    assert (found[0]["key"], found[0]["eventTime"], found[0]["schemaVersion"]) == ("k", 5, 7)


def test_the_messages_of_a_batch_are_shown_with_their_indexes():
    entry = batch(
        (b"a", {"partition_key": "x"}), (b"b", {"properties": {"n": "1"}}), (b"", {"null_value": True})
    )
    found = opened(entry)
    assert [each["batchIndex"] for each in found] == [0, 1, 2]
    assert (found[0]["key"], found[1]["properties"], found[2]["null"]) == ("x", {"n": "1"}, True)
    assert [each["batchIndex"] for each in opened(entry, open_ones=lambda index: index == 1)] == [1]


def garbled(entry: bytes) -> bytes:
    """Return the entry with ``KEY`` and ``NAM`` replaced by bytes that are no UTF-8."""
    head, payload = parse_entry(entry).metadata.SerializeToString(), bytes(parse_entry(entry).payload)
    broken = (part.replace(b"KEY", b"\xffEY").replace(b"NAM", b"\xffAM") for part in (head, payload))
    return build_entry(*broken)


def test_a_message_with_texts_that_are_no_utf8_is_shown():
    properties = [pb.KeyValue(key="NAM", value="NAM")]
    single = single_entry(b"one", partition_key="KEY", properties=properties)
    several = batch((b"two", {"partition_key": "KEY", "properties": {"NAM": "NAM"}}))
    for entry in (single, several):
        [found] = opened(garbled(entry))
        assert (found["key"], found["properties"]) == ("\ufffdEY", {"\ufffdAM": "\ufffdAM"})
        assert len(opened(garbled(entry), MessageFilter(text="\ufffdAM"))) == 1
    answer = asyncio.run(entry_answer(3, 4, garbled(single)))
    assert answer.body == b"one"
    assert answer.headers["X-Pulsar-partition-key"] == "%FFEY"
    assert json.loads(answer.headers["X-Pulsar-PROPERTY"]) == {"\ufffdAM": "\ufffdAM"}


def test_properties_too_large_for_http_headers_are_refused():
    entry = single_entry(b"x", properties=[pb.KeyValue(key="n", value="v" * 65_536)])
    with pytest.raises(AdminRefusal, match="too many for HTTP") as refused:
        asyncio.run(entry_answer(3, 4, entry))
    assert refused.value.status == 413


@pytest.mark.parametrize(
    ("wanted", "indexes"),
    [
        (MessageFilter(text="needle"), [1]), (MessageFilter(text="n=42"), [2]), (MessageFilter(key="x"), [0]),
        (MessageFilter(producer="q"), []),
        (MessageFilter(producer="p", text="a"), [0, 1]), (MessageFilter(), [0, 1, 2]),
    ],
)  # fmt: skip
def test_filters_select_messages_of_a_batch(wanted, indexes):
    entry = batch((b"a", {"partition_key": "x"}), (b"a needle", {}), (b"c", {"properties": {"n": "42"}}))
    assert [each["batchIndex"] for each in opened(entry, wanted)] == indexes


def test_unreadable_entries_are_described(make_entry):
    assert "cannot be read" in opened(b"rubbish")[0]["problem"]
    secret = single_entry(b"secret", encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")])
    assert opened(secret)[0]["problem"] == "encrypted"
    assert "decompressed" in opened(make_entry(b"x", compression=1, uncompressed_size=5))[0]["problem"]
    too_large = make_entry(b"x", compression=1, uncompressed_size=1 << 30)
    assert "too many to look at" in opened(too_large)[0]["problem"]
    part = make_entry(b"x", num_chunks_from_msg=3, chunk_id=1)
    assert opened(part)[0]["problem"] == "part 2 of 3 of a larger message"
    lie = make_entry(b"x", num_messages_in_batch=1_000_000)
    assert "too many to show" in opened(lie)[0]["problem"]
    assert "batch cannot be read" in opened(make_entry(b"x", num_messages_in_batch=5))[0]["problem"]


def test_long_payloads_are_cut(make_entry):
    found = opened(make_entry(b"x" * 100_000))[0]
    assert (found["size"], found["cut"]) == (100_000, True)
    assert "cut" not in opened(make_entry(b"x"))[0]
    assert len(base64.b64decode(found["payload"])) == tailing.PAYLOAD_SHOWN_BYTES


@pytest.fixture
def topic(harness, monkeypatch):
    monkeypatch.setattr(tailing, "ANSWER_SECONDS_MAX", 60.0)  # a busy machine gives up no search
    harness.actions.create(TopicName.parse(TOPIC), lambda _error: None)
    return harness.actions.topic(TopicName.parse(TOPIC))


def payloads(found: dict[str, Any]) -> list[bytes]:
    return [base64.b64decode(each["payload"]) for each in found["messages"]]


def test_a_tail_sees_each_message_once(harness, topic):
    found = tail(topic, None, 10, MessageFilter())
    assert (found["messages"], found["next"]) == ([], "-1:-1")
    producer = harness.producer(TOPIC)
    seen: list[bytes] = []
    behind = (-1, -1)
    for start in range(0, 30, 6):
        producer.publish(6, first=start)
        found = tail(topic, behind, 10, MessageFilter())
        seen += payloads(found)
        behind = tuple(map(int, found["next"].split(":")))
    assert seen == [b"m%d" % number for number in range(30)]
    assert tail(topic, behind, 10, MessageFilter())["messages"] == []


def test_a_tail_begins_with_the_newest_messages_and_counts_the_skipped(harness, topic):
    harness.producer(TOPIC).publish(50)
    assert payloads(tail(topic, None, 3, MessageFilter())) == [b"m47", b"m48", b"m49"]
    found = tail(topic, (0, 9), 3, MessageFilter())
    assert (found["skipped"], payloads(found)) == (37, [b"m47", b"m48", b"m49"])


def test_filters_examine_every_later_entry(harness, topic):
    harness.producer(TOPIC).publish(90)
    behind, seen, answers = None, [], 0
    while True:
        found = tail(topic, behind, 10, MessageFilter(text="m7"))
        seen += payloads(found)
        behind = tuple(map(int, found["next"].split(":")))
        answers += 1
        assert found["examined"] <= 110
        if not found["behind"]:
            break
    assert seen == [b"m7", *(b"m7%d" % number for number in range(10))]


def test_an_answer_ends_at_its_time_limit(harness, topic, monkeypatch):
    """A filter over many entries must not block the broker: the next answer continues."""
    monkeypatch.setattr(browsing, "ANSWER_SECONDS_MAX", 0.0)
    harness.producer(TOPIC).publish(5)
    behind, seen = (-1, -1), []
    for _ in range(5):
        found = tail(topic, behind, 10, MessageFilter(text="m"))
        assert found["examined"] == 1
        seen += payloads(found)
        behind = tuple(map(int, found["next"].split(":")))
    assert seen == [b"m%d" % number for number in range(5)]


def test_an_answer_ends_at_its_size_limit(harness, topic, make_entry):
    producer = harness.producer(TOPIC)
    producer.send_all(make_entry(b"x" * 30_000) for number in range(150))
    found = tail(topic, (-1, -1), 200, MessageFilter(text="x"))
    assert len(json.dumps(found)) < 2 * tailing.ANSWER_BYTES_MAX
    assert found["behind"] > 0


def test_messages_with_very_many_properties_are_not_opened(make_entry):
    """A hundred thousand of them take longer to be read than a loop can be held up."""
    many = [pb.KeyValue(key=f"{number:x}", value="") for number in range(100_000)]
    entry = single_entry(b"x", properties=many)
    (found,) = opened(entry, MessageFilter(text="anything"))
    assert "bytes of metadata: too many to look at" in found["problem"]
    properties = {f"{number:x}": "" for number in range(1000)}
    (found,) = opened(batch(*[(b"a", {"properties": properties})] * 100))
    assert "bytes of metadata" in found["problem"]
    assert len(opened(batch(*[(b"a", {"properties": {"trace": "x" * 200}})] * 1000))) == 1000


def test_the_search_through_chunks_of_incomplete_messages_is_limited(harness, make_entry, monkeypatch):
    """First parts of messages count for no message: to find twenty, all of a topic would be looked at."""
    monkeypatch.setattr(browsing, "NEWEST_ENTRIES_MAX", 30)
    producer = harness.producer(TOPIC)
    for number in range(100):
        part = make_entry(sequence_id=number, num_chunks_from_msg=2, chunk_id=0, uuid=f"{number}")
        producer.send(number, part, is_chunk=True)
    found = tail(harness.actions.topic(TopicName.parse(TOPIC)), None, 20, MessageFilter())
    assert found["messages"][0]["id"] == "0:70"
    assert found["examined"] == 20
    assert found["behind"] == 10
