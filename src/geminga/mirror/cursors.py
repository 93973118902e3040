"""Mirroring of subscriptions: acknowledgements in the source are applied to the target's entries.

A subscription of the source has a mark-delete position, holes behind it (acknowledged entries), and partially
acknowledged batches. The mirror sends the same acknowledgements to the target: repeating them is harmless,
and messages that consumers have acknowledged in the target stay acknowledged. An entry that came from the
target stands for the original there. If a subscription is reset in the source while the mirror runs, it is
reset in the target, unless consumers have acknowledged there.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import merge

from geminga.admin import InternalStats
from geminga.entries import EntryConsumer
from geminga.errors import AdminConflict, ConsumerBusy, NotConnected
from geminga.ids import MessageId
from geminga.mirror.cluster_pair import ClusterPair, PartitionState
from geminga.mirror.cursor_state import CursorState, PartialBatch, mark_of, source_cursors
from geminga.mirror.history import LedgerLayout, StampHistory
from geminga.mirror.pairing import readers_of
from geminga.mirror.partition import PartitionMirror
from geminga.mirror.position_map import PositionMap, Range, behind
from geminga.mirror.positions import NOWHERE, Position

logger = logging.getLogger("geminga.mirror")

IN_USE = "in use in the target"
_ACKS_AT_ONCE = 5_000
_OPEN_SECONDS = 5.0


@dataclass(slots=True)
class FollowedSubscription:
    """A subscription of the source, as far as it was sent to the target."""

    state: CursorState | None = None
    """State that was last sent; None: nothing yet."""
    through: Position = NOWHERE
    """Source position up to which entries were mirrored then."""
    in_use: bool = False
    """Whether the target's subscription has consumers, and so is left alone."""
    marked: Position | None = None
    """Mark-delete position of the target's subscription after the last update."""
    older: PositionMap = field(default_factory=lambda: PositionMap(NOWHERE, runs_max=0))
    """Positions of entries older than the partition's map, from the first one that the target's subscription
    has not acknowledged ..."""
    older_through: Position = NOWHERE
    """... up to this source position."""
    own_after: Position | None = None
    """Target position up to which the target was read for that; None: not yet."""


