"""A query's own subscription, kept at what Spark has committed.

Spark's source API has a `commit`, but calls it only when the next micro-batch begins: never for the last
one of an AvailableNow run, not even after a restart. What it does at every trigger, the idle ones, the
last look of an AvailableNow run and the first one of a restart included, is to ask what is new *since an
offset*, and that offset is the end of the last micro-batch in its commit log. So the cursor is moved there.
It is never ahead of Spark: whatever a restart may read again is still there.

The subscription is durable. While it exists the broker keeps what lies behind the cursor, so that a start
whose ledger was trimmed is known to be no loss (`QueryCursor.kept`).

That holds for the very subscription that the query had. One that was removed meanwhile (by an administrator,
or by the namespace's subscription expiration) and made again stands, on a topic that was trimmed empty, where
the old one would stand. So it is never made again without a word (`SubscriptionCursors.states`, ``known``): if what was
read last is still there, then so is all that follows; else nobody can tell what was lost. If somebody else
has made it again, or a time to live has moved it past whole ledgers, nothing tells: the protocol gives back
where a subscription stands and nothing else. (Keeping the last message that was read unacknowledged would
tell, but for a time to live on an idle topic; it would be a backlog for ever, which quotas by time go by.)

No I/O here: `SubscriptionCursors` is what moves subscriptions, see `geminga.spark.watch`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from geminga.ids import MessageId
from geminga.spark.offsets import (
    EARLIEST,
    WHOLE_ENTRY,
    Offset,
    Offsets,
    Partition,
    is_another_topic,
    partition_topic,
)

logger = logging.getLogger("geminga.spark")


@dataclass(frozen=True, slots=True)
class SubscriptionCursor:
    """A partition's newest message, and the mark-delete position of the subscription; None: unknown."""

    newest: MessageId
    marked: MessageId | None


class SubscriptionCursors(Protocol):
    """One subscription on many partitions; every call goes to all of them at once."""

    def states(
        self,
        partitions: Iterable[Partition],
        *,
        from_latest: Collection[Partition] = (),
        known: Collection[Partition] = (),
    ) -> dict[Partition, SubscriptionCursor | None]:
        """Where they stand. A subscription that is not there is made: behind the newest message for the
        partitions in ``from_latest``, else before the first. For those in ``known``, where it was before, it
        is not: None."""

    def move(self, places: Mapping[Partition, MessageId]) -> None:
        """Everything up to and with these places is done; returns when the broker has stored it."""

    def rewind(self, places: Mapping[Partition, MessageId]) -> None:
        """Set the cursors back before these places."""

    def close(self) -> None: ...


class LossPolicy(Protocol):
    """What is to be known, and done, where the subscription can't vouch for what it kept."""

    def still_there(self, places: Offsets) -> Collection[Partition]:
        """The partitions in which what lies before these places is still there, and so all behind them."""

    def lost(self, what: str) -> None:
        """Raise `DataLossError`, or say it and go on."""


@dataclass
class QueryCursor:
    """The subscription ``name`` of one query."""

    name: str
    cursors: SubscriptionCursors
    losses: LossPolicy
    is_own: bool = False
    """The name is this query's own: nobody else made the subscription."""
    kept: set[Partition] = field(default_factory=set)
    """Partitions of which nothing behind the offset followed last can have been removed."""
    _moved: dict[Partition, MessageId] = field(default_factory=dict)
    _trusted: Offsets = field(default_factory=dict)
    """Where the cursors stood when it was found that they stand for the offset followed last."""
    _seen: set[Partition] = field(default_factory=set)
    """Where this object has had the subscription."""
    _newest: Offsets = field(default_factory=dict)
    """Behind the newest messages, when they were asked for last."""
    _doubted: Offsets = field(default_factory=dict)
    """The places that the subscription did not keep all behind of."""

    def position(self, partitions: Collection[Partition]) -> Offsets:
        """Where the subscription stands; behind the newest message where it is made now."""
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
        """Move to what Spark has committed; returns the offset behind the newest message of each partition.

        ``is_new``: the query begins at ``committed``. ``is_known``: an earlier run had the subscription.
        Partitions that are not in ``committed`` are new. ``first``: the place before the first message of
        those that are at `EARLIEST`, as it was when there was one first. ``waiting``: the places of messages
        behind ``committed`` that were there at a time.
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
                self.kept.discard(partition)  # nothing of what was committed is its own
                continue
            marked = None if state.marked is None else _after(state.marked)
            is_expected = partition in expected
            if marked is not None and not self._is_right(
                partition, marked, place, is_expected=is_expected, is_new=is_new
            ):
                self.kept.discard(partition)
                if self._doubted.get(partition) == place:
                    continue  # it was set back as far as there is something
                if partition in known:
                    ahead[partition] = marked
                elif is_expected:
                    self._note_ahead(partition, place, marked)
                rewinds[partition] = place.next_place
                continue
            if marked is not None:
                self._doubted.pop(partition, None)
                self.kept.add(partition)
                self._trusted[partition] = marked
            wanted = _mark_for(place)
            if wanted is not None and (marked is None or _after(wanted) > marked):
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
        """Where the cursors stand; one that was removed is made again, where all that it kept is known to be
        there, or what is not does not matter. One that a query gets which has gone on without it so far
        (``expected``, not ``known``) keeps what is there now, and says nothing of what was before."""
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
        """Of partitions that were followed: those of which the subscription keeps, now, what lies behind."""
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
        """Whether a cursor stands for ``place``: at or before it, or between two ledgers behind it."""
        waiting = self._newest.get(partition, place)
        if place < waiting and (marked > waiting or marked == EARLIEST < place):
            return False  # a message that waited was passed, or nothing is left of what was there
        is_doubted = self._doubted.get(partition) == place
        if marked <= place:
            # It stands before all there is, and that may be nothing.
            return not (is_doubted and marked == EARLIEST)
        if marked.entry >= 0 or is_doubted:
            return False
        if place == EARLIEST:  # it was made before the first message that there is
            return self.is_own or not is_new or partition in self._seen
        # The broker moved it itself: to the next ledger, when the one that was done was trimmed.
        return is_expected and marked.ledger > place.ledger

    def _note_ahead(self, partition: Partition, place: Offset, marked: Offset) -> None:
        logger.warning(
            "the subscription %s of %s was moved or made anew: it is at %s, and this query has committed %s; "
            "it is set back, and what was removed meanwhile is looked for",
            self.name, partition_topic(partition), marked, place,
        )  # fmt: skip

    def _note_gone(self, partition: Partition, place: Offset, *, is_there: bool) -> None:
        topic = partition_topic(partition)
        if is_there:
            logger.warning(
                "the subscription %s of %s was removed, by an administrator or because nobody was connected "
                "to it for long; all that this query has not read is there: it is made again",
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
    """The place behind which everything is still to be read."""
    place = committed.get(partition, EARLIEST)
    return first.get(partition, place) if place == EARLIEST else place


def _there(states: Mapping[Partition, SubscriptionCursor | None]) -> dict[Partition, SubscriptionCursor]:
    return {partition: state for partition, state in states.items() if state is not None}


def _after(message_id: MessageId) -> Offset:
    if message_id.ledger_id < 0:
        return EARLIEST
    return Offset.after_entry(message_id.ledger_id, message_id.entry_id)


def _mark_for(place: Offset) -> MessageId | None:
    """The entry up to which everything is read at ``place``; None when no entry is known to be the one."""
    entry = place.entry if place.batch_index == WHOLE_ENTRY else place.entry - 1
    return MessageId(-1, place.ledger, entry) if place.ledger >= 0 and entry >= 0 else None
