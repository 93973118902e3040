"""Step 1 of publishing: producer of a topic: a partition producer for each partition, routing, limits.

A topic without partitions has one partition producer with index -1. Calls must not overlap; the caller holds
a lock.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

from geminga.errors import PulsarException
from geminga.ids import TopicName
from geminga.producer.assembling import sends_runs
from geminga.producer.message import OutgoingMessage
from geminga.producer.operation import RUN_BYTES_MAX, RUN_MESSAGES_MAX, RUN_PAYLOAD_BYTES_MAX
from geminga.producer.partition import PartitionProducer
from geminga.producer.pending_limits import ByteBudget, PendingLimits, Permits, partition_share
from geminga.producer.ready_set import ReadySet
from geminga.producer.routing import Router
from geminga.producer.self_tuning import PartitionTuning, SelfTuning
from geminga.producer.settings import MAX_MESSAGES_LIMIT, ProducerSettings
from geminga.producer.states import ProducerState
from geminga.producer.statistics import ProducerStatistics, summed
from geminga.transactions import TransactionCore


class PartitionedProducer:
    """The partitions of one topic.

    ``new_producer_id`` returns the client's ids; ``random`` numbers in [0, 1).
    """

    def __init__(
        self,
        *,
        topic: str,
        partitions: int,
        settings: ProducerSettings,
        memory: ByteBudget,
        new_producer_id: Callable[[], int],
        random: Callable[[], float],
    ) -> None:
        self._topic = TopicName.parse(topic)
        self._settings = settings
        self._new_producer_id = new_producer_id
        self.memory = memory
        self.ready_set: ReadySet[PartitionProducer] = ReadySet()
        self.shared = Permits(settings.max_pending_messages_across_partitions if partitions else 0)
        budget = settings.latency_budget_seconds
        self.tuning = None if budget is None else SelfTuning(budget, memory.limit)
        self._random = random
        self.sends_runs = sends_runs(settings)
        self._current: PartitionProducer | None = None
        """Partition of the last unkeyed message."""
        self._hot: object = None
        """Batch of `_current` that further unkeyed messages may join without being routed."""
        self.partitions: list[PartitionProducer] = []
        self.unstarted: list[PartitionProducer] = []
        """Partitions that got a message before they were started: the caller starts them."""
        if partitions == 0:
            self._add_partition(str(self._topic), -1)
        else:
            self.grow(partitions)

    @cached_property
    def router(self) -> Router:
        """Chooses the partitions of messages; a producer of one partition needs it rarely."""
        return Router(self._settings, self._random, self.tuning)

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
            partition.limits.own.limit = Permits(share).limit
        self._hot = None
        return fresh

    def _add_partition(self, topic: str, index: int) -> PartitionProducer:
        partition = PartitionProducer(
            topic=topic,
            index=index,
            producer_id=self._new_producer_id(),
            settings=self._settings,
            limits=PendingLimits(Permits(self._settings.max_pending_messages), self.shared, self.memory),
            ready_set=self.ready_set,
            tuning=None if self.tuning is None else PartitionTuning(self.tuning),
        )
        if self.partitions:  # It was added to an open producer, and ends as the others do.
            first = self.partitions[0]
            partition.gives_up, partition.stops_at_failure = first.gives_up, first.stops_at_failure
        self.partitions.append(partition)
        return partition

    @property
    def joined(self) -> PartitionProducer | None:
        """Partition with an open batch that further unkeyed messages join now."""
        if len(self.partitions) == 1:
            partition: PartitionProducer | None = self.partitions[0]
        else:
            partition = self._current
            if partition is not None and partition.batch is not self._hot:
                return None
        return None if partition is None or partition.batch is None else partition

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
        """Add one message. ``urgent``: its sender waits for the receipt.

        Raises the errors of `PartitionProducer.add`; the message is not kept then.
        """
        keyless = message is None or message.partition_key is None
        if partition is None:
            partition = self.choose(message, now)
        if partition.state is ProducerState.NOT_STARTED:
            self.unstarted.append(partition)
            partition.start()
            self.ready_set.attention = True
        self._hot = None
        if partition.add(payload, token, message, now) and keyless:
            self.router.batch_filled(now)
        batch = partition.batch
        if batch is not None and urgent:
            batch.urgent = True
            self.ready_set.urgent[partition] = None
            self.ready_set.attention = True
        if keyless and partition is self._current:
            self._hot = batch

    def add_many(
        self,
        payloads: list[bytes],
        tokens: list[Any],
        messages: list[OutgoingMessage | None] | None,
        start: int,
        now: float,
        partition: PartitionProducer | None = None,
        transaction: TransactionCore | None = None,
    ) -> int:
        """Add simple messages from ``start`` on, as far as nothing is needed but their permits and bytes:
        those of ``partition``, or else without keys, unless they form runs. Return their number; the next
        one is for `add`. ``messages`` None: all are only payloads. All are of ``transaction``.
        """
        if partition is None:
            if len(self.partitions) == 1:
                partition = self.partitions[0]
            elif self.sends_runs and transaction is None:
                return self._spread(payloads, tokens, messages, start, now)
            else:
                partition = self.joined
        if partition is None:
            return 0
        return partition.add_many(payloads, tokens, messages, start, now, transaction)

    def _spread(
        self,
        payloads: list[bytes],
        tokens: list[Any],
        messages: list[OutgoingMessage | None] | None,
        start: int,
        now: float,
    ) -> int:
        """Route unbatched messages one by one, and add those of each partition as runs."""
        runs: dict[PartitionProducer, tuple[list[bytes], list[Any], list[OutgoingMessage | None]]] = {}
        end = len(payloads)
        for index in range(start, end):
            payload = payloads[index]
            message = None if messages is None else messages[index]
            partition = self.choose(message, now)
            size = len(payload)
            if (
                not partition.takes_many
                or size > min(RUN_PAYLOAD_BYTES_MAX, partition.max_message_size)
                or not partition.limits.take(1, size)
            ):
                if message is None or message.partition_key is None:
                    # `add` will choose again: the same partition, or one that is less blocked then.
                    self.router.step_back()
                end = index
                break
            run = runs.get(partition)
            if run is None:
                run = runs[partition] = ([], [], [])
            run[0].append(payload)
            run[1].append(tokens[index])
            run[2].append(message)
        for partition, (chosen, theirs, rich) in runs.items():
            step = min(RUN_MESSAGES_MAX, RUN_BYTES_MAX // max(1, *map(len, chosen)))
            for at in range(0, len(chosen), step):
                part = slice(at, at + step)
                size = sum(map(len, chosen[part]))
                partition.add_run(
                    chosen[part], theirs[part], None if messages is None else rich[part], size, now
                )
        return end - start

    def holds(self, token: Any) -> bool:
        """Return whether a message with this token has no outcome yet. Slow: scans every message."""
        for partition in self.ready_set.busy:
            if partition.batch is not None and partition.batch.holds(token):
                return True
            if any(each is token for operation in partition.pending for each in operation.open_tokens):
                return True
        return any(each is token for settled in self.ready_set.settled for each in settled.open_tokens)

    # --- output, time, the end --------------------------------------------------------------------

    def tick(self, now: float, *, expire: bool = True) -> None:
        """Close batches that are due or urgent; with ``expire``, apply send time-outs."""
        if self.ready_set.is_due(now):
            for partition in self.ready_set.take_due(now, expire=expire):
                partition.tick(now, expire=expire)

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
