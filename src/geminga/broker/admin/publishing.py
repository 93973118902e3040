"""Publishing of single messages over REST.

The message is stored through the topic, with its quotas, limits and deduplication. The producer is
named `PRODUCER_NAME`, unless the message names it, and is not listed among the topic's producers.
"""

import asyncio
from typing import Final, cast

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.runtime.memory_backpressure import MemoryBackpressure
from geminga.broker.runtime.peer import RateHold
from geminga.broker.topics.persistent import PersistentTopic
from geminga.broker.topics.producer import Producer
from geminga.broker.topics.topic import Topic
from geminga.wire.frames import SendFrame
from geminga.wire.metadata import build_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

PRODUCER_NAME: Final = "geminga-console"
SEQUENCE_ID_MAX: Final = (1 << 63) - 1
"""Largest sequence id: Java's are signed."""
UNCONFIRMED: Final = "the store did not confirm in time; what was sent may still be stored"
Stored = tuple[int, int]
"""Ledger and entry id."""


class _WebProducer:
    """Producer of one message for `PersistentTopic.publish`: its receipt or error completes ``stored``."""

    pending = messages_in = bytes_in = 0

    def __init__(
        self, topic: Topic, name: str, stored: asyncio.Future[Stored], backpressure: MemoryBackpressure
    ) -> None:
        self._topic = topic
        self.name = name
        self._stored = stored
        self._backpressure = backpressure
        self.peer = self

    def slow_down(self, limit: RateHold) -> None:
        """Do nothing: the next request is another producer's."""

    def taken(self, messages: int, size: int, *, chunk: bool) -> None:
        self._backpressure.pending_bytes += size

    def settled(self, size: int, entries: int) -> None:
        self._backpressure.pending_bytes -= size

    def receipt(self, sequence_id: int, highest_sequence_id: int, ledger_id: int, entry_id: int) -> None:
        if not self._stored.done():
            self._stored.set_result((ledger_id, entry_id))

    def error(self, sequence_id: int, code: int, reason: str) -> None:
        self._fail(AdminRefusal(503 if code == pb.PersistenceError else 409, reason))

    def hold(self) -> None:
        self._fail(AdminRefusal(503, f"the store refuses messages for {self._topic.text} at present"))

    def _fail(self, refusal: AdminRefusal) -> None:
        if not self._stored.done():
            self._stored.set_exception(refusal)


def publish(
    topic: Topic, metadata: pb.MessageMetadata, payload: bytes, backpressure: MemoryBackpressure
) -> asyncio.Future[Stored]:
    """Publish a message; return the future of its id. ``metadata`` is completed: it may name the producer and
    have a sequence id. Raises `AdminRefusal`: 409 if producers are stopped or have to encrypt, one is
    exclusive, or messages are deduplicated and a producer of this name is connected or has no id left; 413 if
    the message is too large, 429 above the publish rate, 503 at the limit of pending bytes."""
    if backpressure.pending_bytes >= backpressure.pending_bytes_max:
        raise AdminRefusal(503, "the store cannot save as fast as messages are published: try again")
    if topic.policies.encryption_required:
        raise AdminRefusal(409, f"messages for {topic.text} must be encrypted, which only producers can do")
    stored: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()
    quota = topic.check_quota()
    if quota is not None:
        raise AdminRefusal(409, f"producers of {topic.text} are stopped: {quota}")
    if owner := topic.access.first_owner:
        raise AdminRefusal(409, f"{topic.text} has an exclusive producer: {owner}")

    wait = max((limit.wait(topic.scheduler.now) for limit in topic.rate_limits.publish), default=0.0)
    if wait > 0:
        raise AdminRefusal(429, f"the publish rate of {topic.text} is used up: try again in {wait:.1f} s")
    metadata.publish_time = topic.scheduler.now_ms
    metadata.uncompressed_size = len(payload)
    name = metadata.producer_name = metadata.producer_name or PRODUCER_NAME
    dedup = topic.dedup if isinstance(topic, PersistentTopic) else None
    if dedup is not None and name in topic.access.producers:
        raise AdminRefusal(409, f"{topic.text} drops duplicates, and a producer named {name} is connected")
    if not metadata.sequence_id:
        last = -1 if dedup is None else dedup.last_pushed(name)
        if last >= SEQUENCE_ID_MAX:
            raise AdminRefusal(409, f"producer {name} of {topic.text} has used the last sequence id")
        metadata.sequence_id = max(metadata.publish_time, last + 1)
    entry = build_entry(metadata.SerializeToString(), payload)
    limit = topic.policies.max_message_size
    if 0 < limit < len(entry):
        raise AdminRefusal(413, f"the message of {len(entry)} bytes exceeds the topic's limit of {limit}")
    producer = cast(Producer, _WebProducer(topic, name, stored, backpressure))
    topic.publish(producer, SendFrame(0, metadata.sequence_id, 1, 0, entry))
    return stored
