"""Effectively-once processing: each result is stored exactly once, by sequence ids and deduplication.

A result's sequence id is made of its input message's position: entry, index in the batch, number of the
result. The producer's name consists of the function's name and the input's topic and ledger, so that the ids
of a producer increase in reading order and do not overflow. A broker with deduplication stores the highest id
of each name. After a restart, unacknowledged messages are read again in order, and:

* Results up to the producer's ``last_sequence_id`` are not sent again. The broker's deduplication does not
  suffice: it checks a batch by its first message, and would drop a batch of which it has only the first half.
* A failed call is repeated before the next result is sent: the broker rejects ids below the highest.
* No result is sent behind a failed one, nor behind an entry without a receipt that is larger, or delayed
  longer, than all before: the broker may refuse it, and a restart omits it if a later id is stored.
* A partition is read by one instance at a time (Failover subscription). After a failover, the broker admits
  the new instance's producer once the old instance has closed its own, after `IDLE_SECONDS` without use.

A broker without deduplication forgets the ids: at the start a producer is opened twice to check that its
first id is remembered; if not, the function ends with an error.
"""

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from geminga import Result
from geminga.asyncio import Client
from geminga.errors import InvalidConfiguration, MessageTooBig, ProducerBusy, PulsarException
from geminga.functions.calling import CallOutcome
from geminga.functions.context import Publish
from geminga.functions.result_producers import (
    METADATA_BYTES,
    close_batches_soon,
    failure_of,
    open_producer,
    payload_bytes_max,
    producer_arguments,
)
from geminga.functions.sending import PendingResults, tell
from geminga.wire.hashing import partition_of

T = TypeVar("T")

logger = logging.getLogger("geminga.functions")

IDLE_SECONDS = 5.0
_BUSY_SECONDS = 0.2
_RESULT_BITS = 15
_INDEX_BITS = 20
RESULTS_MAX = 1 << _RESULT_BITS
"""Maximum results of one message."""
_INDEX_MAX = 1 << _INDEX_BITS
_ENTRY_MAX = 1 << (63 - _RESULT_BITS - _INDEX_BITS)


def sequence_id(entry_id: int, batch_index: int, result: int) -> int:
    """Return the sequence id of a result; it increases with entry, index and result. Raises
    `InvalidConfiguration` beyond 2^28 entries of a ledger, 2^20 messages of a batch or 2^15 results of a
    message."""
    index = max(batch_index, 0)
    if result >= RESULTS_MAX or index >= _INDEX_MAX or entry_id >= _ENTRY_MAX:
        raise InvalidConfiguration(
            f"entry {entry_id}, batch index {index}, result {result}: effectively once takes "
            f"{_ENTRY_MAX} entries a ledger, {_INDEX_MAX} messages a batch and {RESULTS_MAX} results each"
        )
    return (entry_id << _INDEX_BITS | index) << _RESULT_BITS | result


class _OutputProducer:
    """Producer with a fixed name on an output topic or partition."""

    def __init__(self, producer: Any) -> None:
        self.producer = producer
        self.stored = self.pushed = producer.last_sequence_id()
        self.in_flight = 0
        self.used_at = 0.0


