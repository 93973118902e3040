"""Mirror of one partition: from the source's entries to the target's receipts.

A session starts by reading what the target has. It then reads the following entries with the mirror's
subscription, keeps a number of entries in flight, and moves the subscription to the last entry with a
receipt. After an error (lost connection, stopped broker) a new session starts in the same way. Entries are
never resent without checking the target; see docs/decisions/mirror.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque

from geminga.admin import InternalStats
from geminga.client.async_consumer import AsyncConsumer
from geminga.client.entry_reader import open_cursor
from geminga.client.topic_set import TopicSet
from geminga.connection.backoff import Backoff
from geminga.consumer.message import ReceivedEntry
from geminga.consumer.settings import ConsumerSettings, ConsumerType
from geminga.errors import (
    AdminError,
    ConnectError,
    IncompatibleSchema,
    OperationNotSupported,
    ProtocolError,
    PulsarException,
)
from geminga.ids import MessageId, TopicName
from geminga.mirror.cluster_pair import ClusterPair, Counters, PartitionState
from geminga.mirror.entries import (
    EntryRewriter,
    PairsUnknownError,
    SchemaUnknownError,
    TargetEntry,
    is_same,
)
from geminga.mirror.history import LedgerLayout, TargetHistory
from geminga.mirror.keys import fingerprint
from geminga.mirror.ledger_sizes import LedgerSizes
from geminga.mirror.loop_detection import LoopDetection
from geminga.mirror.pairing import (
    MirrorRefused,
    Pair,
    find_pair,
    make_pair,
    noted_in_source,
    pair_of,
    readers_of,
    subscription_of,
)
from geminga.mirror.position_map import PositionMap
from geminga.mirror.positions import NOWHERE, Position, parse_position
from geminga.mirror.publishing import EntryPublisher
from geminga.mirror.replication_stamp import ReplicationStamp, StampOrigin
from geminga.mirror.schemas import SchemaMirror
from geminga.mirror.subscription_properties import NO_RECEIPT, MirrorProperties, MirrorReceipt

logger = logging.getLogger("geminga.mirror")

QUEUE_MESSAGES = 200_000
_TURN_ENTRIES = 64
"""Entries that are processed before other tasks may run."""
_ACK_SECONDS = 0.5
_DEDUPLICATION_SECONDS = 30.0
_DRAIN_SECONDS = 10.0
_LAST_ACK_SECONDS = 5.0
_NOTES_PER_SECOND = 32 * 1024
"""Limit of written notes per second, in characters."""
_REST = 4.0
"""Pause after a note or acknowledgement, as a multiple of its duration."""
_CLAIM_SECONDS = 10.0
"""Longest wait for an entry to become readable that the target's deduplication knows already."""
_BACKOFF_SECONDS_MAX = 10.0


