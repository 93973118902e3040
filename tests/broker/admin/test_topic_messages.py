"""Publishing as Apache Pulsar's REST takes it; what both brokers answer is in ``tests/suites``."""

import asyncio
import base64
import itertools
import json
import threading
import time
from typing import Any

import pytest
from servers import serving
from waiting import eventually_async, loop_turns
from web_requests import ask

import geminga
from geminga.broker.admin import http, topic_messages
from geminga.broker.admin.topic_messages import MESSAGES_MAX
from geminga.broker.serving.server import BrokerServer
from geminga.broker.topics.persistent import PersistentTopic

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker():
    with geminga.embedded(max_message_size=200_000) as running:
        yield running


@pytest.fixture
def topic(broker):
    return made(broker, f"t{next(_numbers)}")


def made(broker: Any, name: str, **policies: Any) -> str:
    path = f"persistent/public/default/{name}"
    assert ask(f"{broker.admin_url}/admin/v2/{path}", "PUT").status == 204
    for policy, value in policies.items():
        assert ask(f"{broker.admin_url}/admin/v2/{path}/{policy}", "POST", value).status == 204
    return path


def post(broker: Any, path: str, *messages: Any, **fields: Any) -> Any:
    """Return status and document of a request with these messages, texts being payloads."""
    items = [{"payload": each} if isinstance(each, str) else each for each in messages]
    found = ask(f"{broker.admin_url}/topics/{path}", "POST", {"messages": items, **fields})
    return found.status, found.document


def results(answer: Any) -> list[tuple[int, str]]:
    status, document = answer
    assert status == 200, document
    return [(each["errorCode"], each.get("errorMsg", "")) for each in document["messagePublishResults"]]


def reason(answer: Any, status: int) -> str:
    assert answer[0] == status, answer
    found: str = answer[1]["reason"]
    return found


def schema(kind: str, definition: str = "") -> str:
    return json.dumps({"type": kind, "schema": base64.b64encode(definition.encode()).decode()})


def test_a_message_that_does_not_fit_has_its_own_error(broker, topic):
    found = results(post(broker, topic, "1", "x", "2", valueSchema=schema("INT32")))
    assert [code for code, _ in found] == [0, 2, 0]
    assert "'x' is not a whole number" in found[1][1]


def test_messages_have_the_version_of_their_schema(broker, topic):
    definitions = [
        json.dumps({"type": "record", "name": "R", "fields": [{"name": name, "type": "int", "default": 0}]})
        for name in ("a", "b")
    ]
    for number, definition in enumerate(definitions):
        assert post(broker, topic, "{}", valueSchema=schema("JSON", definition))[1]["schemaVersion"] == number
    assert post(broker, topic, "{}", schemaVersion=0)[1]["schemaVersion"] == 0
    assert "version 9 not found" in reason(post(broker, topic, "{}", schemaVersion=9), 404)
    with broker.client() as client:
        reader = client.create_reader(topic.replace("/", "://", 1), geminga.MessageId.earliest)
        versions = [
            int.from_bytes(reader.read_next(9000).schema_version().encode("latin-1")) for _ in range(3)
        ]
    assert versions == [0, 1, 0]
    assert "Incompatible schema" in reason(post(broker, topic, "x"), 409)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({}, "needs a payload"),
        ({"payload": {}}, "payload must be a text"),
        ({"payload": "x", "properties": []}, None),
        ({"payload": "x", "properties": [1]}, "properties must be"),
        ({"payload": "x", "key": "\ud800"}, "cannot be built"),
        ({"payload": "x", "eventTime": str(1 << 64)}, "eventTime=18446744073709551616 is not allowed"),
        ({"payload": "x", "eventTime": 1, "deliverAfterMs": (1 << 63) - 1}, "cannot be built"),
        ({"payload": "x", "replicationClusters": "abc"}, "must be a list"),
        ({"payload": "x", "replicationClusters": [5]}, "cannot be built"),
        ({"payload": "x", "sequenceId": 1 << 63}, "sequenceId=9223372036854775808 is not allowed"),
        ({"payload": "x", "deliverAt": 5}, "need an eventTime"),
        ({"payload": "x", "deliverAfterMs": 5}, "need an eventTime"),
    ],
)
def test_a_malformed_message_refuses_the_request_before_any_is_published(broker, topic, message, expected):
    answer = post(broker, topic, "first", message)
    if expected is None:
        assert len(results(answer)) == 2
        return
    assert expected in reason(answer, 400)
    stats = ask(f"{broker.admin_url}/admin/v2/{topic}/stats").document
    assert stats["msgInCounter"] == 0


