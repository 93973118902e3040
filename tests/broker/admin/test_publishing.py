"""Single messages published over REST."""

import asyncio
from typing import Any

import pytest
from web_requests import ask

import geminga
from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.publishing import PRODUCER_NAME, publish
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import NAME


def send(harness: Any, payload: bytes = b"x", key: str | None = None, **properties: str) -> tuple[int, int]:
    async def run() -> tuple[int, int]:
        metadata = pb.MessageMetadata(partition_key=key)
        for name, value in properties.items():
            metadata.properties.add(key=name, value=value)
        backpressure = harness.broker.backpressure
        stored = publish(harness.actions.topic(NAME), metadata, payload, backpressure)
        assert stored.done() or backpressure.pending_bytes > len(payload)
        harness.poll()
        assert backpressure.pending_bytes == 0
        return await asyncio.wait_for(stored, 60)

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def topic(harness):
    harness.actions.create(NAME, lambda _: None)
    harness.poll()


def test_a_message_is_stored_and_delivered(harness):
    peer = harness.consumer(str(NAME))
    ledger_id, entry_id = send(harness, b"hello", "k", colour="red")
    (message,) = peer.messages()
    assert (message.ledger_id, message.entry_id) == (ledger_id, entry_id)
    found = harness.actions.topic(NAME)
    assert found.messages_in == 1
    assert PRODUCER_NAME not in [each.name for each in found.access.producers.values()]


async def test_a_message_whose_earlier_copy_is_pending_may_be_sent_again(harness):
    harness.broker.namespaces.set_topic_policy(NAME, "deduplicationEnabled", True, lambda _: None)
    harness.poll()

    topic, metadata = harness.actions.topic(NAME), pb.MessageMetadata(sequence_id=5)
    first, second = (publish(topic, metadata, b"x", harness.broker.backpressure) for _ in range(2))
    harness.poll()
    await first
    with pytest.raises(AdminRefusal, match="Cannot determine whether") as refused:
        await second
    assert refused.value.status == 503


def test_required_encryption_excludes_it(harness):
    harness.broker.namespaces.set_policy("public", "default", "encryption_required", True, lambda _: None)
    harness.poll()
    with pytest.raises(AdminRefusal, match="must be encrypted"):
        send(harness)


def test_the_limit_of_pending_bytes_stops_it(harness):
    backpressure = harness.broker.backpressure
    backpressure.pending_bytes = backpressure.pending_bytes_max
    with pytest.raises(AdminRefusal, match="cannot save as fast") as refused:
        send(harness)
    assert refused.value.status == 503


def test_a_quota_stops_it(harness):
    limit = {"destination_storage": {"limitSize": 10, "policy": "producer_exception"}}
    harness.broker.namespaces.set_topic_policy(NAME, "backlog_quota_map", limit, lambda _: None)
    harness.peer().subscribe(str(NAME), permits=0)
    send(harness, b"x" * 100)
    harness.advance(60)
    with pytest.raises(AdminRefusal, match="are stopped"):
        send(harness)


def test_the_publish_rate_stops_it_for_a_while(harness):
    rate = {"standalone": {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1}}
    harness.broker.namespaces.set_topic_policy(NAME, "publishMaxMessageRate", rate, lambda _: None)
    harness.poll()
    send(harness)
    with pytest.raises(AdminRefusal, match="publish rate") as refused:
        send(harness)
    assert refused.value.status == 429
    harness.advance(60)
    send(harness)


def test_a_terminated_topic_refuses_it(harness):
    harness.actions.topic(NAME).terminate(lambda _: None)
    harness.poll()
    with pytest.raises(AdminRefusal, match="terminated"):
        send(harness)


def test_an_exclusive_producer_excludes_it(harness):
    harness.peer().producer(str(NAME), producer_name="owner", producer_access_mode=pb.Exclusive)
    with pytest.raises(AdminRefusal, match="exclusive producer: owner"):
        send(harness)


def test_the_limit_of_a_message_applies_to_it(make_harness):
    harness = make_harness(max_message_size=1024)
    harness.actions.create(NAME, lambda _: None)
    harness.poll()
    send(harness, b"x" * 900)
    with pytest.raises(AdminRefusal, match="exceeds the topic's limit of 1024"):
        send(harness, b"x" * 1024)


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"payload": "\ud800"}, "payload"),
        ({"payload": "x", "key": "\ud800"}, "key"),
        ({"payload": "x", "properties": {"\ud800": "x"}}, "properties"),
        ({"payload": "x", "properties": {"x": "\ud800"}}, "properties"),
    ],
)
def test_half_a_surrogate_pair_is_refused(wanted, field):
    with geminga.embedded() as broker:
        for path, body in (("partitions", 3), ("message", wanted)):
            method = "POST" if path == "message" else "PUT"
            answer = ask(f"{broker.admin_url}/admin/v2/persistent/public/default/t/{path}", method, body)
    assert answer.status == 412
    assert answer.document == {"reason": f"{field} is not allowed: it contains half a surrogate pair"}