class _RestartPartition(Exception):
    """The partition was repaired; start a new session."""


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
        """Target positions of the source's entries."""
        self.loop_detection = LoopDetection(ends, topic)
        self.notes = MirrorProperties(ends.source_admin, topic, ends.mirror)
        self.rollbacks = 0
        """Number of repairs after the target was found restored from a backup."""
        self.progress = asyncio.Event()
        """Set when the mirror's subscription can be moved or noted."""
        self._ends = ends
        self._schemas = schemas
        self._pending: deque[tuple[int, Position, int, int, StampOrigin | None]] = deque()
        """Sequence id (-1 for entries that are not copied), source position, bytes, messages, and the origin
        of an entry that came from the target."""
        self._pending_bytes = 0
        self._room: asyncio.Future[None] | None = None
        self._acknowledged = NOWHERE
        self._receipt = NO_RECEIPT
        """Receipt of the last known entry in the target."""
        self._begun = False
        self._sizes = LedgerSizes()
        self._gaps: deque[tuple[Position, int]] = deque()
        """Positions and sizes of gaps of undelivered entries, until a later entry is done."""
        self._given_up = 0
        """Part of `Counters.missed` after the last delivered entry."""
        self._stood: tuple[Position, Position, int] | None = None
        self._rests = False
        self._looked_at = NOWHERE
        self._namespace = TopicName.parse(topic).namespace_name
        self._after: Position | None = None
        """A target position before the next entry; None: not queried yet."""
        self._resumed = NOWHERE
        self._echoed: dict[bytes, Position] = {}
        """Last target position of entries in this session that came from the target, by pair."""
        self._claimed = NOWHERE
        """Source position up to which the target's deduplication has dropped entries as known."""

    @property
    def rests(self) -> bool:
        """Return whether all entries that the source had at the last query are done."""
        return self._rests and self._stood is not None and self._stood[0] == self.done

    @property
    def wants_look(self) -> bool:
        """Return whether ledgers may be created, deleted and skipped before their entries are read."""
        if self.state is not PartitionState.COPYING:
            return self.state is PartitionState.WAITING
        return self.done != self._looked_at or (self.done < self._sizes.newest and not self.rests)

    async def run(self) -> None:
        """Run until cancelled, or until the user has to decide (`PartitionState.FAILED`)."""
        backoff = Backoff(self._ends.source.random.random, maximum_seconds=_BACKOFF_SECONDS_MAX)
        try:
            while True:
                before = self.counters.entries
                try:
                    await self._session()
                except _RestartPartition:
                    continue
                except MirrorRefused as error:
                    self._failed(error)
                    return
                except (PulsarException, OSError) as error:
                    if isinstance(error, OperationNotSupported) and not isinstance(error, AdminError):
                        self._failed(error)
                        return
                    level = logging.DEBUG if str(error) == str(self.error) else logging.WARNING
                    self._set(PartitionState.WAITING, error)
                    if self.counters.entries > before:
                        backoff.reset()
                    delay = backoff.next()
                    logger.log(level, "%s is not mirrored, retry in %.1f s: %s", self.topic, delay, error)
                    await asyncio.sleep(delay)
        except asyncio.CancelledError:
            self._set(PartitionState.STOPPED, self.error)
            raise
        except Exception as error:
            logger.exception("unexpected error while mirroring %s", self.topic)
            self._failed(error)

    def _set(self, state: PartitionState, error: Exception | None) -> None:
        if state is PartitionState.COPYING and self.error is not None:
            logger.info("%s is mirrored again", self.topic)
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
        self._pending_bytes = 0
        await self.notes.settled()
        await self._want_deduplication()
        key = await ends.source_keys.own(self._namespace)
        there = ends.source_keys.known(self._namespace)
        pair = self.pair = await find_pair(
            ends.source_admin,
            ends.target_admin,
            self.topic,
            ends.mirror,
            ends.on_mismatch,
            [fingerprint(one) for one in (key, *there)],
            self._has_nothing_of,
        )
        self.notes.begin(pair)
        self._receipt = self.notes.receipt
        if pair.bound:
            self._schemas.forget()  # they belong to another topic
        await self._schemas.copy()
        async with contextlib.AsyncExitStack() as stack:
            publisher = await self._publisher(pair.producer_name(ends.mirror))
            stack.push_async_callback(publisher.close)
            resume, mirrored = await self._look(publisher, pair)
            if self._claimed > resume:
                publisher = await self._beside(publisher, pair)
                stack.push_async_callback(publisher.close)
            self._claimed = NOWHERE
            await self._move_to(resume)
            rewriter = EntryRewriter(
                pair=pair.id, source_name=ends.source_name, target_name=ends.target_name, key=key,
                target_keys=ends.target_keys.known(self._namespace),
                schema_versions=self._schemas.versions,
            )  # fmt: skip
            consumer = await self._consumer()
            try:
                self._begin(resume, mirrored)
                await self._copy(consumer, publisher, rewriter)
            finally:
                with contextlib.suppress(PulsarException, TimeoutError):
                    await asyncio.wait_for(self._acknowledge(consumer), _LAST_ACK_SECONDS)
                await consumer.close()

    async def _want_deduplication(self) -> None:
        """Enable deduplication in the target: without it, the fate of entries in flight after an error is
        unknown. Raises `MirrorRefused`."""
        admin, deadline, asked = self._ends.target_admin, time.monotonic() + _DEDUPLICATION_SECONDS, False
        while True:
            stats = await admin.topics.stats(self.topic)
            if stats.deduplication_status == "Enabled":
                return
            if not asked:
                asked = True
                try:
                    await admin.topic_policies.deduplication.set(str(TopicName.parse(self.topic).base), True)
                except AdminError as error:
                    if error.retriable:
                        raise
                    raise MirrorRefused(
                        f"{self.topic}: the target does not deduplicate, and it cannot be switched on here "
                        f"({error}). Have it set on the namespace: namespaces set-deduplication --enable"
                    ) from error
            if time.monotonic() >= deadline:
                raise MirrorRefused(
                    f"{self.topic}: deduplication was switched on in the target and is not in force after "
                    f"{_DEDUPLICATION_SECONDS:g} s ({stats.deduplication_status or 'unknown'}); set it on "
                    "the namespace: namespaces set-deduplication --enable"
                )
            await asyncio.sleep(0.02)

    async def _beside(self, holder: EntryPublisher, pair: Pair) -> EntryPublisher:
        """Open a publisher with another name, while ``holder`` excludes other mirrors."""
        logger.warning(
            "%s: deduplication in the target has later sequence ids of producer %s than stored messages: "
            "another client has used that name, or messages were deleted. Sending with another name",
            self.topic, holder.name,
        )  # fmt: skip
        name = f"{pair.producer_name(self._ends.mirror)}.{secrets.token_hex(4)}"
        publisher = await self._publisher(name)
        holder.ended.add_done_callback(
            lambda _: publisher.end(ConnectError(f"the producer {holder.name} has ended"))
        )
        return publisher

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

    async def history(self, pair: Pair) -> TargetHistory:
        stats = await self._ends.target_admin.topics.internal_stats(self.topic)
        self._after = max(self._after or NOWHERE, parse_position(stats.last_confirmed_entry))
        return self.history_in(stats, pair.id)

    def history_in(self, stats: InternalStats, pair: bytes) -> TargetHistory:
        """Return a search in the present entries of the target."""
        keys = self._ends.source_keys.known(self._namespace)
        return TargetHistory(self._ends.target, self.topic, pair, stats, keys)

    async def _has_nothing_of(self, pair: bytes) -> bool:
        """Return whether the target has no entry of a pair, signed or not: another source may own the key."""
        stats = await self._ends.target_admin.topics.internal_stats(self.topic)
        return await TargetHistory(self._ends.target, self.topic, pair, stats, None).newest() is None

    async def _look(self, publisher: EntryPublisher, pair: Pair) -> tuple[Position, Position]:
        """Return the source position at which to resume, and that of the newest entry in the target if it was
        searched. The publisher is open, so that no other mirror adds entries of the pair."""
        claimed = self._claimed = max(publisher.last, self._claimed)
        self._after = None
        if pair.fresh:
            await self.history(pair)
            return NOWHERE, NOWHERE
        # The previous holder of the producer name may sign with a key created since the last query.
        await self._ends.source_keys.learn(self._namespace)
        stats = await self._ends.source_admin.topics.internal_stats(self.topic)
        cursor = stats.cursors.get(subscription_of(self._ends.mirror))
        marked = NOWHERE if cursor is None else parse_position(cursor.mark_delete_position)
        last = parse_position(stats.last_confirmed_entry)
        self._sizes.learn(stats, min(marked, self.done).ledger if self._begun else marked.ledger)
        await self._note_again(pair)
        mirrored, noted = NOWHERE, self.notes.receipt
        is_older = noted != NO_RECEIPT and not await (await self.history(pair)).has(*noted)
        if is_older:
            self._receipt = NO_RECEIPT
        if is_older or max(last, claimed) > marked:
            # Deduplication forgets ids, over time and when a broker dies, and accepts any holder of the name.
            # Stored entries are reliable.
            mirrored = await self._newest(pair, marked, claimed)
        if mirrored > last:
            raise MirrorRefused(
                f"{self.topic}: the target has what was at {mirrored} in the source, and the source ends at "
                f"{last}: it was brought back from a backup, or lost something. Its positions mean other "
                "messages now; choose another --name, which copies all that it has"
            )
        if mirrored != NOWHERE and not await self._is_still_there(pair, stats):
            raise MirrorRefused(
                f"{self.topic}: what was at {mirrored} in the source, and is in the target, is not in the "
                "source any more: it was brought back from a backup, and has grown since. Its positions mean "
                "other messages now; choose another --name, which copies all that it has"
            )
        if is_older:
            await self._mend_rollback(pair, mirrored, mirrored < marked, LedgerLayout(stats))
            raise _RestartPartition
        return max(marked, mirrored), mirrored

    async def _note_again(self, pair: Pair) -> None:
        """Read the notes again: the previous holder of the producer name may have copied entries since the
        pair was found. It noted them before it moved the subscription, whose position was just read."""
        noted = await noted_in_source(self._ends.source_admin, self.topic, self._ends.mirror)
        if pair_of(noted) != pair.id:
            raise ConnectError(f"{self.topic} was paired anew meanwhile, by another mirror of that name")
        self.notes.begin(pair._replace(noted=noted))
        self._receipt = self.notes.receipt

    async def _is_still_there(self, pair: Pair, stats: InternalStats) -> bool:
        """Return whether the source's entry equals the target's newest; True if this is unknown."""
        place, target = self._receipt
        history = TargetHistory(self._ends.source, self.topic, pair.id, stats, None)
        there = history.shape.has(place)
        if not there:
            return there is None
        one, other = await history.entry(place), await (await self.history(pair)).entry(target)
        return one is None or other is None or is_same(one, other)

    async def _mend_rollback(
        self, pair: Pair, mirrored: Position, is_missed: bool, source: LedgerLayout
    ) -> None:
        """Handle a target that has lost entries with receipts: copy them again if ``on_mismatch`` allows it.
        Checkpoints are sent again in any case: an earlier repair may have been interrupted."""
        ends, noted = self._ends, self.notes.receipt
        if is_missed and ends.on_mismatch == "stop":
            raise MirrorRefused(
                f"{self.topic}: the target gave a receipt for what was at {noted.source} in the source, and "
                f"has not got it (at {noted.target}) any more: it was brought back from a backup, or lost "
                "something. --on-mismatch continue copies again what is missing, as far as the source still "
                "has it; restart copies all that the source still has"
            )
        # Forget the checkpoints before any step that may fail: they do not describe this target.
        self._claimed = NOWHERE
        self._schemas.forget()  # its schemas are older, too
        self.rollbacks += 1
        if is_missed and ends.on_mismatch == "restart":
            await make_pair(ends.source_admin, ends.target_admin, self.topic, ends.mirror, pair.signer)
            return
        if is_missed:
            logger.warning(
                "%s: the target has lost the entries after %s in the source. They are copied again, as far "
                "as the source still has them: %s", self.topic, mirrored if mirrored != NOWHERE else "all",
                f"from {source.position(0)} on" if source.entries else "nothing",
            )  # fmt: skip
            mine = subscription_of(ends.mirror)
            behind = MessageId.earliest if mirrored == NOWHERE else mirrored.message_id()
            await ends.source_admin.subscriptions.reset_to_id(self.topic, mine, behind)
        await self.notes.forget(self._receipt)

    async def _newest(self, pair: Pair, marked: Position, claimed: Position) -> Position:
        """Return the source position of the newest entry in the target. Waits for a ``claimed`` entry."""
        deadline = time.monotonic() + _CLAIM_SECONDS
        while True:
            newest = await (await self.history(pair)).newest(claimed)
            mirrored = NOWHERE if newest is None else newest.source
            if newest is not None:
                self._receipt = MirrorReceipt(newest.source, newest.target)
            if max(mirrored, marked) >= claimed or time.monotonic() >= deadline:
                return mirrored
            await asyncio.sleep(0.1)

    async def _move_to(self, resume: Position) -> None:
        """Move the mirror's subscription to a position, so that no entry is read twice."""
        if resume.entry < 0:
            return
        await self.notes.receive(self._receipt)
        context = self._ends.source
        mine = subscription_of(self._ends.mirror)
        consumer = await open_cursor(context, self.topic, mine, from_latest=False, must_exist=True)
        try:
            for handle in consumer.group.handles.values():
                handle.consumer.acknowledge_id_through(resume.message_id(), context.now())
            await consumer.acknowledging.receipt()
        finally:
            await consumer.close()

    async def _consumer(self) -> AsyncConsumer:
        context = self._ends.source
        settings = ConsumerSettings(
            consumer_type=ConsumerType.Exclusive,
            receiver_queue_size=QUEUE_MESSAGES,
            receiver_queue_bytes_max=self._ends.window_bytes,
            ack_grouping_time_ms=0,
            force_topic_creation=False,
            must_exist=True,  # a recreated topic has no pair and is another topic
        )
        name = f"{subscription_of(self._ends.mirror)}-{context.random.getrandbits(40):010x}"
        consumer = AsyncConsumer(
            context, TopicSet(context, self.topic), subscription_of(self._ends.mirror), name, settings
        )
        consumer.group.whole_entries = True
        consumer.group.untouched_entries = True
        await consumer.open()
        context.register(consumer)
        return consumer

    def _begin(self, resume: Position, mirrored: Position) -> None:
        if resume != self.done or not self._begun:
            # Entries older than this map are searched in the target.
            begins = Position(resume.ledger, resume.entry + 1) if resume != NOWHERE else NOWHERE
            self.places.forget(begins)
            self.loop_detection.begin(begins)
        while self._gaps and self._gaps[-1][0] > resume:
            # Entries sent after it are not in the target: they are read again, and their gaps counted again.
            self.counters.missed -= self._gaps.pop()[1]
        read = max(self.done, mirrored)
        if self._begun and resume > read:
            self._count_gap(read, Position(resume.ledger, resume.entry + 1))
        self._begun = True
        self.done = self._looked_at = self._resumed = resume
        self._echoed.clear()
        self._acknowledged = NOWHERE
        self._set(PartitionState.COPYING, None)

    # --- copying ------------------------------------------------------------------------------------

    async def _copy(
        self, consumer: AsyncConsumer, publisher: EntryPublisher, rewriter: EntryRewriter
    ) -> None:
        read = self.done
        acknowledging = asyncio.create_task(self._keep_acknowledging(consumer))
        (handle,) = consumer.group.handles.values()
        detached = handle.driver.detached
        queued = consumer.queue.entries
        for end in (publisher.ended, detached):
            end.add_done_callback(lambda _: consumer.receive_waiters.wake_all())
        try:
            while True:
                if detached.done():
                    # Another broker, or a restarted one: its entries are searched from the start.
                    raise ConnectError(f"the source: {detached.result() or 'its broker gave up the topic'}")
                if not queued:
                    await self._wait_for_entries(consumer, publisher)
                    continue
                for _ in range(_TURN_ENTRIES):
                    # The queue may belong to another connection since the request.
                    if not queued or self._pending_bytes >= self._ends.window_bytes or detached.done():
                        break
                    entry = queued.popleft()
                    consumer.group.took_entries([entry])
                    place = Position(entry.ledger_id, entry.entry_id)
                    if place > read:  # else it was redelivered: it is in flight or done
                        if place.ledger != read.ledger and not self._sizes.reaches(place):
                            await self._learn_sizes()
                        self._count_gap(read, place)
                        await self._pass_on(entry, place, publisher, rewriter)
                        read = place
                await self._wait_for_room(publisher)
        except asyncio.CancelledError:
            await self._finish(publisher)
            raise
        finally:
            acknowledging.cancel()
            await asyncio.wait([acknowledging])

    async def _learn_sizes(self) -> InternalStats:
        stats = await self._ends.source_admin.topics.internal_stats(self.topic)
        self._sizes.learn(stats, self.done.ledger)
        return stats

    async def look(self) -> None:
        """Record the source's position; detect whether it moved the mirror's subscription over undelivered
        entries to its end, where no later entry would reveal it."""
        self._looked_at = self.done
        stats = await self._learn_sizes()
        cursor = stats.cursors.get(subscription_of(self._ends.mirror))
        if cursor is None or self.state is not PartitionState.COPYING or self._pending:
            return
        marked = parse_position(cursor.mark_delete_position)
        stands = self.done, marked, self.counters.sessions
        self._rests = stands == self._stood  # entries in flight have arrived by now
        self._stood = stands
        if self._rests and marked > self.done:
            self._count_gap(self.done, Position(marked.ledger, marked.entry + 1), is_end=True)

    def _count_gap(self, read: Position, place: Position, *, is_end: bool = False) -> None:
        """Count the entries between the last read one and ``place`` that the source did not deliver: it moved
        the mirror's subscription, or they hold no messages. ``is_end``: no entry follows, so they are counted
        again with the next entry."""
        if self._given_up:
            self.counters.missed -= self._given_up
            self._given_up = 0
        if read == NOWHERE:
            return  # entries before the first session were never due
        missed = self._sizes.between(read, place)
        if missed <= 0:
            return
        if not self.counters.missed:
            logger.warning(
                "%s: the source did not deliver the %d entries before %s. They expired (TTL), were "
                "evicted by a backlog quota or skipped by an administrator, and are not in the target, "
                "unless they were of aborted transactions; further ones are counted only",
                self.topic, missed, place,
            )  # fmt: skip
        self.counters.missed += missed
        if is_end:
            self._given_up = missed
        elif place > self.done:
            while self._gaps and self._gaps[0][0] <= self.done:
                self._gaps.popleft()
            self._gaps.append((place, missed))

    async def _pass_on(
        self, entry: ReceivedEntry, place: Position, publisher: EntryPublisher, rewriter: EntryRewriter
    ) -> None:
        assert entry.raw is not None
        if self._after is None:
            assert self.pair is not None
            await self.history(self.pair)
        rewriter.after = self._after or NOWHERE
        copies = 0
        while True:
            try:
                forwarded = rewriter.rewrite(entry.raw, place, copies=copies)
            except SchemaUnknownError as unknown:
                await self._schemas.copy()  # all queued entries, in order
                await self._schemas.learn(unknown.version)
                continue
            except PairsUnknownError as unknown_pairs:
                await self._ask_for(unknown_pairs.pairs, place, rewriter)
                continue
            if isinstance(forwarded, ReplicationStamp) and await self._is_copy(forwarded, place):
                copies += 1
                continue
            break
        if not isinstance(forwarded, TargetEntry):
            origin = None if forwarded is None else forwarded.origin
            self._pending.append((-1, place, 0, entry.count, origin))
            self._settle()
            return
        sequence_id = publisher.send(place, forwarded)
        self._pending.append((sequence_id, place, forwarded.size, forwarded.messages, None))
        self._pending_bytes += forwarded.size

    async def _ask_for(self, pairs: frozenset[bytes], place: Position, rewriter: EntryRewriter) -> None:
        """Query which mirrors read the target's topic, then their keys. The order matters: an entry written
        before the query was signed with a key that existed before."""
        newest = parse_position((await self._learn_sizes()).last_confirmed_entry)
        rewriter.target_keys = await self._ends.target_keys.learn(self._namespace)
        readers = readers_of(await self._ends.target_admin.topics.stats(self.topic))
        rewriter.learn(frozenset(readers), pairs, max(newest, place))

    async def _is_copy(self, mark: ReplicationStamp, place: Position) -> bool:
        """Return whether the mark was copied from an earlier entry: entries from the target arrive in order.
        A copy is mirrored as any other entry, without acknowledgement in the target."""
        origin = mark.origin
        is_direct = await self.loop_detection.is_direct(origin.pair)
        if is_direct and not mark.is_last:
            return True
        highest = self._echoed.get(origin.pair)
        if highest is not None:
            is_copy = origin.position <= highest
        elif is_direct and origin.after < self._resumed:
            history = await self.loop_detection.history(origin.pair)
            is_copy = await history.is_copy(origin, history.shape.offset(place))
        else:
            is_copy = False
        if not is_copy:
            self._echoed[origin.pair] = origin.position
        return is_copy

    async def _wait_for_entries(self, consumer: AsyncConsumer, publisher: EntryPublisher) -> None:
        # No await in between: a new entry wakes this task.
        if publisher.ended.done():
            publisher.ended.result()
        await consumer.wait(None)

    async def _wait_for_room(self, publisher: EntryPublisher) -> None:
        while self._pending_bytes >= self._ends.window_bytes:
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

    def _on_receipt(self, sequence_id: int, target: Position) -> None:
        pending = self._pending
        if not pending or pending[0][0] != sequence_id:
            wanted = pending[0][0] if pending else "none"
            raise ProtocolError(
                f"{self.topic}: a receipt for sequence id {sequence_id} came, and {wanted} is the next"
            )
        _, place, size, messages, _ = pending.popleft()
        self._pending_bytes -= size
        counters = self.counters
        if target == NOWHERE:
            # The target claims to have the entry: verify this, since no entry may be skipped.
            counters.duplicates += messages
            self._claimed = place
            raise ProtocolError(f"{self.topic}: the target drops the entry at {place}, which it had already")
        counters.entries += 1
        counters.messages += messages
        counters.bytes += size
        self.places.add(place, target)
        self._after = target
        self._receipt = MirrorReceipt(place, target)
        self.done = place
        self._settle()
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _settle(self) -> None:
        """Mark entries that are not copied as done, when all before them are."""
        pending = self._pending
        while pending and pending[0][0] < 0:
            _, place, _, messages, origin = pending.popleft()
            self.counters.skipped += messages
            if origin is not None:
                self.loop_detection.add(origin.pair, place, origin.position)
            self.done = place
        self.progress.set()

    async def _keep_acknowledging(self, consumer: AsyncConsumer) -> None:
        """Acknowledge in the source after progress. Idle partitions, perhaps thousands, use no timer."""
        rest, told = 0.0, False
        while True:
            await self.progress.wait()
            self.progress.clear()
            await asyncio.sleep(_ACK_SECONDS + rest)
            began = time.monotonic()
            try:
                await self._acknowledge(consumer)
                told = False
            except PulsarException as error:
                if not told:
                    logger.warning(
                        "%s: the source does not note how far it is mirrored: %s", self.topic, error
                    )
                told = True
                self.progress.set()
            rest = max((time.monotonic() - began) * _REST, self.notes.size / _NOTES_PER_SECOND)

    async def _acknowledge(self, consumer: AsyncConsumer) -> None:
        """Move the mirror's subscription up to the last done entry, after noting its receipt."""
        done = self.done
        if done == self._acknowledged or done.entry < 0:
            return
        await self.notes.receive(self._receipt)
        for handle in consumer.group.handles.values():
            handle.consumer.acknowledge_id_through(done.message_id(), self._ends.source.now())
            handle.consumer.flush_acks()
            handle.flush()
        self._acknowledged = done
