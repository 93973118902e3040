"""Mirror of one partition: from the source's entries to the target's receipts.

A session starts by reading what the target has. It then reads the following entries with the mirror's
subscription, keeps a number of entries in flight, and moves the subscription to the last entry with a
receipt. After an error (lost connection, stopped broker) a new session starts in the same way. Entries are
never resent without checking the target; see docs/decisions/mirror.md.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from typing import NamedTuple

from geminga.admin import InternalStats
from geminga.asyncio import Admin
from geminga.entries import EntryConsumer, EntryPublisher, ReceivedEntry
from geminga.errors import (
    AdminError,
    ConnectError,
    IncompatibleSchema,
    MessageTooBig,
    OperationNotSupported,
    ProtocolError,
    PulsarException,
)
from geminga.ids import TopicName
from geminga.mirror.cluster_pair import ClusterPair, Counters, PartitionState
from geminga.mirror.entries import EntryRewriter, SchemaUnknownError, TargetEntry
from geminga.mirror.history import LedgerLayout
from geminga.mirror.pairing import MirrorRefused, Pair, find_pair, readers_of, subscription_of
from geminga.mirror.position_map import PositionMap
from geminga.mirror.positions import NOWHERE, Position, parse_position, sequence_id_of
from geminga.mirror.resuming import ResumeSearch
from geminga.mirror.schemas import SchemaMirror

logger = logging.getLogger("geminga.mirror")

QUEUE_MESSAGES = 200_000
_TURN_ENTRIES = 64
"""Entries that are processed before other tasks may run."""
_ACK_SECONDS = 0.5
_DRAIN_SECONDS = 10.0
_LAST_ACK_SECONDS = 5.0
_RETRY_SECONDS = 0.1
_RETRY_SECONDS_MAX = 10.0
"""First and longest pause after an error; it doubles until an entry is copied."""
_STEADY_SECONDS = 5.0
"""A connection that ends after this time of copying is logged only if the next attempt fails: brokers unload
topics, and move them to other brokers."""
_CLOCKS_APART_MS = 60_000
"""Entries with a delay this much below the target's limit are certainly allowed: its clock may differ."""
_PAIRS_MAX = 1_000
"""Maximum pairs for which is remembered whether their mirrors read the target."""


class _PendingEntry(NamedTuple):
    """An entry without a receipt, or one that is not copied and waits for those before it."""

    sequence_id: int
    """-1 for an entry that is not copied."""
    place: Position
    missed: int
    """Entries before it that the source did not deliver."""
    size: int
    messages: int
    origin: Position | None = None
    """Target position of an entry that came from there."""


