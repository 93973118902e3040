"""Mirroring of subscriptions: acknowledgements in the source are applied to the target's entries.

A subscription of the source has a mark-delete position, holes behind it (acknowledged entries), and partially
acknowledged batches. The mirror sends the same acknowledgements to the target: repeating them is harmless,
and messages that consumers have acknowledged in the target stay acknowledged. An entry that came from the
target stands for the original there. A reset in the source is repeated in the target as long as only mirrors
have acknowledged there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from geminga.admin import InternalStats, TopicStats
from geminga.client.async_consumer import AsyncConsumer
from geminga.client.context import ClientContext
from geminga.client.topic_set import TopicSet
from geminga.consumer.settings import ConsumerSettings, ConsumerType, InitialPosition
from geminga.errors import AdminConflict, ConsumerBusy, NotConnected
from geminga.ids import MessageId
from geminga.mirror.cluster_pair import ClusterPair, PartitionState
from geminga.mirror.cursor_state import (
    CursorState,
    PartialBatch,
    cursor_of,
    mark_of,
    newest_of,
    source_cursors,
    went_back,
)
from geminga.mirror.history import LedgerLayout
from geminga.mirror.pairing import PREFIX, pair_of, readers_of, subscription_of
from geminga.mirror.partition import PartitionMirror
from geminga.mirror.position_map import PositionMap, Range, behind
from geminga.mirror.positions import NOWHERE, Position
from geminga.mirror.subscription_checkpoint import NOTE_PREFIX, SubscriptionCheckpoint, notes_of, restored

logger = logging.getLogger("geminga.mirror")

IN_USE = "in use in the target"
MOVED_BACK = "moved back in the source; stays in the target, where it was used since"
BACK_THERE = "moved back in the target: what was taken in the source before is not taken there again"
AHEAD = "further in the target: used there, or moved back in the source while no mirror ran"
_ACKS_AT_ONCE = 5_000


class CursorMirror:
    """The subscriptions of one partition. ``applied``: the checkpoint of each, by name."""

    def __init__(self, ends: ClusterPair, partition: PartitionMirror) -> None:
        self.applied: dict[str, SubscriptionCheckpoint] = {}
        self._ends = ends
        self._partition = partition
        self.topic = partition.topic
        self._made: set[str] = set()
        """Subscriptions that this mirror created in the target: their older notes are void."""
        self._rollbacks = partition.rollbacks
        self._noted: dict[str, str] | None = None
        """Notes in the source's properties; None: not read yet."""

    async def create(self) -> None:
        """Create the source's subscriptions in the target, before the first message is copied."""
        cursors = await source_cursors(self._ends.source_admin, self.topic)
        there = set(await self._ends.target_admin.subscriptions.list(self.topic))
        for name, state in cursors.items():
            if name not in there:
                self._made.add(name)
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
        source = await self._ends.source_admin.topics.stats(self.topic)
        cursors = await source_cursors(self._ends.source_admin, self.topic, source)
        if partition.pair is None or partition.state is not PartitionState.COPYING:
            return False
        if self._rollbacks != partition.rollbacks:
            # The checkpoints describe a target that has lost messages since.
            self.applied.clear()
            self._noted, self._rollbacks = {}, partition.rollbacks
        if self._noted is None:
            self._restore(source, cursors)
        for gone in set(self.applied) - set(cursors):
            del self.applied[gone]
        if not cursors:
            return await self._note() if self._noted else False
        stats = await self._ends.target_admin.topics.stats(self.topic)
        readers, moved = readers_of(stats), False
        for name, state in cursors.items():
            applied = self.applied.setdefault(name, SubscriptionCheckpoint())
            through = min(partition.done, state.highest)
            if (
                applied.state == state
                and applied.through >= through
                and not applied.in_use
                and not applied.waits
                and not applied.restored
            ):
                continue
            moved = True
            there = stats.subscriptions.get(name)
            if there is None:
                applied.forget()
                await self._create(name, state)
            elif there.consumers:
                applied.in_use, applied.note = True, IN_USE
                continue
            note = ""
            try:
                if applied.state is not None and went_back(applied.state, state):
                    note = await self._take_back(name, state, applied, readers)
                elif applied.restored:
                    note = await self._is_ahead(name, state, applied)
                note = await self._apply(name, state, applied, readers) or note
                while applied.has_more:
                    applied.state, applied.through = state, through
                    note = await self._apply(name, state, applied, readers) or note
            except ConsumerBusy:
                applied.in_use, applied.note = True, IN_USE
                continue
            applied.state, applied.through = state, through
            applied.in_use, applied.note, applied.restored = False, note, False
        if moved or self._noted is None:
            await self._note()
        return moved

    def _restore(self, source: TopicStats, cursors: Mapping[str, CursorState]) -> None:
        """Restore the checkpoints that an earlier process noted."""
        mine = source.subscriptions.get(subscription_of(self._ends.mirror))
        found = {} if mine is None else mine.subscription_properties
        assert self._partition.pair is not None
        if pair_of(found) != self._partition.pair.id:
            return
        self._noted = {key: text for key, text in found.items() if key.startswith(NOTE_PREFIX)}
        for name, state in cursors.items():
            applied = restored(self._noted.get(NOTE_PREFIX + name, ""))
            if applied is not None and name not in self._made and name not in self.applied:
                assert applied.state is not None
                applied.state = replace(applied.state, properties=state.properties)
                self.applied[name] = applied

    async def _note(self) -> bool:
        """Note the checkpoints for the next process. Raises errors of admin REST."""
        pair, notes = self._partition.pair, notes_of(self.topic, self.applied)
        if pair is None or notes == self._noted or self._partition.state is not PartitionState.COPYING:
            return False  # other properties may be another mirror's by now
        self._noted = None  # even if the call fails
        await self._partition.notes.tell(notes)
        self._noted = notes
        return True

    async def _is_ahead(self, name: str, state: CursorState, applied: SubscriptionCheckpoint) -> str:
        """Return a warning if the target's subscription is ahead of its checkpoint and the source's."""
        inside = await self._ends.target_admin.topics.internal_stats(self.topic)
        if applied.stood is None or cursor_of(inside, name) == applied.stood:
            return ""
        first = await self._first_behind(state)
        return AHEAD if first is not None and first <= mark_of(inside, name) else ""

    async def _first_open(self, state: CursorState, readers: Mapping[bytes, str]) -> Position | None:
        """Return the target's first entry whose source entry is not acknowledged."""
        partition = self._partition
        first = await self._first_behind(state)
        found = [] if first is None else [first]
        for pair in readers:
            places = partition.loop_detection.places(pair)
            if state.marked >= places.complete_from:
                found += [Position(*one[:2]) for one in places.between(state.marked, partition.done)[:1]]
                continue
            if not await partition.loop_detection.may_have(pair, state.marked):
                continue
            history = await partition.loop_detection.history(pair)
            async for one in history.mirrored(
                history.shape.offset_behind(state.marked), history.shape.entries
            ):
                found.append(one.source)
                break
        return min(found, default=None)

    async def _first_behind(self, state: CursorState) -> Position | None:
        """Return the target position of the first mirrored entry after the source's mark-delete position."""
        partition = self._partition
        if state.marked >= partition.places.complete_from:
            ranges = partition.places.between(state.marked, partition.done)[:1]
            return Position(*ranges[0][:2]) if ranges else None
        assert partition.pair is not None
        found = await (await partition.history(partition.pair)).behind(state.marked)
        return None if found is None else found.target

    async def _apply(
        self, name: str, state: CursorState, applied: SubscriptionCheckpoint, readers: Mapping[bytes, str]
    ) -> str:
        """Send new acknowledgements to the target. Returns a warning or an empty text."""
        target, session = self._ends.target_admin, self._partition.counters.sessions
        inside = await target.topics.internal_stats(self.topic)
        places, older = await self._places(state)
        stands, loop_detection = mark_of(inside, name), []
        if readers and LedgerLayout(inside).offset_behind(stands) < LedgerLayout(inside).offset_behind(
            applied.seen
        ):
            # Another mirror has acknowledged these entries in the source, and may not have mirrored the reset
            # yet: acknowledging them in the target would undo the reset. Later acknowledgements are applied.
            applied.seen, applied.stood, applied.waits = stands, None, False
            applied.echoed = dict.fromkeys(readers, self._partition.done)
            return BACK_THERE
        applied.seen = stands
        for pair, reader in readers.items():
            told = NOWHERE if applied.state is None else applied.state.marked
            told = min(told, applied.echoed.get(pair, NOWHERE))
            if stands >= newest_of(inside):
                # All entries are acknowledged.
                found, through = self._partition.loop_detection.places(pair), None
            else:
                found, through = await self._echo_places(pair, told, stands)
            loop_detection.append(ReturnedEntries(pair, found, mark_of(inside, reader), through))
        if self._partition.counters.sessions != session:
            raise NotConnected(f"{self.topic} was opened anew meanwhile")
        # No await from here until all is looked up: the maps belong to the partition and change.
        done = self._partition.done
        marked = floor = places.floor(min(state.marked, done))
        reach, own = (NOWHERE, []) if marked is None else places.targets(marked)
        if marked is None and older is not None:
            marked = floor = older
            reach = Position(older.ledger, older.entry + 1)
        known = applied.state
        before_partly = set(known.partly) if known is not None else set()
        ranges: list[Range] = []
        for low, high in _new_holes(state, known, applied.through):
            ranges += places.between(max(low, state.marked), min(high, done))
        partly = []
        for place, batch in state.partly:
            there = places.exact(place) if place <= done else None
            if there is not None and ((place, batch) not in before_partly or place > applied.through):
                partly.append((there, batch))
        echoed: dict[bytes, Position] = {}
        came: list[Range] = []
        applied.has_more = False
        for echo in loop_detection:
            before = applied.echoed.get(echo.pair, NOWHERE)
            up_to = echo.up_to(done)
            since = NOWHERE if known is None else min(known.marked, before)
            came += echo.places.between(since, min(state.marked, up_to))
            for low, high in _new_holes(state, known, before):
                ranges += echo.places.between(max(low, state.marked), min(high, up_to))
            for place, batch in state.partly:
                there = echo.places.exact(place) if place <= up_to else None
                if there is not None and ((place, batch) not in before_partly or place > before):
                    partly.append((there, batch))
            echoed[echo.pair] = up_to
            applied.has_more |= before < up_to == echo.through
        waits = any(up_to < min(done, state.highest) for up_to in echoed.values())
        if marked == applied.marked:
            marked = None
        if marked is not None or came or ranges or partly:
            if newest_of(inside) < max([NOWHERE if marked is None else marked, *map(_end, came)]):
                inside = await target.topics.internal_stats(self.topic)
            stands = mark_of(inside, name)
            if marked is not None:
                came += await self._own(inside, stands, applied.marked, marked, reach, own)
            through, alone = settled(LedgerLayout(inside), stands, behind(stands, came))
            await self._tell(name, applied, through, [*alone, *ranges], partly, floor)
        elif applied.stood is None and has_only(inside, name, floor):
            applied.stood = cursor_of(inside, name)
        if marked is not None:
            applied.marked = marked
        applied.echoed, applied.waits = echoed, waits
        return ""

    async def _own(
        self,
        inside: InternalStats,
        stands: Position,
        known: Position | None,
        marked: Position,
        reach: Position,
        own: list[Range],
    ) -> list[Range]:
        """Return the mirrored entries of the target up to ``marked`` that are not applied yet to a
        subscription at ``stands``; ``own`` has the entries from ``reach`` on."""
        assert self._partition.pair is not None
        after = stands if known is None else max(stands, known)
        if after >= marked:
            return []
        history = self._partition.history_in(inside, self._partition.pair.id)
        if history.shape.offset_behind(after) < history.shape.offset(reach):
            own = await history.between(after, marked)
        return behind(after, own)

    async def _tell(
        self,
        name: str,
        applied: SubscriptionCheckpoint,
        through: Position | None,
        ranges: list[Range],
        partly: list[tuple[Position, PartialBatch]],
        floor: Position | None,
    ) -> None:
        consumer = await _open(self._ends.target, self.topic, name)
        try:
            (handle,) = consumer.group.handles.values()
            now = self._ends.target.now
            inside = await self._ends.target_admin.topics.internal_stats(self.topic)
            # The consumer is exclusive, so that no other client acknowledges meanwhile.
            mine = applied.stood == cursor_of(inside, name) or has_only(inside, name, floor)
            if through is not None:
                handle.consumer.acknowledge_id_through(through.message_id(), now())
            said = 0
            for ledger, first, last in ranges:
                for entry in range(first, last + 1):
                    handle.consumer.acknowledge_id(MessageId(-1, ledger, entry), now())
                    said += 1
                    if said % _ACKS_AT_ONCE == 0:
                        await consumer.acknowledging.receipt()
            for target, batch in partly:
                handle.consumer.acknowledge_indexes(
                    (target.ledger, target.entry), batch.messages, batch.done, now()
                )
            await consumer.acknowledging.receipt()
            inside = await self._ends.target_admin.topics.internal_stats(self.topic)
            applied.stood = cursor_of(inside, name) if mine else None
            applied.seen = mark_of(inside, name)
        finally:
            await consumer.close()

    async def _take_back(
        self, name: str, state: CursorState, applied: SubscriptionCheckpoint, readers: Mapping[bytes, str]
    ) -> str:
        """Reset the target's subscription as the source's was, unless consumers have acknowledged in the
        target since. Returns a warning or an empty text. Raises `ConsumerBusy`."""
        first = await self._first_open(state, readers)
        if first is None:
            applied.forget()
            return ""
        consumer = await _open(self._ends.target, self.topic, name)
        try:
            inside = await self._ends.target_admin.topics.internal_stats(self.topic)
            stood, current = applied.stood, cursor_of(inside, name)
            applied.forget()
            stands = mark_of(inside, name)
            if stands < first and not current[1]:
                applied.stood = current  # the target is not ahead
                return ""
            if current != stood:
                logger.warning(
                    "%s of %s was moved back in the source, and stays in the target, where it was used since",
                    name, self.topic,
                )  # fmt: skip
                return MOVED_BACK
            logger.info("%s of %s was moved back in the source: so it is in the target", name, self.topic)
            if stands < first:
                # Only mirrored entries are reopened. Entries of other producers before them stay to be
                # consumed.
                first = Position(stands.ledger, stands.entry + 1)
            await consumer.seek(first.message_id() if first.ledger >= 0 else MessageId.earliest)
            inside = await self._ends.target_admin.topics.internal_stats(self.topic)
            applied.stood = cursor_of(inside, name)
            return ""
        finally:
            await consumer.close()

    async def _places(self, state: CursorState) -> tuple[PositionMap, Position | None]:
        """Return a map that covers the entries of the state; entries older than this process are searched in
        the target. If it does not reach the source's mark, also return that mark's target position, if
        any."""
        partition = self._partition
        places, before = partition.places, partition.places.complete_from
        if state.marked >= before or before == NOWHERE:
            return places, None
        assert partition.pair is not None
        history = await partition.history(partition.pair)
        start = await history.floor(state.marked)
        if start is not None and (state.highest == state.marked or places.room < places.runs_max // 2):
            return places, start.target  # holes can be older than the map
        # The target may have deleted entries that old; its oldest entry is later.
        first = start or await history.first()
        found = PositionMap(NOWHERE) if first is None else await history.places(first, before)
        if start is None and (first is None or found.complete_from == first.source):
            found.complete_from = NOWHERE
        if places.complete_from != before:
            # A new session has begun: entries copied in between are in no map.
            raise NotConnected(f"{self.topic} was opened anew meanwhile")
        places.put_before(found)
        return places, None if start is None else start.target

    async def _echo_places(
        self, pair: bytes, told: Position, beyond: Position
    ) -> tuple[PositionMap, Position | None]:
        """Like `_places`, for entries that the mirror of ``pair`` copied from the target: the source's
        entries hold their target positions. Covers entries after ``told`` in the source and ``beyond`` in the
        target, up to a limit, which is returned too."""
        places = self._partition.loop_detection.places(pair)
        before = places.complete_from
        if before == NOWHERE or (told.ledger, told.entry + 1) >= before:
            return places, None
        if not await self._partition.loop_detection.may_have(pair, told):
            return places, None
        history = await self._partition.loop_detection.history(pair)
        offset = 0 if told == NOWHERE else history.shape.offset_behind(told)
        found = PositionMap(NOWHERE if told == NOWHERE else Position(told.ledger, told.entry + 1))
        start = await history.floor(beyond)
        if start is not None and start.offset > offset:
            offset, found.complete_from = start.offset, start.target
        through = Position(before.ledger, before.entry - 1)
        async for one in history.mirrored(offset, history.shape.entries):
            if one.target >= before:
                break
            found.add(one.target, one.source)
            if found.room <= 1:
                through = one.target
                break
        if self._partition.loop_detection.places(pair) is not places or places.complete_from != before:
            raise NotConnected(f"{self.topic} was opened anew meanwhile")
        if found.room <= 1 or len(found) > places.room:
            return found, through
        places.put_before(found)
        return places, None


@dataclass(frozen=True, slots=True)
class ReturnedEntries:
    """Entries that the mirror of ``pair`` copied from the target; ``taken``: its progress there."""

    pair: bytes
    places: PositionMap
    taken: Position
    through: Position | None
    """Limit of the known positions; None: all are known."""

    def up_to(self, done: Position) -> Position:
        """Return up to which source position the entries are known. If the target was restored from a backup,
        its positions mean other entries; that mirror's subscription shows which are unchanged."""
        return min(one for one in (done, self.through, self.places.reach(self.taken)) if one is not None)


def _new_holes(
    state: CursorState, known: CursorState | None, covered: Position
) -> Iterator[tuple[Position, Position]]:
    """Return the holes that are not applied completely. ``covered``: limit of the ``known`` holes."""
    before = set(known.holes) if known is not None else set()
    return (hole for hole in state.holes if hole not in before or hole[1] > covered)


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


def has_only(inside: InternalStats, name: str, floor: Position | None) -> bool:
    """Return whether a subscription has acknowledged nothing after ``floor``, according to its mark."""
    if cursor_of(inside, name)[1]:
        return False
    stands = mark_of(inside, name)
    return (floor is not None and stands <= floor) or LedgerLayout(inside).offset_behind(stands) == 0


def _end(one: Range) -> Position:
    return Position(one[0], one[2])


async def _open(context: ClientContext, topic: str, subscription: str) -> AsyncConsumer:
    """Open a consumer that receives nothing and only acknowledges. Raises `ConsumerBusy`."""
    settings = ConsumerSettings(
        consumer_type=ConsumerType.Exclusive,
        initial_position=InitialPosition.Earliest,
        receiver_queue_size=0,
        ack_receipt_enabled=True,
        batch_index_ack_enabled=True,
        ack_grouping_time_ms=0,
        force_topic_creation=False,
    )
    name = f"{PREFIX}cursor-{context.random.getrandbits(40):010x}"
    consumer = AsyncConsumer(context, TopicSet(context, topic), subscription, name, settings)
    await consumer.open(timeout=5.0)
    context.register(consumer)
    return consumer
