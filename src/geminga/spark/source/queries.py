"""Requests of a query's driver to the cluster about all partitions, retried while a broker restarts."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from geminga.errors import TopicNotFound
from geminga.ids import MessageId
from geminga.spark.cluster.clients import Cluster, discover
from geminga.spark.cluster.entry_samples import EntrySample, MeasuredEntry
from geminga.spark.cluster.watch import PulsarPartitions
from geminga.spark.offsets import EARLIEST, Offsets, Partition, behind_message
from geminga.spark.options import ReadOptions
from geminga.spark.retry_policy import RetryPolicy
from geminga.spark.source.data_loss import refusal
from geminga.spark.source.search import Search, at, before_first, run
from geminga.wire.metadata import RawEntry

Q = TypeVar("Q")
T = TypeVar("T")

logger = logging.getLogger("geminga.spark")


@dataclass
class PartitionQueries:
    """Requests of one query about its partitions."""

    cluster: Cluster
    options: ReadOptions
    retry_policy: RetryPolicy
    watch: PulsarPartitions

    def partitions(self, *, missing_is_empty: bool = False) -> list[Partition]:
        options = self.options
        missing_is_empty |= options.wait_for_topics
        return self.retry_policy.call(
            "looking up the topics",
            lambda: discover(
                self.cluster, options.topics, options.topics_pattern, missing_is_empty=missing_is_empty
            ),
        )

    def latest(self, partitions: Iterable[Partition]) -> Offsets:
        """Return the offset after the newest message of each partition, `EARLIEST` for an empty topic."""
        asked = list(dict.fromkeys(partitions))
        found = self._query(
            "asking for the newest messages", lambda each: [*self.watch.newest(each).values()],
            asked, asked, MessageId.earliest,
        )  # fmt: skip
        return dict(zip(asked, map(behind_message, found), strict=True))

    def first_entries(self, places: list[tuple[Partition, MessageId]]) -> list[RawEntry | None]:
        """Return the first entry at or after each position; None if there is no later entry."""
        partitions = [partition for partition, _ in places]
        return self._query("looking for entries", self.watch.first, places, partitions, None)

    def sampled(self, samples: Sequence[EntrySample]) -> list[tuple[list[MeasuredEntry], bool]]:
        """Return the entries of each sample, and whether they are all the entries up to its end."""
        partitions = [sample.partition for sample in samples]
        return self._query("sampling entries", self.watch.sample, samples, partitions, ([], True))

    def _query(
        self,
        what: str,
        query: Callable[[Sequence[Q]], list[T]],
        arguments: Sequence[Q],
        partitions: Sequence[Partition],
        default: T,
    ) -> list[T]:
        """Return the result of ``query`` for each argument, which belongs to the partition at the same index.
        With ``failOnDataLoss=false`` the result is ``default`` if the topic was deleted meanwhile."""
        try:
            return self.retry_policy.call(what, lambda: query(arguments))
        except TopicNotFound as error:
            if self.options.fail_on_data_loss:
                raise
            existing = set(self.partitions(missing_is_empty=True))
            left = [index for index, partition in enumerate(partitions) if partition in existing]
            if len(left) == len(partitions):
                raise
            logger.warning("a topic was deleted before it was read: %s", error)
        found = self._query(what, query, [arguments[n] for n in left], [partitions[n] for n in left], default)
        results = dict(zip(left, found, strict=True))
        return [results.get(index, default) for index in range(len(partitions))]

    def run(self, searches: Mapping[Partition, Search[T]]) -> dict[Partition, T]:
        """Return the result of each partition's search."""
        return run(searches, self.first_entries)

    def firsts(self, partitions: Iterable[Partition]) -> Offsets:
        """Return the offset before the first message of each partition, without empty partitions."""
        found = self.run({partition: before_first(EARLIEST) for partition in partitions})
        return {partition: place for partition, place in found.items() if place is not None}

    def begins(self, places: Offsets) -> Offsets:
        """Return ``places`` with `EARLIEST` replaced by the offset before the first entry."""
        found = self.run({p: before_first(place) for p, place in places.items()})
        return {p: found[p] or place for p, place in places.items()}

    def still_there(self, places: Offsets) -> set[Partition]:
        """Return the partitions that still have the entry before each offset, or the first one of its ledger.
        Brokers remove whole ledgers, the oldest first, so all later entries exist too."""
        asked = [(p, at(place.ledger, place.entry)) for p, place in places.items() if place.ledger >= 0]
        return {
            partition
            for (partition, wanted), entry in zip(asked, self.first_entries(asked), strict=True)
            if entry is not None and (entry.ledger_id, entry.entry_id) == (wanted.ledger_id, wanted.entry_id)
        }

    def lost(self, what: str) -> None:
        """Report a possible loss of messages: as an error, or as a warning if ``failOnDataLoss`` is false."""
        if self.options.fail_on_data_loss:
            raise refusal(what)
        logger.warning("%s", what)
