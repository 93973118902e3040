"""Entries of one range, from the broker or from files, checked to be complete."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TypeVar

from geminga.errors import PulsarException, Timeout
from geminga.ids import MessageId
from geminga.spark.cluster.clients import Cluster, EntrySource, closed_quietly
from geminga.spark.offsets import WHOLE_ENTRY, Offset, Partition, partition_topic
from geminga.spark.options import ReadOptions
from geminga.spark.retry_policy import RetryPolicy
from geminga.spark.source.data_loss import refusal
from geminga.spark.source.ranges import Range
from geminga.wire.metadata import RawEntry

T = TypeVar("T")

logger = logging.getLogger("geminga.spark")

READ_ENTRIES = 1000
"""Maximum entries per read."""


class RangeEntries:
    """Entries of one range, in order; iterate once."""

    idle_seconds = (1.0, 1.0)
    """Seconds without an entry until the range's end is checked: the first time, and each later time."""

    def __init__(
        self, cluster: Cluster, options: ReadOptions, part: Range, *, retry_policy: RetryPolicy
    ) -> None:
        self.cluster = cluster
        self.options = options
        self.part = part
        self.topic = partition_topic(part.partition)
        self.retry_policy = retry_policy
        self._source: EntrySource | None = None
        self._place = part.start.next_place
        """Position at which a reopened reader resumes."""
        self._read_through = part.start
        self._told_missing = False

    def open(self, start: MessageId, stop: Offset) -> EntrySource:
        location = self.options.offload_location
        if not self.part.offloaded or location is None:
            return self._open_broker(start, stop)
        from geminga.spark.source.offloaded import OffloadedSource

        return OffloadedSource(
            location,
            self.part.partition,
            self.part.offloaded,
            start,
            lambda place: self._open_broker(place, stop),
        )

    def _open_broker(self, start: MessageId, stop: Offset) -> EntrySource:
        return self.cluster.open(
            self.part.partition,
            start,
            stop,
            queue_size=self.options.receiver_queue_size,
            name=self.options.subscription_prefix,
            compacted=self.part.compacted,
        )

    def _ask(self, what: str, question: Callable[[EntrySource], T]) -> T:
        """Call ``question`` with the reader; if the reader broke, with a new one that resumes there."""

        def ask() -> T:
            if self._source is None:
                self._source = self.open(self._place, self.part.end)
            try:
                return question(self._source)
            except PulsarException:
                self.close()
                raise

        return self.retry_policy.call(f"{what} {self.topic}", ask)

    def close(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            closed_quietly(source)

    def __iter__(self) -> Iterator[RawEntry]:
        """Yield the range's entries, from the broker or from files."""
        start, end = self.part.start, self.part.end
        if start >= end:
            return
        previous: Offset | None = None
        for found in self._arriving(start):
            if previous is None:
                previous = start
                self._check_follows(start, found)
            elif found.ledger_id != previous.ledger or found.entry_id != previous.entry + 1:
                self._check_follows(previous, found)
            place = (found.ledger_id, found.entry_id)
            if place > end[:2]:
                if previous.ledger == end.ledger < found.ledger_id and previous[:2] < end[:2]:
                    self._check_missing(previous, found)
                return
            yield found
            if place == end[:2]:
                return
            previous = Offset.after_entry(*place)

    def _arriving(self, after: Offset) -> Iterator[RawEntry]:
        """Yield the entries after ``after``, until none arrives any more."""
        poll_seconds = self.options.poll_timeout_ms / 1000
        deadline = time.monotonic() + poll_seconds
        self._place = after.next_place
        idle, later = self.idle_seconds
        while True:
            entries = self._take(min(idle, poll_seconds))
            if entries:
                yield from entries
                deadline = time.monotonic() + poll_seconds
                continue
            if self._is_at_end():
                return
            if time.monotonic() > deadline:
                self._give_up()
                return
            idle = later

    def _is_at_end(self) -> bool:
        """Return whether no further entry can arrive, after nothing arrived for a while."""
        if self._ends_early() is None:
            return False
        self._give_up()
        return True

    def _take(self, idle_seconds: float) -> list[RawEntry]:
        """Return the available entries; wait ``idle_seconds`` for the first one."""
        entries = self._ask("reading", lambda source: source.read(READ_ENTRIES, idle_seconds))
        if entries:
            last = entries[-1]
            self._place = MessageId(-1, last.ledger_id, last.entry_id + 1)
            self._read_through = Offset.after_entry(last.ledger_id, last.entry_id)
        return entries

    def _check_follows(self, place: Offset, entry: RawEntry) -> None:
        """Check that no entry between ``place`` and ``entry`` is missing; otherwise look for the cause.

        An entry in a later ledger may follow if ``place`` is the last entry of its own ledger, which is
        verified if that ledger still exists. If the ledger is gone, its later entries are unknown: that may
        be retention overtaking the reader.
        """
        wanted = place.next_place
        if (
            (place == self.part.start and (entry.ledger_id, entry.entry_id) == self.part.next_kept)
            or place.ledger < 0
            or (entry.ledger_id, entry.entry_id) == (wanted.ledger_id, wanted.entry_id)
            or self._follows_by_manifest(wanted, entry)
        ):
            return
        if entry.ledger_id == place.ledger and place.batch_index == WHOLE_ENTRY:
            self._check_missing(place, entry)
            return
        if entry.ledger_id > place.ledger and wanted.entry_id > 0:
            (found,) = self.first_entries([(self.part.partition, MessageId(-1, place.ledger, place.entry))])
            if found is not None and (found.ledger_id, found.entry_id) == place[:2]:
                return
        self.lost(
            f"the entry {wanted.ledger_id}:{wanted.entry_id} of {self.topic} is gone, the first one left is "
            f"{entry.ledger_id}:{entry.entry_id}: messages from the one to before the other may have been "
            "removed before they were read"
        )

    def _check_missing(self, place: Offset, entry: RawEntry) -> None:
        """Handle missing entries after ``place`` whose ledger exists. Retention removes whole ledgers only,
        so either a damaged store lost single entries, or the broker withholds them (of aborted transactions,
        and Apache Pulsar's markers of transactions and replication); a reader can't distinguish the two."""
        what = (
            f"the entry {place.ledger}:{place.entry + 1} of {self.topic} is gone, the first one left is "
            f"{entry.ledger_id}:{entry.entry_id}"
        )
        if self._ask("reading", lambda source: source.gives_all):
            self.lost(f"{what}: the broker's store was damaged, and what was between is lost")
        elif not self._told_missing:
            self._told_missing = True
            logger.warning(
                "%s: the broker withholds entries of aborted transactions or markers, or the "
                "entries between are lost; this task logs no further gaps", what,
            )  # fmt: skip

    def _follows_by_manifest(self, wanted: MessageId, entry: RawEntry) -> bool:
        """Return whether ``entry`` directly follows an offloaded ledger that ends at ``wanted``: one ledger's
        offset is then the end of the other. No broker is needed for that."""
        offloaded = self.part.offloaded
        ends = {
            each.offset + each.entries
            for each in offloaded
            if (each.ledger, each.entries) == (wanted.ledger_id, wanted.entry_id)
        }
        return entry.entry_id == 0 and any(
            each.ledger == entry.ledger_id and each.offset in ends for each in offloaded
        )

    def _ends_early(self) -> MessageId | None:
        """Return the topic's newest message, if it is before the range's end."""
        last = self._ask("asking for the newest message of", lambda source: source.last_message_id())
        return last if (last.ledger_id, last.entry_id) < self.part.end[:2] else None

    def _give_up(self) -> None:
        last = self._ends_early()
        if last is None:
            raise Timeout(
                f"nothing arrived for {self.options.poll_timeout_ms} ms while reading {self.part}: is the "
                "broker overloaded? The option pollTimeoutMs allows more"
            )
        self.lost(
            f"{self.topic} ends at {last.ledger_id}:{last.entry_id}, before {self.part.end}, up to which "
            f"this query was to read: what was after {self._read_through} was truncated, or the topic was "
            "deleted and made again"
        )

    def lost(self, what: str) -> None:
        """Report a possible loss of messages, as `PartitionQueries.lost` does."""
        if self.options.fail_on_data_loss:
            raise refusal(what)
        logger.warning("%s", what)

    def first_entries(self, places: list[tuple[Partition, MessageId]]) -> list[RawEntry | None]:
        """Return the first entry at or after each position, by queries of this task, which are rare."""
        with closing(self.cluster.watch(name=self.options.subscription_prefix)) as watch:
            return self.retry_policy.call(f"looking for entries of {self.topic}", lambda: watch.first(places))