class CursorMirror:
    """The subscriptions of one partition. ``followed``: those of the source, by name."""

    def __init__(self, ends: ClusterPair, partition: PartitionMirror) -> None:
        self.followed: dict[str, FollowedSubscription] = {}
        self._ends = ends
        self._partition = partition
        self.topic = partition.topic

    async def create(self) -> None:
        """Create the source's subscriptions in the target, before the first message is copied."""
        cursors = await source_cursors(self._ends.source_admin, self.topic)
        there = set(await self._ends.target_admin.subscriptions.list(self.topic))
        for name, state in cursors.items():
            if name not in there:
                await self._create(name, state)

    async def _create(self, name: str, state: CursorState) -> None:
        try:
            await self._ends.target_admin.subscriptions.create(
                self.topic, name, position=MessageId.earliest, properties=dict(state.properties)
            )
        except AdminConflict:
            pass

    async def follow(self) -> bool:
        """Mirror the subscriptions once; return whether anything changed. Raises errors of the clusters."""
        partition = self._partition
        if partition.state is not PartitionState.COPYING:
            return False
        cursors = await source_cursors(self._ends.source_admin, self.topic)
        if partition.pair is None or partition.state is not PartitionState.COPYING:
            return False
        for gone in set(self.followed) - set(cursors):
            del self.followed[gone]
        changed = {}
        for name, state in cursors.items():
            one = self.followed.setdefault(name, FollowedSubscription())
            if one.state != state or one.in_use or one.through < min(partition.done, state.highest):
                changed[name] = state
        if not changed:
            return False
        stats = await self._ends.target_admin.topics.stats(self.topic)
        readers = readers_of(stats)
        for name, state in changed.items():
            one, there = self.followed[name], stats.subscriptions.get(name)
            if there is None:
                one = self.followed[name] = FollowedSubscription()  # everything is sent again
                await self._create(name, state)
            if there is not None and there.consumers:
                one.in_use = True
                continue
            try:
                await self._update(name, state, one, readers)
                one.in_use = False
            except ConsumerBusy:
                one.in_use = True
        return True

    async def _update(
        self, name: str, state: CursorState, one: FollowedSubscription, readers: set[bytes]
    ) -> None:
        """Acknowledge in the target what is acknowledged in the source."""
        partition, session = self._partition, self._partition.counters.sessions
        done = partition.done  # before the statistics, which then show all entries up to there
        inside = await self._ends.target_admin.topics.internal_stats(self.topic)
        stands = mark_of(inside, name)
        before = partition.places.complete_from
        await self._learn_older(one, state, inside, stands, readers)
        if partition.counters.sessions != session or partition.places.complete_from != before:
            raise NotConnected(f"{self.topic} was opened again meanwhile")
        # No await from here until all positions are looked up: the partition's map changes.
        ranges, partly = self._new_acks(state, one, done)
        if ranges or partly:
            mark, alone = settled(LedgerLayout(inside), stands, behind(stands, ranges))
            if mark is not None or alone or partly:
                inside = await self._send(name, mark, alone, partly)
        one.state, one.through = state, min(done, state.highest)
        one.marked = mark_of(inside, name)

    def _own_history(self, inside: InternalStats) -> StampHistory:
        assert self._partition.pair is not None
        return StampHistory(self._ends.target, self.topic, (self._partition.pair.id,), inside)

    async def _learn_older(
        self,
        one: FollowedSubscription,
        state: CursorState,
        inside: InternalStats,
        stands: Position,
        readers: set[bytes],
    ) -> None:
        """Read the positions of entries that are older than the partition's map and acknowledged in the
        source: those that were mirrored, in the target; those that came from there, in the source."""
        begins = self._partition.places.complete_from
        through = min(state.highest, Position(begins.ledger, begins.entry - 1))
        own = self._own_history(inside)
        has_backlog = own.shape.offset_behind(stands) < own.shape.entries
        if begins == NOWHERE or through <= one.older_through or not has_backlog:
            return
        after = max(stands, one.own_after or NOWHERE)
        found: list[tuple[Position, Position]] = []
        async for entry in own.stamped(own.shape.offset_behind(after), own.shape.entries):
            if entry.stamp > through:
                break
            after = entry.position
            if entry.stamp > one.older_through:
                found.append((entry.stamp, entry.position))
        came: list[tuple[Position, Position]] = []
        if readers:
            stats = await self._ends.source_admin.topics.internal_stats(self.topic)
            there = StampHistory(self._ends.source, self.topic, readers, stats)
            start, stop = map(there.shape.offset_behind, (one.older_through, through))
            came = [(entry.position, entry.stamp) for entry in await there.last(stands, start, stop)]
        for source, target in merge(found, came):
            one.older.add(source, target)
        one.own_after, one.older_through = after, through

    def _new_acks(
        self, state: CursorState, one: FollowedSubscription, done: Position
    ) -> tuple[list[Range], list[tuple[Position, PartialBatch]]]:
        """Return the target's ranges and partly acknowledged batches that were not sent yet, of entries up to
        the source position ``done``."""
        known = one.state
        sent = NOWHERE if known is None else min(known.marked, one.through)
        wanted = [(sent, min(state.marked, done))]
        before = set(known.holes) if known is not None else set()
        for low, high in state.holes:
            if (low, high) not in before or high > one.through:
                wanted.append((max(low, state.marked), min(high, done)))
        ranges = [each for low, high in wanted for each in self._between(one, low, high)]
        partly_before = set(known.partly) if known is not None else set()
        partly = []
        for place, batch in state.partly:
            if place <= done and ((place, batch) not in partly_before or place > one.through):
                there = self._between(one, Position(place.ledger, place.entry - 1), place)
                partly += [(Position(*each[:2]), batch) for each in there]
        return ranges, partly

    def _between(self, one: FollowedSubscription, low: Position, high: Position) -> list[Range]:
        """Return the target's ranges of the source's entries after ``low`` up to ``high``."""
        places = self._partition.places
        border = Position(places.complete_from.ledger, places.complete_from.entry - 1)
        found = one.older.between(low, min(high, border)) if low < border else []
        return found + places.between(max(low, border), high)

    async def _send(
        self,
        name: str,
        mark: Position | None,
        ranges: list[Range],
        partly: list[tuple[Position, PartialBatch]],
    ) -> InternalStats:
        """Acknowledge in the target; return its statistics afterwards, before a consumer may attach."""
        consumer = await EntryConsumer.open(self._ends.target, self.topic, name, timeout=_OPEN_SECONDS)
        try:
            if mark is not None:
                consumer.acknowledge_through(*mark)
            sent = 0
            for ledger, first, last in ranges:
                for entry in range(first, last + 1):
                    consumer.acknowledge(ledger, entry)
                    sent += 1
                    if sent % _ACKS_AT_ONCE == 0:
                        await consumer.receipt()
            for target, batch in partly:
                consumer.acknowledge_indexes(*target, batch.messages, batch.done)
            await consumer.receipt()
            return await self._ends.target_admin.topics.internal_stats(self.topic)
        finally:
            await consumer.close()


def settled(
    shape: LedgerLayout, stands: Position, ranges: Iterable[Range]
) -> tuple[Position | None, list[Range]]:
    """Return for a subscription at a position, of which ``ranges`` are to be acknowledged: the new mark up to
    the first unacknowledged entry (None: unchanged), and the remaining ranges."""
    ordered = sorted(ranges)
    through, expected = None, shape.offset_behind(stands)
    for index, (ledger, first, last) in enumerate(ordered):
        if shape.offset(Position(ledger, first)) > expected:
            return through, ordered[index:]
        through = Position(ledger, last)
        expected = max(expected, shape.offset_behind(through))
    return through, []
