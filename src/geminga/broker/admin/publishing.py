"""Publishing of single messages over REST: for trying things out, and for messages that are sent back.

The message is stored through the topic, with its quotas, limits and deduplication. The producer is
named `PRODUCER_NAME` and is not listed among the topic's producers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.peer import Peer, PeerOutput, RateHold
from geminga.broker.topics.persistent import PersistentTopic
from geminga.broker.topics.producer import Producer
from geminga.ledger.api import Buffer
from geminga.wire.frames import SendFrame
from geminga.wire.metadata import build_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

PRODUCER_NAME: Final = "geminga-console"
Stored = tuple[int, int]
"""Ledger and entry id."""


class _WebOutput:
    """Output of a peer that is no connection: nothing is written."""

    writable = True

    def write(self, data: Buffer) -> None: ...

    def close(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class _WebPeer:
    """Peer of a producer behind a web request."""

    client_version = "console"
    pending_bytes = 0

    def __init__(self, address: str, closed: Callable[[], None]) -> None:
        self.address = address
        self.output: PeerOutput = _WebOutput()
        self._closed = closed

    def probe(self, decided: Callable[[], None]) -> None:
        decided()

    def close(self) -> None: ...

    def publish_started(self, size: int) -> None: ...

    def publish_finished(self, size: int) -> None: ...

    def hold(self, why: int) -> None: ...

    def slow_down(self, limit: RateHold) -> None: ...

    def release(self, why: int) -> None: ...

    def send_error(self, producer_id: int, sequence_id: int, code: int, reason: str) -> None: ...

    def active_consumer_change(self, consumer_id: int, active: bool) -> None: ...

    def end_of_topic(self, consumer_id: int) -> None: ...

    def producer_closed(self, producer_id: int, producer: object) -> None:
        self._closed()

    def producer_lost(self, producer_id: int, producer: object) -> None:
        self._closed()

    def consumer_closed(self, consumer_id: int, consumer: object) -> None: ...


class _WebProducer(Producer):
    """Producer of one message, whose receipt or error completes ``stored``."""

    __slots__ = ("_stored",)

    def __init__(self, topic: PersistentTopic, peer: Peer, stored: asyncio.Future[Stored]) -> None:
        scheduler = topic.scheduler
        super().__init__(
            peer, topic, producer_id=0, name=PRODUCER_NAME, epoch=0, user_provided_name=True,
            access_mode=pb.ProducerAccessMode.Shared, topic_epoch=None, encrypted=False, metadata={},
            now=scheduler.now, now_ms=scheduler.now_ms,
        )  # fmt: skip
        self._stored = stored

    def receipt(self, sequence_id: int, highest_sequence_id: int, ledger_id: int, entry_id: int) -> None:
        if not self._stored.done():
            self._stored.set_result((ledger_id, entry_id))

    def error(self, sequence_id: int, code: int, reason: str) -> None:
        if not self._stored.done():
            self._stored.set_exception(AdminRefusal(409, reason))


def publish(
    topic: PersistentTopic,
    payload: bytes,
    key: str | None,
    properties: Mapping[str, str],
    address: str,
    schema_version: bytes = b"",
) -> asyncio.Future[Stored]:
    """Publish a message; return the future of its id. Raises `AdminRefusal`: 409 if producers are
    stopped or one is exclusive, 413 if the message is too large, 429 above the publish rate."""
    stored: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()
    quota = topic.check_quota()
    if quota is not None:
        raise AdminRefusal(409, f"producers of {topic.text} are stopped: {quota}")
    if owner := topic.access.first_owner:
        raise AdminRefusal(409, f"{topic.text} has an exclusive producer: {owner}")

    wait = max((limit.wait(topic.scheduler.now) for limit in topic.rate_limits.publish), default=0.0)
    if wait > 0:
        raise AdminRefusal(429, f"the publish rate of {topic.text} is used up: try again in {wait:.1f} s")

    def closed() -> None:
        if not stored.done():
            stored.set_exception(AdminRefusal(503, f"the store refuses messages for {topic.text} at present"))

    now_ms = topic.scheduler.now_ms
    sequence_id = max(now_ms, topic.last_sequence_id(PRODUCER_NAME) + 1)
    metadata = pb.MessageMetadata(
        producer_name=PRODUCER_NAME, sequence_id=sequence_id, publish_time=now_ms, partition_key=key
    )
    if schema_version:
        metadata.schema_version = schema_version
    for name, value in properties.items():
        metadata.properties.add(key=name, value=value)
    entry = build_entry(metadata.SerializeToString(), payload)
    limit = topic.policies.max_message_size
    if 0 < limit < len(entry):
        raise AdminRefusal(413, f"the message of {len(entry)} bytes exceeds the topic's limit of {limit}")
    producer = _WebProducer(topic, _WebPeer(address, closed), stored)
    topic.publish(producer, SendFrame(0, sequence_id, 1, 0, entry))
    return stored
