"""Where subscriptions stand: read from the source, said of the target's entries, and never moved back there.

A subscription of the source has a mark-delete position, holes behind it (entries that are acknowledged), and
batches of which some messages are acknowledged. The target gets the same as acknowledgements: they can be
repeated without harm, and what somebody has acknowledged in the target already stays acknowledged.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from geminga.admin import topic_path
from geminga.asyncio import Admin
from geminga.client.admin.exchange import part
from geminga.client.async_consumer import AsyncConsumer
from geminga.client.core import ClientCore
from geminga.client.topic_set import TopicSet
from geminga.consumer.settings import ConsumerSettings, ConsumerType, InitialPosition
from geminga.errors import AdminConflict, ConsumerBusy, NotConnected
from geminga.ids import MessageId
from geminga.mirror.history import TargetHistory
from geminga.mirror.pairing import PREFIX
from geminga.mirror.partition import Ends, PartitionMirror, State
from geminga.mirror.place_map import PlaceMap, Range, behind
from geminga.mirror.positions import NOWHERE, Position, parse_position

logger = logging.getLogger("geminga.mirror")

_RANGE = re.compile(r"[(\[](-?\d+):(-?\d+)\.\.(-?\d+):(-?\d+)[\])]")
_BROKERS_OWN = ("__compaction", "pulsar.dedup", "pulsar.repl.", PREFIX)
HOLES_MAX = 1_000_000
"""Holes of a subscription that are taken along, those at its front."""
_PAGE = 10_000
_ACKS_AT_ONCE = 5_000


@dataclass(frozen=True, slots=True)
class Partly:
    """A batch of ``messages`` of which those at ``done`` are acknowledged."""

    messages: int
    done: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CursorState:
    """Of one subscription in the source. ``holes``: behind the first, up to and with the second position."""

    marked: Position
    holes: tuple[tuple[Position, Position], ...] = ()
    partly: tuple[tuple[Position, Partly], ...] = ()
    properties: tuple[tuple[str, str], ...] = ()

    @property
    def highest(self) -> Position:
        ends = [self.marked, *(high for _, high in self.holes), *(place for place, _ in self.partly)]
        return max(ends)


@dataclass(slots=True)
class Applied:
    """What the target was told of one subscription."""

    state: CursorState | None = None
    through: Position = NOWHERE
    note: str = ""
    in_use: bool = False
    marked: Position | None = field(default=None)
    """The last mark-delete position in the target."""


async def source_cursors(admin: Admin, topic: str) -> dict[str, CursorState]:
    """The durable subscriptions of a topic or partition, those of brokers and mirrors left out."""
    stats = await admin.topics.stats(topic)
    names = [
        name
        for name, subscription in stats.subscriptions.items()
        if subscription.durable and not name.startswith(_BROKERS_OWN)
    ]
    if not names:
        return {}
    inside = await admin.topics.internal_stats(topic)
    found = {}
    for name in names:
        cursor = inside.cursors.get(name)
        if cursor is None:
            continue
        properties = tuple(sorted(stats.subscriptions[name].subscription_properties.items()))
        if _is_whole(cursor.raw):
            found[name] = CursorState(
                parse_position(cursor.mark_delete_position),
                tuple(parse_ranges(cursor.individually_deleted_messages)),
                tuple(_partly(cursor.raw.get("partlyAcknowledgedBatches") or {})),
                properties,
            )
        else:
            found[name] = await _in_pages(admin, topic, name, properties)
    return found


def parse_ranges(text: str) -> list[tuple[Position, Position]]:
    """``[(3:0..3:5],(3:7..3:8]]``, as internal statistics write it."""
    found = []
    for match in _RANGE.finditer(text):
        low_ledger, low_entry, high_ledger, high_entry = map(int, match.groups())
        low, high = Position(low_ledger, low_entry), Position(high_ledger, high_entry)
        if match[0][0] == "[":
            low = Position(low.ledger, low.entry - 1)
        if match[0][-1] == ")":
            high = Position(high.ledger, high.entry - 1)
        found.append((low, high))
    return found


def _is_whole(raw: Any) -> bool:
    """Geminga's internal statistics show the first of many holes; Apache Pulsar's show all."""
    if "partlyAcknowledgedBatchCount" not in raw:
        return True
    shown = len(parse_ranges(raw.get("individuallyDeletedMessages", "")))
    return shown >= int(raw.get("totalNonContiguousDeletedMessagesRange", 0)) and len(
        raw.get("partlyAcknowledgedBatches") or {}
    ) >= int(raw["partlyAcknowledgedBatchCount"])


def _partly(raw: Any) -> Iterable[tuple[Position, Partly]]:
    for place, batch in raw.items():
        messages = int(batch.get("messages", 0))
        left = {index for first, last in batch["open"] for index in range(first, last + 1)}
        if messages > 0:
            done = tuple(index for index in range(messages) if index not in left)
            yield parse_position(place), Partly(messages, done)


async def _in_pages(
    admin: Admin, topic: str, name: str, properties: tuple[tuple[str, str], ...]
) -> CursorState:
    path = f"{topic_path(topic)}/subscription/{part('subscription', name)}/cursor"
    holes: list[tuple[Position, Position]] = []
    partly: list[tuple[Position, Partly]] = []
    marked: Position | None = None
    after: int | None = None
    while True:
        page = await admin.call("GET", path, query={"after": after, "limit": _PAGE})
        if marked is None:
            marked = parse_position(page["markDeletePosition"])
        holes += parse_ranges(page["individuallyDeletedMessages"])
        partly += _partly(page["partlyAcknowledgedBatches"])
        after = page["next"]
        if len(holes) + len(partly) >= HOLES_MAX and after is not None:
            logger.warning(
                "%s of %s has more than %d holes: what was acknowledged behind them comes again in the "
                "target", name, topic, HOLES_MAX,
            )  # fmt: skip
            after = None
        if after is None:
            return CursorState(marked, tuple(holes), tuple(partly), properties)


class CursorMirror:
    """The subscriptions of one partition. ``applied``: what the target was told, by name."""

    def __init__(self, ends: Ends, partition: PartitionMirror) -> None:
        self.applied: dict[str, Applied] = {}
        self._ends = ends
        self._partition = partition
        self.topic = partition.topic

    async def create(self) -> None:
        """Make the source's subscriptions in the target, before the first message, so that none is lost."""
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

    async def follow(self) -> None:
        """One round. Raises what admin REST and the brokers report."""
        cursors = await source_cursors(self._ends.source_admin, self.topic)
        for gone in set(self.applied) - set(cursors):
            del self.applied[gone]
        partition = self._partition
        if not cursors or partition.pair is None or partition.state is not State.COPYING:
            return
        stats = await self._ends.target_admin.topics.stats(self.topic)
        for name, state in cursors.items():
            applied = self.applied.setdefault(name, Applied())
            through = min(partition.done, state.highest)
            if applied.state == state and applied.through >= through and not applied.in_use:
                continue
            there = stats.subscriptions.get(name)
            if there is None:
                await self._create(name, state)
            elif there.consumers:
                applied.in_use, applied.note = True, "in use in the target"
                continue
            try:
                await self._apply(name, state, partition.done, applied)
            except ConsumerBusy:
                applied.in_use, applied.note = True, "in use in the target"
                continue
            applied.state, applied.through = state, through
            applied.in_use, applied.note = False, ""

    async def _apply(self, name: str, state: CursorState, done: Position, applied: Applied) -> None:
        places = await self._places(state)
        # No await from here on until all is looked up: the map is the partition's own, and changes.
        marked = places.floor(min(state.marked, done))
        known = applied.state
        before_holes = set(known.holes) if known is not None else set()
        before_partly = set(known.partly) if known is not None else set()
        covered = applied.through
        ranges: list[Range] = []
        for low, high in state.holes:
            if (low, high) in before_holes and high <= covered:
                continue
            ranges += places.between(max(low, state.marked), min(high, done))
        partly = []
        for place, batch in state.partly:
            target = places.exact(place) if place <= done else None
            if target is not None and ((place, batch) not in before_partly or place > covered):
                partly.append((target, batch))
        if (marked is None or marked == applied.marked) and not ranges and not partly:
            return
        through: Position | None = None
        if marked is not None:
            reach, own = places.targets(marked)
            through, alone = await self._settled(name, marked, applied.marked, reach, own)
            ranges = [*alone, *ranges]
        consumer = await _open(self._ends.target, self.topic, name)
        try:
            (handle,) = consumer.group.handles.values()
            now = self._ends.target.now
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
        finally:
            await consumer.close()
        applied.marked = marked

    async def _settled(
        self, name: str, marked: Position, known: Position | None, reach: Position, own: list[Range]
    ) -> tuple[Position | None, list[Range]]:
        """What of the target a subscription is done with when its mark reaches ``marked`` there: up to where
        there is nothing but the mirror's entries (None: nowhere), and the mirror's entries behind that.

        ``known`` was told before. ``own`` are the mirror's entries up to ``marked``, from ``reach`` on all.
        """
        assert self._partition.pair is not None
        stats = await self._ends.target_admin.topics.internal_stats(self.topic)
        history = TargetHistory(self._ends.target, self.topic, self._partition.pair.id, stats)
        cursor = stats.cursors.get(name)
        stands = NOWHERE if cursor is None else parse_position(cursor.mark_delete_position)
        after = stands if known is None else max(stands, known)
        if after >= marked:
            return None, []
        shape = history.shape
        if shape.offset_behind(after) < shape.offset(reach):
            own = await history.between(after, marked)
        own = behind(after, own)
        through, expected = None, shape.offset_behind(stands)
        for index, (ledger, first, last) in enumerate(own):
            if after != stands or shape.offset(Position(ledger, first)) != expected:
                return through, own[index:]
            through, expected = Position(ledger, last), shape.offset_behind(Position(ledger, last))
        return through, []

    async def _places(self, state: CursorState) -> PlaceMap:
        """A map that knows what the state speaks of; what is older than this process is looked up."""
        partition = self._partition
        places, before = partition.places, partition.places.complete_from
        if state.marked >= before or before == NOWHERE:
            return places
        assert partition.pair is not None
        history = await partition.history(partition.pair)
        start = await history.floor(state.marked)
        if state.highest == state.marked and start is not None:
            older = PlaceMap(start.source)
            older.add(start.source, start.target)
            return older
        if start is None:
            # Nothing that old is in the target any more: what is left of it begins later.
            start = await history.first()
        found = PlaceMap(NOWHERE) if start is None else await history.places(start, before)
        if start is None or start.source > state.marked:
            found.complete_from = NOWHERE
        if places.complete_from != before:
            # A new session: what lies between is in no map.
            raise NotConnected(f"{self.topic} was opened anew meanwhile")
        places.put_before(found)
        return places


async def _open(core: ClientCore, topic: str, subscription: str) -> AsyncConsumer:
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
    name = f"{PREFIX}cursor-{core.random.getrandbits(40):010x}"
    consumer = AsyncConsumer(core, TopicSet(core, topic), subscription, name, settings)
    await consumer.open(timeout=5.0)
    core.register(consumer)
    return consumer