class EffectivelyOnce:
    """Sends results in order, each at most once."""

    in_place = True

    def __init__(self, settling: PendingResults, client: Client, output_schema: Any) -> None:
        self._settling = settling
        self._client = client
        self._settings = settling.shared.settings
        self._schema = output_schema
        self._lanes: dict[tuple[str, str, int], _OutputProducer] = {}
        self._confirmed: dict[tuple[str, str, int], int] = {}
        self._verified: set[str] = set()
        self._size_max = 5 * 1024 * 1024 - METADATA_BYTES
        self._partitions: dict[str, list[str]] = {}
        self._tending = asyncio.get_running_loop().create_task(self._tend())
        self._lock = asyncio.Lock()

    async def emit(self, outcomes: Sequence[CallOutcome]) -> None:
        async with self._lock:
            for outcome in outcomes:
                await self._send(outcome)
        if not self._settling.consumer.queue:
            # No more results are queued that could join the batches.
            for lane in self._lanes.values():
                if lane.in_flight:
                    close_batches_soon(lane.producer)

    async def _send(self, outcome: CallOutcome) -> None:
        settling, message = self._settling, outcome.message
        place = message.message_id()
        publishes = outcome.as_publishes(self._settings.output or "")
        left = [1]

        def one(error: Exception | None) -> None:
            if error is not None:
                # Later results may be stored already: do not acknowledge this one, and send nothing more.
                settling.end(error)
                return
            left[0] -= 1
            if not left[0]:
                settling.done(message)

        state = settling.shared.state
        for key, payload in outcome.changes:
            assert state is not None
            left[0] += 1
            state.producer.send_async(payload, _then(one, state.producer.topic()), partition_key=key)
        for number, publish in enumerate(publishes):
            wanted = sequence_id(place.entry_id(), place.batch_index(), number)
            names = self._partitions.get(publish.topic, ())
            topic = names[0] if len(names) == 1 else await self._partition(publish, place)
            lane_key = (topic, *_origin(message))
            lane = await self._lane(lane_key, publish.topic)
            if settling.fatal is not None:
                return
            if wanted <= lane.stored:
                continue
            if wanted <= lane.pushed:
                await lane.producer.flush()  # delivered again while its result was on its way
                if settling.fatal is not None:
                    return
                continue
            lane.pushed = wanted
            lane.in_flight += 1
            left[0] += 1
            lane.producer.send_async(
                publish.payload, self._receipt(lane, lane_key, wanted, publish, one),
                **{**publish.options, "sequence_id": wanted},
            )  # fmt: skip
        one(None)

    def _receipt(
        self, lane: _OutputProducer, key: tuple[str, str, int], wanted: int, publish: Publish, one: Any
    ) -> Any:
        metrics = self._settling.shared.metrics

        def receipted(result: Any, message_id: Any) -> None:
            lane.in_flight -= 1
            error = _error(result, key[0], failure_of(lane.producer))
            if error is None:
                metrics.published += 1
                self._confirmed[key] = wanted
            tell(publish, error, message_id)
            one(error)

        return receipted

    async def check(self, outcome: CallOutcome) -> None:
        """Check a call's results before any is sent, so that bad results fail their own call only. Raises
        `MessageTooBig`, `InvalidConfiguration`, and the broker's errors for topics that the call chose."""
        limit = self._size_max
        if outcome.plain and type(outcome.payload) is bytes and len(outcome.payload) <= limit:
            return
        place = outcome.message.message_id()
        publishes = outcome.as_publishes(self._settings.output or "")
        if publishes:
            sequence_id(place.entry_id(), place.batch_index(), len(publishes) - 1)
        for publish in publishes:
            size = len(publish.payload) if isinstance(publish.payload, (bytes, bytearray)) else 0
            size += sum(len(k) + len(v) for k, v in publish.options.get("properties", {}).items())
            self.check_size(size)
            if publish.topic != self._settings.output:
                topic = await self._partition(publish, place)
                async with self._lock:
                    await self._lane((topic, *_origin(outcome.message)), publish.topic)

    def check_size(self, size: int) -> None:
        """Raise `MessageTooBig` if the results are too big. May run on any thread."""
        if size > self._size_max:
            raise MessageTooBig(f"a result of {size} bytes; the broker takes {self._size_max}")

    async def _partition(self, publish: Publish, place: Any) -> str:
        names = self._partitions.get(publish.topic)
        if names is None:
            names = await self._of_output(
                publish.topic, lambda: self._client.get_topic_partitions(publish.topic)
            )
            self._partitions[publish.topic] = names
        if len(names) == 1:
            return names[0]
        key = publish.options.get("partition_key")
        if key is not None:
            return names[partition_of(key, len(names), "BoostHash")]
        # Use the same partition after a restart.
        return names[zlib.crc32(f"{place.ledger_id()}:{place.entry_id()}".encode()) % len(names)]

    async def _of_output(self, topic: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``ask``, retried for the output; `check` tried topics chosen by calls."""
        if topic == self._settings.output:
            return await self._settling.patiently(topic, ask)
        return await ask()

    async def _lane(self, key: tuple[str, str, int], topic: str) -> _OutputProducer:
        lane = self._lanes.get(key)
        now = asyncio.get_running_loop().time()
        if lane is not None and topic not in self._verified and lane.pushed > lane.stored:
            await self._close_lane(key, lane)
            lane = None
        if lane is None:
            for other in [k for k in self._lanes if k[:2] == key[:2]]:
                # Results of an earlier ledger are sent before.
                await self._close_lane(other, self._lanes[other])
                self._confirmed.pop(other, None)
            lane = await self._open_lane(key, topic)
        lane.used_at = now
        return lane

    async def _open_lane(self, key: tuple[str, str, int], topic: str) -> _OutputProducer:
        name = f"{self._settings.full_name}|{key[1]}|{key[2]}"
        schema = self._schema if topic == self._settings.output else None
        said = False
        while True:
            try:
                producer = await self._of_output(
                    topic,
                    lambda: open_producer(
                        self._client, key[0], name, schema=schema, stops_at_failure=True,
                        **{**producer_arguments(self._settings), "max_pending_messages": 1_000_000},
                    ),
                )  # fmt: skip
                break
            except ProducerBusy:
                if not said:
                    logger.info("%s is still used by another instance; waiting for it", name)
                    said = True
                await asyncio.sleep(_BUSY_SECONDS)
        lane = self._lanes[key] = _OutputProducer(producer)
        self._size_max = payload_bytes_max(producer)
        confirmed = self._confirmed.get(key, -1)
        if lane.stored >= 0:
            self._verified.add(topic)
        if lane.stored < confirmed:
            self._remembers_less(lane, topic, confirmed)
        return lane

    def _remembers_less(self, lane: _OutputProducer, topic: str, confirmed: int) -> None:
        """Handle a broker that forgot ids of this run. Raises `InvalidConfiguration` if it never remembers
        any."""
        if topic not in self._verified:
            error = InvalidConfiguration(
                f"guarantee='EFFECTIVELY_ONCE' is not allowed: the broker does not deduplicate {topic}; "
                "allowed: an output topic with deduplication (geminga topics set-deduplication TOPIC on, or "
                "geminga standalone --deduplication)"
            )
            self._settling.end(error)
            raise error
        if lane.stored >= 0:
            logger.warning(
                "%s has lost results of %s that it had confirmed, behind sequence id %d up to %d: it came "
                "back with older data", topic, lane.producer.producer_name(), lane.stored, confirmed,
            )  # fmt: skip
        else:
            # Brokers forget producers after a long absence. The next check shows whether ids are remembered.
            self._verified.discard(topic)
        lane.stored = lane.pushed = confirmed

    async def _close_lane(self, key: tuple[str, str, int], lane: _OutputProducer) -> None:
        await lane.producer.flush()
        self._lanes.pop(key, None)
        await lane.producer.end()

    async def _tend(self) -> None:
        """Close idle producers: another instance may read the partition now."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(IDLE_SECONDS / 4)
            try:
                async with self._lock:
                    for key, lane in list(self._lanes.items()):
                        if not lane.in_flight and loop.time() - lane.used_at > IDLE_SECONDS:
                            await self._close_lane(key, lane)
            except PulsarException as error:
                logger.warning("closing an idle producer failed: %s", error)

    async def close(self) -> None:
        self._tending.cancel()
        for lane in self._lanes.values():
            lane.producer.abort()


def _origin(message: Any) -> tuple[str, int]:
    return message.topic_name(), int(message.message_id().ledger_id())


def _error(result: Any, topic: str, cause: Exception | None = None) -> Exception | None:
    if result is Result.Ok:
        return None
    return PulsarException(f"a result could not be published to {topic}: {cause or result}")


def _then(one: Any, topic: str) -> Any:
    return lambda result, _message_id: one(_error(result, topic))
