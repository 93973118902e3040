"""Requests of a query's driver to the cluster about all partitions, retried while a broker restarts."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from geminga.ids import MessageId
from geminga.spark.admission import EntrySample, MeasuredEntry
from geminga.spark.cluster import Cluster, discover
from geminga.spark.data_loss import refusal
from geminga.spark.offsets import EARLIEST, Offsets, Partition
from geminga.spark.options import ReadOptions
from geminga.spark.ranges import behind_message
from geminga.spark.retry_policy import RetryPolicy
from geminga.spark.search import Search, at, before_first, run
from geminga.spark.watch import PulsarPartitions
from geminga.wire.metadata import RawEntry

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
        asked = list(partitions)
        found = self.retry_policy.call("asking for the newest messages", lambda: self.watch.newest(asked))
        return {partition: behind_message(message_id) for partition, message_id in found.items()}

    def first_entries(self, places: list[tuple[Partition, MessageId]]) -> list[RawEntry | None]:
        """Return the first entry at or after each position; None if there is no later entry."""
        return self.retry_policy.call("looking for entries", lambda: self.watch.first(places))

    def sampled(self, peeks: Sequence[EntrySample]) -> list[tuple[list[MeasuredEntry], bool]]:
        """Return the entries of each sample, and whether they are all the entries up to its end."""
        return self.retry_policy.call("looking at entries", lambda: self.watch.look(peeks))

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