def test_what_is_wrong_with_a_request(broker, topic):
    assert "not found" in reason(post(broker, "persistent/public/default/missing", "x"), 404)
    assert "not found" in reason(post(broker, "non-persistent/public/default/missing", "x"), 404)
    assert "does not exist" in reason(post(broker, "persistent/public/none/t", "x"), 404)
    assert "PROTOBUF_NATIVE" in reason(post(broker, topic, "x", valueSchema=schema("PROTOBUF_NATIVE")), 400)
    assert "is no schema" in reason(post(broker, topic, "x", valueSchema="{x"), 400)
    assert "eventTime='soon'" in reason(post(broker, topic, {"payload": "x", "eventTime": "soon"}), 400)
    assert "producerName" in reason(post(broker, topic, "x", producerName="x" * 2000), 412)
    assert "at most 10000" in reason(post(broker, topic, *[""] * (MESSAGES_MAX + 1)), 413)
    assert reason(post(broker, topic, "x" * (6 << 20)), 413)
    assert "suffix" in reason(post(broker, f"{made(broker, 'p-partition-0')}/partitions/0", "x"), 400)


def test_refusals_of_the_topic_are_errors_of_messages(broker):
    rate = {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1}
    first, *_, last = results(post(broker, made(broker, "slow", publishRate=rate), *"12345"))
    assert (first, last[0]) == ((0, ""), 1)
    assert "publish rate" in last[1]
    found = results(post(broker, made(broker, "large"), "x" * 250_000, "small"))
    assert [code for code, _ in found] == [2, 0]
    assert "exceeds the topic's limit" in found[0][1]


def test_many_messages_of_one_request_are_all_stored(broker, topic):
    status, document = post(broker, topic, *map(str, range(2000)))
    assert status == 200
    ids = [each["messageId"].split(":") for each in document["messagePublishResults"]]
    assert len({(ledger, int(entry)) for ledger, entry, _ in ids}) == 2000


def test_deduplication_drops_only_ids_that_are_given_again(broker):
    path = made(broker, "dedup", deduplicationEnabled=True)
    with broker.client() as client:
        reader = client.create_reader("persistent://public/default/dedup", geminga.MessageId.earliest)
        for _ in range(2):
            results(post(broker, path, "a", "b", "c"))
        once = {"payload": "d", "sequenceId": 5}
        ids = [post(broker, path, once, producerName="mine")[1]["messagePublishResults"][0] for _ in range(2)]
        assert ids[1]["messageId"] == "-1:-1:-1"
        assert [reader.read_next(9000).data() for _ in range(7)] == [b"a", b"b", b"c"] * 2 + [b"d"]
        assert not reader.has_message_available()
        client.create_producer("persistent://public/default/dedup", producer_name="connected")
        ((code, text),) = results(post(broker, path, "e", producerName="connected"))
        assert code == 2
        assert "a producer named connected is connected" in text


def test_a_producer_without_a_free_sequence_id_has_its_error_in_the_answer(broker):
    path = made(broker, "last-id", deduplicationEnabled=True)
    last = {"payload": "a", "sequenceId": (1 << 63) - 1}
    first, second = results(post(broker, path, last, "b", producerName="me"))
    assert (first, second[0]) == ((0, ""), 2)
    assert "used the last sequence id" in second[1]


def test_required_encryption_excludes_topics_that_store_nothing(broker):
    assert ask(f"{broker.admin_url}/admin/v2/namespaces/public/encrypted", "PUT").status == 204
    url = f"{broker.admin_url}/admin/v2/namespaces/public/encrypted/encryptionRequired"
    assert ask(url, "POST", True).status == 204
    with broker.client() as client:
        client.subscribe("non-persistent://public/encrypted/t", "s")
        ((code, text),) = results(post(broker, "non-persistent/public/encrypted/t", "x"))
    assert code == 2
    assert "must be encrypted" in text


def test_no_schema_is_left_of_a_topic_that_was_deleted_meanwhile(broker, topic, monkeypatch):
    url, read = f"{broker.admin_url}/admin/v2/{topic}", topic_messages.read_messages

    def read_late(body: Any) -> Any:
        assert ask(url, "DELETE").status == 204
        return read(body)

    monkeypatch.setattr(topic_messages, "read_messages", read_late)
    assert "not found" in reason(post(broker, topic, "1", valueSchema=schema("INT32")), 404)
    assert ask(url, "PUT").status == 204
    monkeypatch.setattr(topic_messages, "read_messages", read)
    assert results(post(broker, topic, "x")) == [(0, "")]  # INT32 would be incompatible


