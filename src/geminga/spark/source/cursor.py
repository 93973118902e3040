"""A query's own subscription, whose cursor follows Spark's committed offsets.

Spark calls a source's `commit` only when the next micro-batch begins: never for the last one of an
AvailableNow run, not even after a restart. At every trigger, including idle ones, the last one of an
AvailableNow run and the first one of a restart, it asks for the newest offset *since an offset*, and that
offset is the end of the last micro-batch in its commit log. The cursor is moved there. So it is never ahead
of Spark: everything that a restart may read again is still stored.

The subscription is durable. While it exists the broker keeps all messages after the cursor, so a start whose
ledger was trimmed is known to be no loss (`QueryCursor.kept`).

That holds only for the original subscription. If it was removed (by an administrator, or by the namespace's
subscription expiration) and recreated, then on a topic that was trimmed empty its cursor is where the old one
would be. So it is never recreated silently (`PulsarCursors.states`, ``known``): if the message read
last still exists, so do all later ones; otherwise a loss cannot be excluded. If another client recreated it,
or a time to live moved it past whole ledgers, the query cannot detect that: the protocol returns only the
cursor's position. (Keeping the last message read unacknowledged would show it, except for a time to live on
an idle topic, but it would be a permanent backlog that counts towards time-based quotas.)

`geminga.spark.cluster.watch.PulsarCursors` moves the subscriptions.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from geminga.ids import MessageId
from geminga.spark.cluster.watch import PulsarCursors, SubscriptionCursor
from geminga.spark.offsets import (
    EARLIEST,
    WHOLE_ENTRY,
    Offset,
    Offsets,
    Partition,
    is_another_topic,
    partition_topic,
)
from geminga.spark.source.queries import PartitionQueries

logger = logging.getLogger("geminga.spark")


@dataclass
class QueryCursor:
    """The subscription ``name`` of one query."""

    name: str
    cursors: PulsarCursors
    losses: PartitionQueries
    is_own: bool = False
    """The name was generated for this query, so no other client created the subscription."""
    kept: set[Partition] = field(default_factory=set)
    """Partitions in which no message after the last followed offset can have been removed."""
    _moved: dict[Partition, MessageId] = field(default_factory=dict)
    _trusted: Offsets = field(default_factory=dict)
    """Cursor positions that were verified to match the last followed offset."""
    _seen: set[Partition] = field(default_factory=set)
    """Partitions on which this object has had the subscription."""
    _newest: Offsets = field(default_factory=dict)
    """Offsets after the newest messages, when they were last queried."""
    _doubted: Offsets = field(default_factory=dict)
    """Offsets after which the subscription did not keep all messages."""

    def position(self, partitions: Collection[Partition]) -> Offsets:
        """Return the subscription's position; after the newest message if it is created now."""
        states = _there(self.cursors.states(partitions, from_latest=partitions))
        self._seen.update(states)
        return {partition: _after(state.marked or state.newest) for partition, state in states.items()}

    def follow(
        self,
        committed: Offsets,
        partitions: Iterable[Partition],
        *,
        is_new: bool,
        is_known: bool = False,
        first: Offsets | None = None,
        waiting: Offsets | None = None,
    ) -> Offsets:
        """Move to Spark's committed offsets; return the offset after the newest message of each partition.

        ``is_new``: the query begins at ``committed``. ``is_known``: an earlier run had the subscription.
        Partitions that are not in ``committed`` are new. ``first``: for partitions at `EARLIEST`, the offset
        before the first message that the query saw. ``waiting``: offsets of messages after ``committed`` that
        existed earlier.
        """
        asked, first = list(partitions), first or {}
        self._newest = {**(waiting or {}), **self._newest}
        expected = set(committed) if is_known or not is_new else set()
        known = self._seen | (set(committed) if is_known else set())
        states = self._states(asked, known, expected, committed, first)
        moves: dict[Partition, MessageId] = {}
        rewinds: dict[Partition, MessageId] = {}
        ahead: dict[Partition, Offset] = {}
        for partition, state in states.items():
            place = committed.get(partition, EARLIEST)
            if is_another_topic(place, _after(state.newest)):
                self.kept.discard(partition)  # none of its committed offsets is its own
                continue
            marked = None if state.marked is None else _after(state.marked)
            if marked is not None and not self._is_right(
                partition, marked, place, is_expected=partition in expected, is_new=is_new
            ):
                self.kept.discard(partition)
                if self._doubted.get(partition) == place:
                    continue  # it was set back as far as messages exist
                if partition in known:
                    ahead[partition] = marked
                elif partition in expected:
                    self._note_ahead(partition, place, marked)
                rewinds[partition] = place.next_place
                continue
            if marked is not None:
                self._doubted.pop(partition, None)
                self.kept.add(partition)
                self._trusted[partition] = marked
            if (wanted := _mark_for(place)) is not None and (marked is None or _after(wanted) > marked):
                moves[partition] = wanted
        self._check_ahead(ahead, committed, first)
        if rewinds:
            self.cursors.rewind(rewinds)
            self._doubted.update((p, committed.get(p, EARLIEST)) for p in rewinds)
        moves = {p: place for p, place in moves.items() if self._moved.get(p) != place}
        if moves:
            self.cursors.move(moves)
            self._moved.update(moves)
        self._seen.update(states)
        self._newest = {partition: _after(state.newest) for partition, state in states.items()}
        return dict(self._newest)

    def _states(
        self,
        partitions: Collection[Partition],
        known: Collection[Partition],
        expected: Collection[Partition],
        committed: Offsets,
        first: Offsets,
    ) -> dict[Partition, SubscriptionCursor]:
        """Return the cursors. Recreate a removed one if all messages that it kept still exist, or a loss is
        accepted. A subscription that a running query gets only now (``expected``, not ``known``) keeps the
        present messages and proves nothing about earlier ones."""
        states = self.cursors.states(partitions, known={*known, *expected})
        gone = [partition for partition, state in states.items() if state is None]
        if gone:
            places = {partition: _read_to(partition, committed, first) for partition in gone}
            there = self.losses.still_there(places)
            for partition in gone:
                if partition in known:
                    self._note_gone(partition, places[partition], is_there=partition in there)
            for partition in gone:
                self._moved.pop(partition, None)
                if partition not in there:
                    self.kept.discard(partition)
                    self._doubted[partition] = committed.get(partition, EARLIEST)
            states |= self.cursors.states(gone)
        return _there(states)

    def _check_ahead(self, ahead: Offsets, committed: Offsets, first: Offsets) -> None:
        if not ahead:
            return
        places = {partition: _read_to(partition, committed, first) for partition in ahead}
        there = self.losses.still_there(places)
        for partition, marked in ahead.items():
            self._note_ahead(partition, places[partition], marked)
            if partition not in there:
                self.losses.lost(
                    f"the subscription {self.name} of {partition_topic(partition)} was moved to {marked}, by "
                    "a time to live, a backlog quota or an administrator, and this query has read up to "
                    f"{places[partition]}: the messages between may have been removed before they were read"
                )

    def keeps(self, places: Offsets) -> set[Partition]:
        """Return the followed partitions whose subscription now keeps all messages after the offset."""
        states = self.cursors.states(places, known=set(places))
        found = set()
        for partition, state in states.items():
            place = places[partition]
            marked = None if state is None or state.marked is None else _after(state.marked)
            if marked is not None and (marked <= place or marked == self._trusted.get(partition)):
                found.add(partition)
        return found

    def _is_right(
        self, partition: Partition, marked: Offset, place: Offset, *, is_expected: bool, is_new: bool
    ) -> bool:
        """Return whether a cursor matches ``place``: at or before it, or between two ledgers after it."""
        waiting = self._newest.get(partition, place)
        if place < waiting and (marked > waiting or marked == EARLIEST < place):
            return False  # an unread message was passed, or none of the former messages is left
        is_doubted = self._doubted.get(partition) == place
        if marked <= place:
            # The cursor is before all messages, and there may be none.
            return not (is_doubted and marked == EARLIEST)
        if marked.entry >= 0 or is_doubted:
            return False
        if place == EARLIEST:  # the cursor was created before the first message
            return self.is_own or not is_new or partition in self._seen
        # The broker itself moved it to the next ledger when the finished one was trimmed.
        return is_expected and marked.ledger > place.ledger

    def _note_ahead(self, partition: Partition, place: Offset, marked: Offset) -> None:
        logger.warning(
            "the subscription %s of %s was moved or recreated: it is at %s, and this query has committed %s; "
            "setting it back and checking for messages removed meanwhile",
            self.name, partition_topic(partition), marked, place,
        )  # fmt: skip

    def _note_gone(self, partition: Partition, place: Offset, *, is_there: bool) -> None:
        topic = partition_topic(partition)
        if is_there:
            logger.warning(
                "the subscription %s of %s was removed, by an administrator or because no consumer was "
                "connected for long; all unread messages still exist: recreating it",
                self.name, topic,
            )  # fmt: skip
            return
        read = (
            "nothing was read so far" if place == EARLIEST else f"{place}, up to which was read, is gone too"
        )
        self.losses.lost(
            f"the subscription {self.name} of {topic}, which kept what this query has not read, was removed, "
            f"by an administrator or because nobody was connected to it for long, and {read}: messages "
            "behind that may have been removed before they were read"
        )

    def close(self) -> None:
        self.cursors.close()


def _read_to(partition: Partition, committed: Offsets, first: Offsets) -> Offset:
    """Return the offset after which all messages are unread."""
    place = committed.get(partition, EARLIEST)
    return first.get(partition, place) if place == EARLIEST else place


def _there(states: Mapping[Partition, SubscriptionCursor | None]) -> dict[Partition, SubscriptionCursor]:
    return {partition: state for partition, state in states.items() if state is not None}


def _after(message_id: MessageId) -> Offset:
    if message_id.ledger_id < 0:
        return EARLIEST
    return Offset.after_entry(message_id.ledger_id, message_id.entry_id)


def _mark_for(place: Offset) -> MessageId | None:
    """Return the entry up to which everything is read at ``place``; None if that entry is unknown."""
    entry = place.entry if place.batch_index == WHOLE_ENTRY else place.entry - 1
    return MessageId(-1, place.ledger, entry) if place.ledger >= 0 and entry >= 0 else None
