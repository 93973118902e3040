"""Subscriptions: where they stand in the source is said of the target's entries.

A subscription of the source has a mark-delete position, holes behind it (entries that are acknowledged), and
batches of which some messages are acknowledged. The target gets the same as acknowledgements: they can be
repeated without harm, and what somebody has acknowledged in the target already stays acknowledged. An entry
that came from the target stands for the one there, which another mirror took. What is moved back in the
source is moved back in the target while nobody but mirrors has acknowledged there.
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
    """The subscriptions of one partition. ``applied``: what the target was told, by name."""

    def __init__(self, ends: ClusterPair, partition: PartitionMirror) -> None:
        self.applied: dict[str, SubscriptionCheckpoint] = {}
        self._ends = ends
        self._partition = partition
        self.topic = partition.topic
        self._made: set[str] = set()
        """Subscriptions that this made in the target: what was noted of them does not count."""
        self._rollbacks = partition.rollbacks
        self._noted: dict[str, str] | None = None
        """What the source has of notes; None: not known."""

    async def create(self) -> None:
        """Make the source's subscriptions in the target, before the first message, so that none is lost."""
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
        """One round; whether there was anything to tell. Raises what admin REST and the brokers report."""
        partition = self._partition
        if partition.state is not PartitionState.COPYING:
            return False
        source = await self._ends.source_admin.topics.stats(self.topic)
        cursors = await source_cursors(self._ends.source_admin, self.topic, source)
        if partition.pair is None or partition.state is not PartitionState.COPYING:
            return False
        if self._rollbacks != partition.rollbacks:
            # What was told was said of what the target has not got any more.
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
        """Know what an earlier process has told the target."""
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
        """Note it for the next process. Raises what admin REST reports."""
        pair, notes = self._partition.pair, notes_of(self.topic, self.applied)
        if pair is None or notes == self._noted or self._partition.state is not PartitionState.COPYING:
            return False  # what is written besides may be another mirror's by now
        self._noted = None  # whatever becomes of the call
        await self._partition.notes.tell(notes)
        self._noted = notes
        return True

    async def _is_ahead(self, name: str, state: CursorState, applied: SubscriptionCheckpoint) -> str:
        """Whether the target's subscription has more than it was told by what is noted, and is where the
        source's is not: what is to be said about that."""
        inside = await self._ends.target_admin.topics.internal_stats(self.topic)
        if applied.stood is None or cursor_of(inside, name) == applied.stood:
            return ""
        first = await self._first_behind(state)
        return AHEAD if first is not None and first <= mark_of(inside, name) else ""

    async def _first_open(self, state: CursorState, readers: Mapping[bytes, str]) -> Position | None:
        """The target's first entry that stands for one which the source has not acknowledged."""
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
        """Where the mirror's first entry lies in the target of what is behind the source's mark."""
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
        """Tell the target what it was not told yet. What is to be said about that."""
        target, session = self._ends.target_admin, self._partition.counters.sessions
        inside = await target.topics.internal_stats(self.topic)
        places, older = await self._places(state)
        stands, loop_detection = mark_of(inside, name), []
        if readers and LedgerLayout(inside).offset_behind(stands) < LedgerLayout(inside).offset_behind(
            applied.seen
        ):
            # Another mirror has told the source what was taken there before, and may not have taken the
            # rewind along yet: to bring that back would undo it. What is taken from now on is told.
            logger.info("%s of %s was moved back in the target", name, self.topic)
            applied.seen, applied.stood, applied.waits = stands, None, False
            applied.echoed = dict.fromkeys(readers, self._partition.done)
            return BACK_THERE
        applied.seen = stands
        for pair, reader in readers.items():
            told = NOWHERE if applied.state is None else applied.state.marked
            told = min(told, applied.echoed.get(pair, NOWHERE))
            if stands >= newest_of(inside):
                # Whatever there is, it is acknowledged.
                found, through = self._partition.loop_detection.places(pair), None
            else:
                found, through = await self._echo_places(pair, told, stands)
            loop_detection.append(ReturnedEntries(pair, found, mark_of(inside, reader), through))
        if self._partition.counters.sessions != session:
            raise NotConnected(f"{self.topic} was opened anew meanwhile")
        # No await from here on until all is looked up: the maps are the partition's own, and change.
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
        """The mirror's entries of the target up to ``marked`` that a subscription, which ``stands`` there,
        was not told of yet; ``own`` has those from ``reach`` on."""
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
            # Nobody else acknowledges here while the consumer is there.
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
        """The source's subscription was moved back: so is the target's, unless somebody has taken something
        there since it was told last. What is to be said about that. Raises `ConsumerBusy`."""
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
                applied.stood = current  # it is not ahead
                return ""
            if current != stood:
                logger.warning(
                    "%s of %s was moved back in the source, and stays in the target, where it was used since",
                    name, self.topic,
                )  # fmt: skip
                return MOVED_BACK
            logger.info("%s of %s was moved back in the source: so it is in the target", name, self.topic)
            if stands < first:
                # Only holes are taken back. What others have published there before stays to be consumed.
                first = Position(stands.ledger, stands.entry + 1)
            await consumer.seek(first.message_id() if first.ledger >= 0 else MessageId.earliest)
            inside = await self._ends.target_admin.topics.internal_stats(self.topic)
            applied.stood = cursor_of(inside, name)
            return ""
        finally:
            await consumer.close()

    async def _places(self, state: CursorState) -> tuple[PositionMap, Position | None]:
        """A map that knows what the state speaks of; what is older than this process is looked up. Where it
        does not reach back to the source's mark: the place of that in the target, if there is one."""
        partition = self._partition
        places, before = partition.places, partition.places.complete_from
        if state.marked >= before or before == NOWHERE:
            return places, None
        assert partition.pair is not None
        history = await partition.history(partition.pair)
        start = await history.floor(state.marked)
        if start is not None and (state.highest == state.marked or places.room < places.runs_max // 2):
            return places, start.target  # holes that are older than a map can be come again
        # Perhaps nothing that old is in the target any more: what is left of it begins later.
        first = start or await history.first()
        found = PositionMap(NOWHERE) if first is None else await history.places(first, before)
        if start is None and (first is None or found.complete_from == first.source):
            found.complete_from = NOWHERE
        if places.complete_from != before:
            # A new session: what lies between is in no map.
            raise NotConnected(f"{self.topic} was opened anew meanwhile")
        places.put_before(found)
        return places, None if start is None else start.target

    async def _echo_places(
        self, pair: bytes, told: Position, beyond: Position
    ) -> tuple[PositionMap, Position | None]:
        """The same for what came from the target by the mirror of ``pair``: here the source says where it
        lies there. Knows what is behind ``told`` in the source and ``beyond`` in the target, but no further
        than up to the position beside it: there may be more than a map can be."""
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
    """What came from the target by the mirror of ``pair``, which has ``taken`` the target up to there."""

    pair: bytes
    places: PositionMap
    taken: Position
    through: Position | None
    """The places end there; None: they know all."""

    def up_to(self, done: Position) -> Position:
        """How far in the source it can be told. A target that was brought back from a backup means other
        entries by the same positions: that mirror's subscription there says which are still the same."""
        return min(one for one in (done, self.through, self.places.reach(self.taken)) if one is not None)


def _new_holes(
    state: CursorState, known: CursorState | None, covered: Position
) -> Iterator[tuple[Position, Position]]:
    """Those of which something is not told yet; ``covered``: up to where what is ``known`` was."""
    before = set(known.holes) if known is not None else set()
    return (hole for hole in state.holes if hole not in before or hole[1] > covered)


def settled(
    shape: LedgerLayout, stands: Position, ranges: Iterable[Range]
) -> tuple[Position | None, list[Range]]:
    """What is to be said of a topic of which ``ranges`` are to be acknowledged behind where a subscription
    stands: the mark that it gets (None: none), up to the first entry that is not among them; and the rest."""
    ordered = sorted(ranges)
    through, expected = None, shape.offset_behind(stands)
    for index, (ledger, first, last) in enumerate(ordered):
        if shape.offset(Position(ledger, first)) > expected:
            return through, ordered[index:]
        through = Position(ledger, last)
        expected = max(expected, shape.offset_behind(through))
    return through, []


def has_only(inside: InternalStats, name: str, floor: Position | None) -> bool:
    """Whether a subscription has nothing acknowledged behind ``floor``, at least as its mark tells."""
    if cursor_of(inside, name)[1]:
        return False
    stands = mark_of(inside, name)
    return (floor is not None and stands <= floor) or LedgerLayout(inside).offset_behind(stands) == 0


def _end(one: Range) -> Position:
    return Position(one[0], one[2])


async def _open(context: ClientContext, topic: str, subscription: str) -> AsyncConsumer:
    """A consumer that receives nothing and acknowledges. Raises `ConsumerBusy`."""
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
