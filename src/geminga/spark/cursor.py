"""A query's own subscription, kept at what Spark has committed.

Spark's source API has a `commit`, but calls it only when the next micro-batch begins: never for the last
one of an AvailableNow run, not even after a restart. What it does at every trigger, the idle ones, the
last look of an AvailableNow run and the first one of a restart included, is to ask what is new *since an
offset*, and that offset is the end of the last micro-batch in its commit log. So the cursor is moved there.
It is never ahead of Spark: whatever a restart may read again is still there.

The subscription is durable. While it exists the broker keeps what lies behind the cursor, so that a start
whose ledger was trimmed is known to be no loss (`QueryCursor.kept`).

No I/O here: `Cursors` is what moves subscriptions, see `geminga.spark.watch`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from geminga.ids import MessageId
from geminga.spark.offsets import EARLIEST, WHOLE_ENTRY, Offset, Offsets, Partition, partition_topic

logger = logging.getLogger("geminga.spark")


@dataclass(frozen=True, slots=True)
class Cursor:
    """A partition's newest message, and the mark-delete position of the subscription; None: unknown."""

    newest: MessageId
    marked: MessageId | None


class Cursors(Protocol):
    """One subscription on many partitions; every call goes to all of them at once."""

    def states(
        self, partitions: Iterable[Partition], *, from_latest: Collection[Partition]
    ) -> dict[Partition, Cursor]:
        """Where they stand. A subscription that is not there is made: behind the newest message for the
        partitions in ``from_latest``, else before the first."""

    def move(self, places: Mapping[Partition, MessageId]) -> None:
        """Everything up to and with these places is done; returns when the broker has stored it."""

    def rewind(self, places: Mapping[Partition, MessageId]) -> None:
        """Set the cursors back before these places."""

    def close(self) -> None: ...


@dataclass
class QueryCursor:
    """The subscription ``name`` of one query."""

    name: str
    cursors: Cursors
    is_own: bool = False
    """The name is this query's own: nobody else made the subscription."""
    kept: set[Partition] = field(default_factory=set)
    """Partitions of which nothing behind the offset followed last can have been removed."""
    _moved: dict[Partition, MessageId] = field(default_factory=dict)
    _trusted: Offsets = field(default_factory=dict)
    """Where the cursors stood when it was found that they stand for the offset followed last."""

    def position(self, partitions: Collection[Partition]) -> Offsets:
        """Where the subscription stands; behind the newest message where it is made now."""
        states = self.cursors.states(partitions, from_latest=partitions)
        return {partition: _after(state.marked or state.newest) for partition, state in states.items()}

    def follow(self, committed: Offsets, partitions: Iterable[Partition], *, is_new: bool) -> Offsets:
        """Move to what Spark has committed; returns the offset behind the newest message of each partition.

        ``is_new``: the query begins at ``committed``. Partitions that are not in it are new.
        """
        # One that should be there and is not shows: it is made behind the newest message.
        expected = set() if is_new else set(committed)
        states = self.cursors.states(partitions, from_latest=expected)
        moves: dict[Partition, MessageId] = {}
        rewinds: dict[Partition, MessageId] = {}
        for partition, state in states.items():
            place = committed.get(partition, EARLIEST)
            marked = None if state.marked is None else _after(state.marked)
            is_expected = partition in expected
            if (
                marked is not None
                and marked > place
                and not self._is_right(marked, place, is_expected=is_expected, is_new=is_new)
            ):
                self.kept.discard(partition)
                if is_expected:
                    self._note_ahead(partition, place, marked)
                rewinds[partition] = place.next_place
                continue
            if marked is not None:
                self.kept.add(partition)
                self._trusted[partition] = marked
            wanted = _mark_for(place)
            if wanted is not None and (marked is None or _after(wanted) > marked):
                moves[partition] = wanted
        if rewinds:
            self.cursors.rewind(rewinds)
        moves = {p: place for p, place in moves.items() if self._moved.get(p) != place}
        if moves:
            self.cursors.move(moves)
            self._moved.update(moves)
        return {partition: _after(state.newest) for partition, state in states.items()}

    def keeps(self, places: Offsets) -> set[Partition]:
        """Of partitions that were followed: those of which the subscription keeps, now, what lies behind."""
        states = self.cursors.states(places, from_latest=set(places))
        found = set()
        for partition, state in states.items():
            place, marked = places[partition], None if state.marked is None else _after(state.marked)
            if marked is not None and (marked <= place or marked == self._trusted.get(partition)):
                found.add(partition)
        return found

    def _is_right(self, marked: Offset, place: Offset, *, is_expected: bool, is_new: bool) -> bool:
        """Whether a cursor between two ledgers stands for ``place``, though that is before it."""
        if marked.entry >= 0:
            return False
        if place == EARLIEST:  # it was made before the first message that there is
            return self.is_own or not is_new
        # The broker moved it itself: to the next ledger, when the one that was done was trimmed.
        return is_expected and marked.ledger > place.ledger

    def _note_ahead(self, partition: Partition, place: Offset, marked: Offset) -> None:
        logger.warning(
            "the subscription %s of %s was moved or made anew: it is at %s, and this query has committed %s; "
            "it is set back, and what was removed meanwhile is looked for",
            self.name, partition_topic(partition), marked, place,
        )  # fmt: skip

    def close(self) -> None:
        self.cursors.close()


def _after(message_id: MessageId) -> Offset:
    if message_id.ledger_id < 0:
        return EARLIEST
    return Offset.after_entry(message_id.ledger_id, message_id.entry_id)


def _mark_for(place: Offset) -> MessageId | None:
    """The entry up to which everything is read at ``place``; None when no entry is known to be the one."""
    entry = place.entry if place.batch_index == WHOLE_ENTRY else place.entry - 1
    return MessageId(-1, place.ledger, entry) if place.ledger >= 0 and entry >= 0 else None
