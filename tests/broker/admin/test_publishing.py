"""Single messages published over REST."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.publishing import PRODUCER_NAME, publish
from geminga.ids import TopicName

NAME = TopicName.parse("persistent://public/default/t")


def send(harness: Any, payload: bytes = b"x", key: str | None = None, **properties: str) -> tuple[int, int]:
    async def run() -> tuple[int, int]:
        stored = publish(harness.actions.topic(NAME), payload, key, properties, "10.0.0.1:1")
        harness.poll()
        return await asyncio.wait_for(stored, 10)

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def topic(harness: Any) -> None:
    harness.actions.create(NAME, lambda _error: None)
    harness.poll()


def test_a_message_is_stored_and_delivered(harness: Any) -> None:
    peer = harness.peer()
    peer.subscribe(str(NAME))
    ledger_id, entry_id = send(harness, b"hello", "k", colour="red")
    (message,) = peer.messages()
    assert (message.ledger_id, message.entry_id) == (ledger_id, entry_id)
    found = harness.actions.topic(NAME)
    assert found.messages_in == 1
    assert PRODUCER_NAME not in [each.name for each in found.access.producers.values()]


def test_deduplication_keeps_every_message(harness: Any) -> None:
    namespaces = harness.broker.namespaces
    namespaces.set_topic_policy(NAME, "deduplicationEnabled", True, lambda _error: None)
    harness.poll()
    assert len({send(harness) for _ in range(3)}) == 3


def test_a_quota_stops_it(harness: Any) -> None:
    limit = {"destination_storage": {"limitSize": 10, "policy": "producer_exception"}}
    harness.broker.namespaces.set_topic_policy(NAME, "backlog_quota_map", limit, lambda _error: None)
    harness.peer().subscribe(str(NAME), permits=0)
    send(harness, b"x" * 100)
    harness.advance(60)
    with pytest.raises(AdminRefusal, match="are stopped"):
        send(harness)


def test_a_terminated_topic_refuses_it(harness: Any) -> None:
    harness.actions.terminate(NAME, lambda _error: None)
    harness.poll()
    with pytest.raises(AdminRefusal, match="terminated"):
        send(harness)