class PartitionMirror:
    """Mirror of one partition. ``topic`` is the full name on both sides. Used on the loop of both clients."""

    def __init__(self, ends: ClusterPair, topic: str, schemas: SchemaMirror) -> None:
        self.topic = topic
        self.state = PartitionState.OPENING
        self.error: Exception | None = None
        self.counters = Counters()
        self.done = NOWHERE
        """Source position up to which all entries are in the target or excluded."""
        self.pair: Pair | None = None
        self.places = PositionMap(NOWHERE)
        """Target positions of the source's entries, mirrored ones and those that came from the target."""
        self.progress = asyncio.Event()
        """Set when the mirror's subscription can be moved."""
        self._ends = ends
        self._schemas = schemas
        self._pending: deque[_PendingEntry] = deque()
        self._pending_bytes = 0
        self._room: asyncio.Future[None] | None = None
        self._taken: tuple[float, float] = (0, 0)
        """The largest size in bytes, and the longest delay of the delivery in milliseconds, that the target
        takes: found out in this session."""
        self._asked_for_delay = False
        """Whether this session has asked the target for its longest delay."""
        self._untried: tuple[int, int] | None = None
        """Size and delivery time of the newest entry if it exceeds them: the target may refuse it."""
        self._acknowledged = NOWHERE
        self._read = NOWHERE
        """Source position of the last entry that was sent or excluded."""
        self._begun = False
        self._began_at = 0.0
        self._logged = ""
        """Text of the error that was logged last in this outage."""
        self._layout = LedgerLayout()
        """The source's ledgers, from the one that is being read on."""
        self._search = ResumeSearch(ends, topic, self._layout)
        self._stood: tuple[Position, Position, int] | None = None
        self._rests = False
        self._looked_at = NOWHERE
        self._reads_target: dict[bytes, bool] = {}
        """Whether the mirror of a pair reads the target."""

    @property
    def rests(self) -> bool:
        """Return whether all entries that the source had at the last query are done."""
        return self._rests and self._stood is not None and self._stood[0] == self.done

    @property
    def wants_look(self) -> bool:
        """Return whether ledgers may be created, deleted and skipped before their entries are read."""
        if self.state is not PartitionState.COPYING:
            return self.state is PartitionState.WAITING
        return self.done != self._looked_at or (self.done < self._layout.last and not self.rests)

    async def run(self) -> None:
        """Run until cancelled, or until the user has to decide (`PartitionState.FAILED`)."""
        delay = 0.0
        try:
            while True:
                before = self.counters.entries
                try:
                    await self._session()
                except MirrorRefused as error:
                    self._failed(error)
                    return
                except (PulsarException, OSError) as error:
                    if isinstance(error, OperationNotSupported) and not isinstance(error, AdminError):
                        self._failed(error)
                        return
                    delay = 0.0 if self.counters.entries > before else delay
                    delay = min(2 * delay, _RETRY_SECONDS_MAX) or _RETRY_SECONDS
                    self._log(error, delay)
                    self._set(PartitionState.WAITING, error)
                    await asyncio.sleep(delay * self._ends.source.random.uniform(0.9, 1.0))
        except asyncio.CancelledError:
            self._set(PartitionState.STOPPED, self.error)
            raise
        except Exception as error:
            logger.exception("unexpected error while mirroring %s", self.topic)
            self._failed(error)

    def _log(self, error: Exception, delay: float) -> None:
        was_steady = (
            isinstance(error, ConnectError)
            and self.state is PartitionState.COPYING
            and time.monotonic() - self._began_at >= _STEADY_SECONDS
        )
        is_new = not was_steady and str(error) != self._logged
        if is_new:
            self._logged = str(error)
        level = logging.WARNING if is_new else logging.DEBUG
        logger.log(level, "%s is not mirrored, retry in %.1f s: %s", self.topic, delay, error)

    def _set(self, state: PartitionState, error: Exception | None) -> None:
        if state is PartitionState.COPYING and self._logged:
            logger.info("%s is mirrored again", self.topic)
            self._logged = ""
        self.state, self.error = state, error
        self.progress.set()

    def _failed(self, error: Exception) -> None:
        logger.error("%s is not mirrored any more: %s", self.topic, error)
        self._set(PartitionState.FAILED, error)

    # --- one session ------------------------------------------------------------------------------

    async def _session(self) -> None:
        ends = self._ends
        self._set(PartitionState.OPENING, self.error)
        self.counters.sessions += 1
        self._pending.clear()
        self._pending_bytes, self._taken, self._untried = 0, (0, 0), None
        self._asked_for_delay = False
        await self._search.want_deduplication()
        pair = self.pair = await find_pair(
            ends.source_admin,
            ends.target_admin,
            self.topic,
            ends.mirror,
            ends.on_mismatch,
            self._search.target_has_nothing_of,
        )
        if pair.bound:
            self._schemas.forget()  # they belong to another topic
        await self._schemas.copy()
        async with contextlib.AsyncExitStack() as stack:
            publisher = await self._publisher(pair.producer_name(ends.mirror))
            stack.push_async_callback(publisher.close)
            done = self.done if self._begun else None
            resume, mirrored = await self._search.find(publisher, pair, done)
            await self._move_to(resume)
            rewriter = EntryRewriter(
                pair=pair.id, source_name=ends.source_name, target_name=ends.forwarded_to,
                schema_versions=self._schemas.versions,
            )  # fmt: skip
            consumer = await EntryConsumer.open(
                ends.source,
                self.topic,
                subscription_of(ends.mirror),
                queue_messages=QUEUE_MESSAGES,
                queue_bytes_max=ends.window_bytes,
                must_exist=True,  # a recreated topic has no pair and is another topic
            )
            try:
                self._begin(resume, mirrored)
                await self._copy(consumer, publisher, rewriter)
            finally:
                self._acknowledge(consumer)
                with contextlib.suppress(PulsarException, TimeoutError):
                    await asyncio.wait_for(consumer.close(), _LAST_ACK_SECONDS)

    async def _publisher(self, name: str) -> EntryPublisher:
        """Open a publisher that meets the topic's demands on producers, known once it refuses one."""
        schema, encrypted = None, False
        while True:
            try:
                return await EntryPublisher.open(
                    self._ends.target, self.topic, name, self._on_receipt, schema=schema, encrypted=encrypted
                )
            except PulsarException as error:
                if isinstance(error, IncompatibleSchema) and schema is None and self._schemas.newest:
                    schema = self._schemas.newest
                elif "ncrypt" in str(error) and not encrypted:
                    encrypted = True
                else:
                    raise

    async def _move_to(self, resume: Position) -> None:
        """Move the mirror's subscription to a position, so that no entry is read twice."""
        if resume.entry < 0:
            return
        name = subscription_of(self._ends.mirror)
        consumer = await EntryConsumer.open(self._ends.source, self.topic, name, must_exist=True)
        try:
            consumer.acknowledge_through(*resume)
            await consumer.receipt()
        finally:
            await consumer.close()

    def _begin(self, resume: Position, mirrored: Position) -> None:
        if resume != self.done or not self._begun:
            # Entries older than this map are searched in the clusters.
            self.places.forget(Position(resume.ledger, resume.entry + 1) if resume != NOWHERE else NOWHERE)
        known = max(self.done, mirrored)
        if self._begun and resume > known:
            self._count_missed(self._missed(known, Position(resume.ledger, resume.entry + 1)), resume)
        self._begun = True
        self._began_at = time.monotonic()
        self.done = self._looked_at = self._read = resume
        self._acknowledged = NOWHERE
        self._set(PartitionState.COPYING, None)

    # --- copying ------------------------------------------------------------------------------------

    async def _copy(
        self, consumer: EntryConsumer, publisher: EntryPublisher, rewriter: EntryRewriter
    ) -> None:
        acknowledging = asyncio.create_task(self._keep_acknowledging(consumer))
        for end in (publisher.ended, consumer.ended):
            end.add_done_callback(consumer.wake)
        try:
            while True:
                if consumer.ended.done():
                    # Another broker, or a restarted one: its entries are searched from the start.
                    error = consumer.ended.result() or "its broker closed the consumer"
                    raise ConnectError(f"the source: {error}")
                if not consumer.entries:
                    # No await in between: a new entry wakes this task.
                    if publisher.ended.done():
                        publisher.ended.result()
                    await consumer.wait()
                    continue
                for _ in range(_TURN_ENTRIES):
                    # The queue may belong to another connection since the request.
                    is_full = self._pending_bytes >= self._ends.window_bytes
                    if not consumer.entries or is_full or consumer.ended.done():
                        break
                    entry = consumer.take()
                    place = Position(entry.ledger_id, entry.entry_id)
                    if place > self._read:  # else it was redelivered: it is in flight or done
                        if self._layout.last.ledger < place.ledger != self._read.ledger:
                            await self._learn_layout()
                        await self._pass_on(entry, place, publisher, rewriter)
                        self._read = place
                await self.wait_for_room(publisher, self._ends.window_bytes)
        except asyncio.CancelledError:
            await self._finish(publisher)
            raise
        finally:
            acknowledging.cancel()
            await asyncio.wait([acknowledging])

    async def _learn_layout(self) -> InternalStats:
        stats = await self._ends.source_admin.topics.internal_stats(self.topic)
        self._layout.learn(stats, self.done.ledger)
        return stats

    async def look(self) -> None:
        """Record the source's position; detect whether it moved the mirror's subscription over undelivered
        entries to its end, where no later entry would reveal it."""
        self._looked_at = self.done
        stats = await self._learn_layout()
        cursor = stats.cursors.get(subscription_of(self._ends.mirror))
        if cursor is None or self.state is not PartitionState.COPYING or self._pending:
            return
        marked = parse_position(cursor.mark_delete_position)
        stands = self.done, marked, self.counters.sessions
        self._rests = stands == self._stood  # entries in flight have arrived by now
        self._stood = stands
        if self._rests and marked > self.done == self._read:
            self._count_missed(self._missed(self.done, Position(marked.ledger, marked.entry + 1)), marked)
            self.done = self._read = marked

    def _missed(self, read: Position, place: Position) -> int:
        """Return the number of entries between the last read one and ``place`` that the source did not
        deliver: it moved the mirror's subscription, or they hold no messages."""
        # Entries before the first session were never due.
        return 0 if read == NOWHERE else max(0, self._layout.between(read, place))

    def _count_missed(self, missed: int, place: Position) -> None:
        if missed and not self.counters.missed:
            logger.warning(
                "%s: the source did not deliver the %d entries before %s. They expired (TTL), were "
                "evicted by a backlog quota or skipped by an administrator, and are not in the target, "
                "unless they were of aborted transactions; further ones are counted only",
                self.topic, missed, place,
            )  # fmt: skip
        self.counters.missed += missed

    async def _pass_on(
        self, entry: ReceivedEntry, place: Position, publisher: EntryPublisher, rewriter: EntryRewriter
    ) -> None:
        assert entry.raw is not None
        while True:
            try:
                forwarded = rewriter.rewrite(entry.raw, place)
                break
            except SchemaUnknownError as unknown:
                await self._schemas.copy()  # all queued entries, in order
                await self._schemas.learn(unknown.version)
        missed = self._missed(self._read, place)
        stamps = forwarded.stamps if isinstance(forwarded, TargetEntry) else forwarded
        origins = [stamp.position for stamp in stamps if await self._is_from_target(stamp.pair)]
        if origins or not isinstance(forwarded, TargetEntry):
            self._pending.append(_PendingEntry(-1, place, missed, 0, entry.count, *origins[-1:]))
            self._settle()
            return
        if self._untried:
            # An entry behind a refused one would hide it: the next session starts at the target's newest.
            await self.wait_for_room(publisher, 1)
            size, deliver_at = self._untried
            # The delay until now, after the receipt, is at most the one that the target has compared.
            delay = deliver_at - self._ends.target.now_ms()
            self._taken, self._untried = (max(self._taken[0], size), max(self._taken[1], delay)), None
        if not self._asked_for_delay and forwarded.deliver_at > self._ends.target.now_ms():
            self._asked_for_delay = True
            self._taken = (self._taken[0], await _delay_allowed(self._ends.target_admin, self.topic))
        sequence_id = sequence_id_of(place)
        try:
            publisher.send(sequence_id, forwarded.messages, forwarded.head, forwarded.payload)
        except MessageTooBig as error:
            raise MessageTooBig(f"the entry at {place} of the source: {error}") from None
        self._pending.append(_PendingEntry(sequence_id, place, missed, forwarded.size, forwarded.messages))
        self._pending_bytes += forwarded.size
        delay = forwarded.deliver_at - self._ends.target.now_ms()
        if forwarded.size > self._taken[0] or delay > self._taken[1]:
            self._untried = forwarded.size, forwarded.deliver_at

    async def _is_from_target(self, pair: bytes) -> bool:
        """Return whether the mirror of a pair reads the target, so that its positions are of the target."""
        if pair not in self._reads_target:
            if len(self._reads_target) >= _PAIRS_MAX:
                self._reads_target.clear()
            stats = await self._ends.target_admin.topics.stats(self.topic)
            self._reads_target.update({pair: False} | dict.fromkeys(readers_of(stats), True))
        return self._reads_target[pair]

    async def wait_for_room(self, publisher: EntryPublisher, size: int) -> None:
        """Wait until fewer than ``size`` bytes have no receipt, and the connection takes more."""
        while self._pending_bytes >= size:
            self._room = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._room, publisher.ended}, return_when=asyncio.FIRST_COMPLETED)
            if publisher.ended.done():
                publisher.ended.result()
        if not publisher.writable:
            await publisher.drain()
        await asyncio.sleep(0)

    async def _finish(self, publisher: EntryPublisher) -> None:
        """Wait a short time for the receipts of entries in flight."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while self._pending and not publisher.ended.done() and time.monotonic() < deadline:
            await asyncio.sleep(0.005)

    # --- receipts -------------------------------------------------------------------------------------

    def _on_receipt(self, sequence_id: int, ledger: int, entry: int) -> None:
        pending = self._pending
        if not pending or pending[0].sequence_id != sequence_id:
            wanted = pending[0].sequence_id if pending else "none"
            raise ProtocolError(
                f"{self.topic}: a receipt for sequence id {sequence_id} came, and {wanted} is the next"
            )
        first = pending.popleft()
        self._pending_bytes -= first.size
        counters = self.counters
        if ledger < 0:
            # The next session determines how far the target is.
            counters.duplicates += first.messages
            raise ConnectError(f"{self.topic}: the target has the entry at {first.place} of the source")
        counters.entries += 1
        counters.messages += first.messages
        counters.bytes += first.size
        self.places.add(first.place, Position(ledger, entry))
        self._done_with(first)
        self._settle()
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _done_with(self, entry: _PendingEntry) -> None:
        if entry.missed:
            self._count_missed(entry.missed, entry.place)
        self.done = entry.place

    def _settle(self) -> None:
        """Mark entries that are not copied as done, when all before them are."""
        pending = self._pending
        while pending and pending[0].sequence_id < 0:
            first = pending.popleft()
            self.counters.skipped += first.messages
            if first.origin is not None:
                self.places.add(first.place, first.origin)
            self._done_with(first)
        self.progress.set()

    async def _keep_acknowledging(self, consumer: EntryConsumer) -> None:
        """Acknowledge in the source after progress. Idle partitions, perhaps thousands, use no timer."""
        while True:
            await self.progress.wait()
            self.progress.clear()
            await asyncio.sleep(_ACK_SECONDS)
            self._acknowledge(consumer)

    def _acknowledge(self, consumer: EntryConsumer) -> None:
        """Move the mirror's subscription up to the last done entry."""
        if self.done != self._acknowledged and self.done.entry >= 0:
            consumer.acknowledge_through(*self.done)
            consumer.flush()
            self._acknowledged = self.done


async def _delay_allowed(target: Admin, topic: str) -> float:
    """Return a delay in milliseconds that the target takes, from its policy; 0 if that is not known.

    Otherwise each of many delayed entries would wait for the receipt of the one before it: usually, each
    is delivered later than those before. A target that lowers its limit ends the session.
    """
    base = str(TopicName.parse(topic).base)
    try:
        policy = await target.topic_policies.delayed_delivery.get(base, applied=True)
    except PulsarException as error:
        logger.debug("%s: the target's longest delay is not known: %s", topic, error)
        return 0
    longest = 0 if policy is None else policy.delay_milliseconds_max
    return max(0, longest - _CLOCKS_APART_MS) if longest > 0 else math.inf
