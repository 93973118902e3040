"""Step 1: producer of a topic, with one partition producer for each partition, routing, and shared limits.

A topic without partitions has one partition producer with index -1. Calls must not overlap; the caller holds
a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from geminga.errors import PulsarException
from geminga.ids import TopicName
from geminga.producer.backlog import Backlog, ByteBudget, Permits, partition_share
from geminga.producer.batching import CLOSED, Batch, KeyedBatches
from geminga.producer.message import OutgoingMessage
from geminga.producer.partition import PartitionProducer
from geminga.producer.ready_set import ReadySet
from geminga.producer.routing import Router
from geminga.producer.self_tuning import PartitionTuning, SelfTuning
from geminga.producer.settings import MAX_MESSAGES_LIMIT, CompressionType, ProducerSettings
from geminga.producer.states import ACCEPTING, ProducerState
from geminga.producer.statistics import ProducerStatistics, summed
from geminga.producer.unbatched_run import PAYLOAD_BYTES_MAX, RUN_BYTES_MAX, RUN_MESSAGES_MAX


class PartitionedProducer:
    """The partitions of one topic.

    ``hot`` is the batch that plain messages may join now; `batching.CLOSED` when they must be routed again,
    and always without ``plain_path`` (every message must then pass `add`). ``new_producer_id`` returns the
    client's ids; ``random`` numbers in [0, 1).
    """

    __slots__ = (
        "_current",
        "_new_producer_id",
        "_settings",
        "_topic",
        "hot",
        "memory",
        "partitions",
        "plain_path",
        "ready_set",
        "router",
        "shared",
        "tuning",
        "unstarted",
    )

    def __init__(
        self,
        *,
        topic: str,
        partitions: int,
        settings: ProducerSettings,
        memory: ByteBudget,
        new_producer_id: Callable[[], int],
        random: Callable[[], float],
        plain_path: bool = True,
    ) -> None:
        self._topic = TopicName.parse(topic)
        self._settings = settings
        self._new_producer_id = new_producer_id
        self.memory = memory
        self.ready_set = ReadySet()
        self.shared = Permits(settings.max_pending_messages_across_partitions if partitions else 0)
        budget = settings.latency_budget_seconds
        self.tuning = None if budget is None else SelfTuning(budget, memory.limit)
        self.router = Router(settings, random, self.tuning)
        self.hot: Batch = CLOSED
        self.plain_path = plain_path
        self._current: PartitionProducer | None = None
        """Partition of the last unkeyed message."""
        self.partitions: list[PartitionProducer] = []
        self.unstarted: list[PartitionProducer] = []
        """Partitions that got a message before they were started: the caller starts them."""
        if partitions == 0:
            self._add_partition(str(self._topic), -1)
        else:
            self.grow(partitions)

    @property
    def topic(self) -> str:
        return str(self._topic)

    @property
    def partitioned(self) -> bool:
        return self.partitions[0].index >= 0

    @property
    def table_limits(self) -> tuple[int, int]:
        """Return messages and payload bytes of batches that are made of whole tables, without waiting."""
        if self.tuning is not None:
            return MAX_MESSAGES_LIMIT, self.tuning.bytes_max
        return self._settings.batching_max_messages, self._settings.batching_max_allowed_size_in_bytes

    def grow(self, partitions: int) -> list[PartitionProducer]:
        """Extend to ``partitions`` partitions; return the new ones. Pulsar never removes partitions."""
        fresh = [
            self._add_partition(str(self._topic.partition_name(index)), index)
            for index in range(len(self.partitions), partitions)
        ]
        share = partition_share(
            self._settings.max_pending_messages,
            self._settings.max_pending_messages_across_partitions,
            len(self.partitions),
        )
        for partition in self.partitions:
            partition.backlog.own.limit = Permits(share).limit
        self.hot = CLOSED
        return fresh

    def _add_partition(self, topic: str, index: int) -> PartitionProducer:
        partition = PartitionProducer(
            topic=topic,
            index=index,
            producer_id=self._new_producer_id(),
            settings=self._settings,
            backlog=Backlog(Permits(self._settings.max_pending_messages), self.shared, self.memory),
            ready_set=self.ready_set,
            reclaim=self.reclaim,
            tuning=None if self.tuning is None else PartitionTuning(self.tuning),
        )
        self.partitions.append(partition)
        return partition

    # --- messages in ------------------------------------------------------------------------------

    def choose(self, message: OutgoingMessage | None, now: float) -> PartitionProducer:
        """Return the partition of a message. The custom router is not called here: it is the application's
        code and runs without the caller's lock (`Router.of_custom`)."""
        partitions = self.partitions
        if len(partitions) == 1:
            return partitions[0]
        if message is not None and message.partition_key is not None:
            return partitions[self.router.of_key(message.partition_key, len(partitions))]
        chosen = partitions[self.router.of_unkeyed(partitions, now)]
        if chosen is not self._current:
            if self._current is not None:
                self._current.close_batch()  # the round robin moved on: waiting for the delay is useless
            self._current = chosen
        return chosen

    def add(
        self,
        payload: bytes,
        token: Any,
        message: OutgoingMessage | None,
        now: float,
        *,
        partition: PartitionProducer | None = None,
        urgent: bool = False,
    ) -> None:
        """Add one message, except on the hottest path. ``urgent``: its sender waits for the receipt.

        Raises the errors of `PartitionProducer.add`; the message is not kept then.
        """
        keyless = message is None or message.partition_key is None
        if partition is None:
            partition = self.choose(message, now)
        if partition.state is ProducerState.NOT_STARTED:
            self.unstarted.append(partition)
            partition.start()
            self.ready_set.attention = True
        self.hot = CLOSED
        if partition.add(payload, token, message, now) and keyless:
            self.router.batch_filled(now)
        batch = partition.batch
        if batch is not None and urgent:
            batch.urgent = True
            self.ready_set.urgent[partition] = None
            self.ready_set.attention = True
        if (
            self.plain_path
            and keyless
            and type(batch) is Batch
            and not batch.explicit
            and _open_to_plain(batch)
        ):
            self.hot = batch

    @property
    def joins_by_the_run(self) -> bool:
        """Return whether many messages with keys may join one open batch at once."""
        only = self.partitions[0]
        return self.plain_path and len(self.partitions) == 1 and type(only.batch) is not KeyedBatches

    @property
    def takes_singles(self) -> bool:
        """Return whether plain messages are sent individually, and consecutive ones may be sent as a run."""
        settings = self._settings
        return (
            self.plain_path
            and not settings.batching_enabled
            and not settings.chunking_enabled
            and settings.compression_type is CompressionType.NONE
            and settings.encryptor is None
        )

    def add_singles(
        self, payloads: list[bytes], tokens: list[Any], start: int, now: float, keys: list[str] | None = None
    ) -> int:
        """Add plain messages from ``start`` on while `takes_singles` allows; return the index of the first
        that was not added. ``keys`` are those of all of them, empty for none; None: no message has one.

        The rest are for `add`. Messages of several partitions are routed one by one, as in `add`.
        """
        index, end = start, len(payloads)
        if len(self.partitions) == 1:
            partition = self.partitions[0]
            while index < end and (count := self._add_run(partition, payloads, tokens, index, now, keys)):
                index += count
            return index
        runs: dict[PartitionProducer, tuple[list[bytes], list[Any], list[str]]] = {}
        for index in range(start, end):
            payload = payloads[index]
            key = "" if keys is None else keys[index]
            if key:
                partition = self.partitions[self.router.of_key(key, len(self.partitions))]
            else:
                partition = self.choose(None, now)
            size = len(payload)
            if (
                not _takes_runs(partition)
                or size > min(PAYLOAD_BYTES_MAX, partition.max_message_size)
                or not partition.backlog.take(1, size)
            ):
                if not key:
                    # `add` will choose again: the same partition, or one that is less blocked then.
                    self.router.step_back()
                end = index
                break
            run = runs.get(partition)
            if run is None:
                run = runs[partition] = ([], [], [])
            run[0].append(payload)
            run[1].append(tokens[index])
            run[2].append(key)
        for partition, (of_run, theirs, with_keys) in runs.items():
            for start in range(0, len(of_run), RUN_MESSAGES_MAX):
                part = slice(start, start + RUN_MESSAGES_MAX)
                size = sum(map(len, of_run[part]))
                partition.add_singles(
                    of_run[part], theirs[part], size, now, None if keys is None else with_keys[part]
                )
        return end

    @staticmethod
    def _add_run(
        partition: PartitionProducer,
        payloads: list[bytes],
        tokens: list[Any],
        start: int,
        now: float,
        keys: list[str] | None,
    ) -> int:
        """Add the next run, within the permits and the bytes of one run. Return its messages."""
        if not _takes_runs(partition):
            return 0
        backlog = partition.backlog
        count = min(len(payloads) - start, RUN_MESSAGES_MAX, backlog.own.free, backlog.shared.free)
        if count < 1:
            return 0
        run = payloads[start : start + count]
        sizes = list(map(len, run))
        size = sum(sizes)
        largest = min(PAYLOAD_BYTES_MAX, partition.max_message_size)
        if size > RUN_BYTES_MAX or max(sizes) > largest:
            size = count = 0
            for each in sizes:
                if each > largest or size + each > RUN_BYTES_MAX:
                    break
                size += each
                count += 1
            if not count:
                return 0
            run = run[:count]
        if not backlog.take(count, size):
            return 0
        end = start + count
        partition.add_singles(run, tokens[start:end], size, now, None if keys is None else keys[start:end])
        return count

    def join(
        self,
        payload: bytes,
        token: Any,
        message: OutgoingMessage,
        partition: PartitionProducer | None = None,
    ) -> bool:
        """Let a message with a key or properties join an open batch, if nothing else is needed.

        The second fastest path. False: use `add`. Not for a sender that waits. ``partition`` is the message's
        partition, if already chosen.
        """
        batch: object = self.hot
        if partition is not None:
            batch = partition.batch
        elif message.partition_key is not None:
            partitions = self.partitions
            index = 0 if len(partitions) == 1 else self.router.of_key(message.partition_key, len(partitions))
            batch = partitions[index].batch
        if (
            type(batch) is not Batch
            or batch.explicit
            or len(batch.payloads) >= batch.last
            or batch.size + len(payload) >= batch.size_limit
            or message.sequence_id >= 0
            or message.deliver_at_time
            or not message.shares_metadata_with(batch.first)
        ):
            return False
        batch.append(payload, token, message)
        return True

    def holds(self, token: Any) -> bool:
        """Return whether a message with this token has no outcome yet. Slow: scans every message."""
        for partition in self.ready_set.busy:
            if partition.batch is not None and partition.batch.holds(token):
                return True
            for operation in partition.pending:
                tokens = operation.tokens
                if any(each is token for each in tokens[operation.done :]):
                    return True
        return any(any(each is token for each in settled.tokens) for settled in self.ready_set.settled)

    def reclaim(self) -> bool:
        """Take unused leases back from all open batches; return whether there were any."""
        self.hot = CLOSED
        results = [partition.assembler.trim_lease() for partition in self.ready_set.busy]
        return any(results)

    # --- output, time, the end --------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Close batches that are due or urgent, and apply send time-outs."""
        for partition in self.ready_set.take_due(now):
            partition.tick(now)

    def close_batches(self) -> None:
        """Close all open batches (flush, close)."""
        for partition in list(self.ready_set.busy):
            partition.close_batch()

    def next_deadline(self) -> float:
        """Return when `tick` must be called at the latest."""
        return self.ready_set.next_deadline()

    @property
    def pending_messages(self) -> int:
        """Return the number of messages without a receipt, including those in open batches."""
        return sum(p.pending.messages + (0 if p.batch is None else len(p.batch)) for p in self.ready_set.busy)

    @property
    def last_sequence_id(self) -> int:
        return max(partition.last_sequence_id for partition in self.partitions)

    @property
    def producer_name(self) -> str:
        for partition in self.partitions:
            if partition.producer_name is not None:
                return partition.producer_name
        return ""

    def check_accepting(self) -> None:
        """Raise the error of the first ended partition."""
        for partition in self.partitions:
            partition.check_accepting()

    @property
    def failure(self) -> Exception | None:
        """Cause for which a partition has ended, if any."""
        for partition in self.partitions:
            if isinstance(partition.failure, PulsarException):
                return partition.failure
        return None

    def statistics(self) -> ProducerStatistics:
        """Return a snapshot of the whole producer, with each partition's own."""
        parts = tuple(partition.statistics() for partition in self.partitions)
        return summed(self.topic, parts)


def _takes_runs(partition: PartitionProducer) -> bool:
    """Return whether the partition is started; if not, its first message goes through
    `PartitionedProducer.add`."""
    return partition.state in ACCEPTING and partition.state is not ProducerState.NOT_STARTED


def _open_to_plain(batch: Batch) -> bool:
    first = batch.first
    return first is None or (first.schema_version is None and first.transaction is None)