async def post_to(server: BrokerServer, *payloads: str) -> Any:
    url = f"http://127.0.0.1:{server.settings.web_port}"
    await asyncio.to_thread(ask, f"{url}/admin/v2/persistent/public/default/t", "PUT")
    messages = {"messages": [{"payload": each} for each in payloads]}
    return await asyncio.to_thread(ask, f"{url}/topics/persistent/public/default/t", "POST", messages)


async def test_messages_wait_while_too_many_bytes_are_pending(monkeypatch):
    async with serving() as server:
        backpressure = server.broker.backpressure
        pending = backpressure.pending_bytes_max

        def store_reports() -> None:
            backpressure.pending_bytes -= pending

        backpressure.pending_bytes += pending
        monkeypatch.setattr(server.unanswered, "check", store_reports)
        answer = await post_to(server, "a", "b")
        assert [each["errorCode"] for each in answer.document["messagePublishResults"]] == [0, 0]
        assert backpressure.pending_bytes <= 0


async def test_messages_that_found_no_room_in_time_may_be_sent_again(monkeypatch):
    async with serving() as server:
        monkeypatch.setattr(topic_messages, "DONE_SECONDS_MAX", 0.0)
        server.broker.backpressure.pending_bytes += server.broker.backpressure.pending_bytes_max
        found = (await post_to(server, "a", "b")).document["messagePublishResults"]
        assert [each["errorCode"] for each in found] == [1, 1]
        assert "cannot save as fast" in found[0]["errorMsg"]


async def test_requests_are_parsed_a_few_at_a_time(monkeypatch):
    received, parsed, go_on = 0, 0, threading.Event()
    sent, messages = topic_messages.sent, topic_messages.read_messages

    async def body_received(request: Any) -> bytes:
        nonlocal received
        found = await sent(request)
        received += 1
        return found

    def parse(body: Any) -> Any:
        nonlocal parsed
        parsed += 1
        assert go_on.wait(60)
        return messages(body)

    monkeypatch.setattr(topic_messages, "AT_ONCE", 1)
    monkeypatch.setattr(topic_messages, "sent", body_received)
    monkeypatch.setattr(topic_messages, "read_messages", parse)
    async with serving() as server:
        asking = [asyncio.create_task(post_to(server, "a")) for _ in range(3)]
        await eventually_async(lambda: received == 3 and parsed == 1)
        await loop_turns()
        assert parsed == 1
        go_on.set()
        assert [(await each).status for each in asking] == [200] * 3


@pytest.mark.parametrize(("ends", "status"), [(True, 503), (False, 504)])
async def test_a_store_that_does_not_report_is_not_waited_for_without_end(monkeypatch, ends, status):
    async with serving() as server:
        loop = asyncio.get_running_loop()

        def publish(*_arguments: Any) -> None:
            if ends:
                loop.call_soon(server.unanswered.end)

        monkeypatch.setattr(http, "DONE_SECONDS_MAX", 30.0 if ends else 0.1)
        monkeypatch.setattr(PersistentTopic, "publish", publish)
        answer = await post_to(server, "a")
        assert answer.status == status
        assert "may still" in answer.document["reason"]


def test_a_message_for_a_non_persistent_topic_reaches_its_consumers(broker):
    name = "non-persistent/public/default/np"
    with broker.client() as client:
        consumer = client.subscribe(name.replace("/", "://", 1), "s")
        assert post(broker, name, "now")[1]["messagePublishResults"][0]["messageId"] == "0:0:-1"
        assert consumer.receive(9000).data() == b"now"


def test_delays_count_from_the_event_time(broker, topic):
    hour, now = 3_600_000, int(time.time() * 1000)
    with broker.client() as client:
        consumer = client.subscribe(topic.replace("/", "://", 1), "s", geminga.ConsumerType.Shared)
        delays = {"deliverAfterMs": hour}, {"deliverAt": now + hour}, {"deliverAfterMs": 1}
        sent = [{"payload": str(number), "eventTime": now, **each} for number, each in enumerate(delays)]
        assert results(post(broker, topic, *sent)) == [(0, "")] * 3
        received = consumer.receive(9000)
        assert (received.data(), received.event_timestamp()) == (b"2", now)
        stats = ask(f"{broker.admin_url}/admin/v2/{topic}/stats").document
        assert stats["subscriptions"]["s"]["msgDelayed"] == 2
