"""Compaction: the newest message of every key, in a ledger of its own.

That ledger is read by `geminga.broker.entries.compacted_view`. One pass over the topic's entries finds the
newest message of each key (`geminga.broker.entries.latest_per_key`), and another pass writes them, starting
each time with the previous compacted ledger. Compaction runs as a cooperative job
(`geminga.broker.runtime.cooperative`) and reads ahead without blocking; one topic of a broker is compacted at
a time.

Data cannot be lost in between. The durable subscription ``__compaction`` retains the topic's entries until
they are read. Its cursor's properties contain the compacted ledger and its horizon, and are written together
with the cursor's position after the whole new ledger is durable; the old one is deleted after that. A
compacted ledger that no cursor names was left by a crash, and is deleted at the next load of the topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Final, Protocol, TypeVar

from geminga.broker.delivery.cursor import Properties
from geminga.broker.delivery.subscription import COMPACTION
from geminga.broker.entries.batch_rewrite import rebatched
from geminga.broker.entries.compacted_view import (
    CompactedLedger,
    Seal,
    framed,
    owner_of,
    seal_of,
    sealed,
    unframed,
)
from geminga.broker.entries.entry_facts import count_of, head_of
from geminga.broker.entries.latest_per_key import LatestPerKey
from geminga.broker.entries.managed_ledger import ManagedLedger
from geminga.broker.runtime.background_jobs import JobStatus, resume_after, start_in_background
from geminga.broker.runtime.cooperative import Job
from geminga.broker.runtime.refusal import Refused
from geminga.broker.topics.topic import StoredTopic
from geminga.errors import StoreBusy, StoreError
from geminga.ledger.api import ReadAhead, StoredLedger
from geminga.ledger.damage import EntriesDamaged
from geminga.wire.proto import pulsar_wire_pb2 as pb

log = logging.getLogger("geminga.broker")

T = TypeVar("T")
LEDGER_PROPERTY: Final = "CompactedTopicLedger"
"""Property of the cursor, as in Apache Pulsar."""
HORIZON_PROPERTY: Final = "CompactedTopicHorizon"
ENTRIES_PER_FETCH: Final = 2_000
BYTES_PER_FETCH: Final = 1024 * 1024
"""Bytes that are read from the disk at once."""
UNWRITTEN_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of the new ledger that may be in flight to the disk."""
BUSY_RETRY_SECONDS: Final = 0.1
DAMAGES_MAX: Final = 1_000
"""Maximum runs of damaged entries that are skipped."""
FAILED_RETRY_MS: Final = 60_000
"""Shortest delay after which a failed compaction by threshold is retried ..."""
FAILED_RETRY_FACTOR: Final = 20
"""... and the delay as a multiple of the time that it took: with too many keys it fails again each time."""


class CompactionFailed(StoreError):
    """A compaction failed; the previous compacted ledger stays."""


class CompactedTopic(StoredTopic, Protocol):
    """Interface of a topic for compaction, which sets both fields."""

    compacted: CompactedLedger | None
    compaction: Compaction | None


class Compaction:
    """The last compaction of a topic, running or finished. Times are milliseconds; 0 is never."""

    def __init__(self, topic: CompactedTopic) -> None:
        self.topic = topic
        self.status = JobStatus.NOT_RUN
        self.last_error = ""
        self.removed = self.removed_total = 0
        """Messages that the last compaction removed, and all since the topic was loaded."""
        self.succeeded_ms = self.failed_ms = self.duration_ms = 0
        self.retry_ms = 0
        """Earliest time of a retry by threshold after a failure."""
        self.succeeded = self.failed = 0
        self.bytes_read = self.bytes_written = 0
        self._began_ms = 0
        self._steps: Job | None = None
        self._wait = topic.services.slices.wait
        self._written_enough: Callable[[None], None] | None = None
        """Continues the job that waits until more of the new ledger is written."""
        self._is_cancelled = False
        self._unwritten = 0
        self._write_error: StoreError | None = None
        self._new: int | None = None
        self._damaged: list[str] = []

    def __repr__(self) -> str:
        return f"Compaction({self.topic.text!r})"

    @property
    def is_running(self) -> bool:
        return self.status is JobStatus.RUNNING

    # --- life ---
    def start(self) -> None:
        """Queue the compaction of the topic. Raises `Refused` while it is running, and `StoreError`."""
        if self.is_running:
            raise Refused(pb.NotAllowedError, "Compaction already in progress")
        topic = self.topic
        if COMPACTION not in topic.subscriptions:
            topic.subscription(COMPACTION, offset=topic.ledger.start)
        self.status, self.last_error = JobStatus.RUNNING, ""
        self._is_cancelled = False
        topic.services.compactions.enter(self)

    def begin(self) -> None:
        """Start the compaction, which is first in the queue. Most of those queued have nothing to do."""
        self._began_ms = self.topic.scheduler.now_ms
        self._steps = self._run()
        services = self.topic.services
        start_in_background(services.scheduler, services.slices, self, self._steps, pause_seconds=0.0)

    def cancel(self, why: str) -> None:
        """Stop without a failure: the topic is deleted, or its compacted data is not needed."""
        if self.is_running:
            self._is_cancelled = True
            steps, self._steps = self._steps, None
            if steps is not None:
                steps.close()
            resume, self._written_enough = self._written_enough, None
            if resume is not None:
                resume(None)  # ends the job, which would keep the topic in memory
            log.info("%r cancelled: %s", self, why)
            self.status, self.last_error = JobStatus.NOT_RUN, why
            self._give_up_new()
            self.topic.services.compactions.leave(self)

    def _end(self, error: StoreError | None) -> None:
        now_ms = self.topic.scheduler.now_ms
        self._steps = None
        if error is None:
            self.status = JobStatus.SUCCESS
            self.succeeded += 1
            self.succeeded_ms, self.duration_ms = now_ms, now_ms - self._began_ms
            if self._damaged:
                self.last_error = "entries were lost to damage: " + "; ".join(self._damaged)
        else:
            log.error("%r failed: %s", self, error)
            self.status, self.last_error = JobStatus.ERROR, str(error)
            self.failed += 1
            self.failed_ms = now_ms
            self.retry_ms = now_ms + max(FAILED_RETRY_MS, FAILED_RETRY_FACTOR * (now_ms - self._began_ms))
            self._give_up_new()
        self._damaged = []
        self.topic.touch()
        self.topic.services.compactions.leave(self)

    def _give_up_new(self) -> None:
        new, self._new = self._new, None
        if new is not None:
            try:
                self.topic.services.store.delete_ledgers([new])
            except StoreError as error:
                log.error("%r: cannot delete ledger %d: %s", self, new, error)

    # --- the job ---
    def _run(self) -> Job:
        try:
            yield from self._rest()
            yield from self._compact()
        except StoreError as error:
            if not self._is_cancelled:
                self._end(error)
        except Exception as error:
            if not self._is_cancelled:
                self._end(CompactionFailed(f"{type(error).__name__}: {error}"))
            raise

    def _compact(self) -> Job:
        topic, settings = self.topic, self.topic.services.settings
        old = topic.compacted
        stop = topic.ledger.confirmed
        begin = topic.ledger.start if old is None else max(old.horizon, topic.ledger.start)
        if begin >= stop:
            self._end(None)
            return
        if old is not None:
            old.pin()
        try:
            survivors = LatestPerKey(
                bytes_max=settings.compaction_memory_bytes_max,
                retain_null_key=settings.compaction_retain_null_key,
            )
            for found in self._entries(old, begin, stop):
                if found is None or isinstance(found, bool):
                    yield found
                    continue
                steps = survivors.note(found[3])
                if steps is not None:
                    yield from steps
                yield None
            yield from survivors.end()
            if survivors.closed:
                log.warning(
                    "%r: %d entries are encrypted or unreadable batches and are kept whole",
                    self,
                    survivors.closed,
                )
            seal, kept = yield from self._write(survivors, old, begin, stop)
        finally:
            if old is not None:
                old.unpin()
        self.removed = survivors.messages - kept
        self.removed_total += self.removed
        yield from self._switch(seal)

    def _rest(self, seconds: float = 0.0) -> Job:
        """Suspend the job until the event loop has run once, or longer."""
        yield from self._wait(partial(resume_after, self.topic.scheduler, seconds, self))

    def _check(self) -> None:
        if self._is_cancelled:
            raise CompactionFailed(self.last_error)
        if self._write_error is not None:
            raise self._write_error

    # --- reading ---
    def _entries(
        self, old: CompactedLedger | None, begin: int, stop: int
    ) -> Iterator[tuple[int, int, int, bytes] | bool | None]:
        """Yield the previous compacted entries, then the topic's own; SUSPENDED: the job has to wait."""
        index = 0
        while old is not None and index < old.entries:
            found = yield from self._fetched(old.ledger_id, index, old.entries - index)
            if isinstance(found, EntriesDamaged):
                behind = old.behind_damage(index, found)
                if behind is None:
                    raise found
                self._is_damaged(found)
                index = behind
                continue
            for data in found:
                yield unframed(data)
            index += len(found)
        ledger = self.topic.ledger
        offset = begin
        while (offset := _next_entry(ledger, offset, begin)) < stop:
            segment = ledger.segment_of(offset)
            assert segment is not None
            first, before = offset - segment.base, offset
            last = min(segment.end, stop)
            if ledger.aborted is not None:
                last = ledger.aborted.next_present(offset, last)
            found = yield from self._fetched(segment.ledger_id, first, last - offset)
            if isinstance(found, EntriesDamaged):
                ledger.damage_found(segment, found)
                self._is_damaged(found)
            else:
                for data in found:
                    yield offset, segment.ledger_id, offset - segment.base, data
                    offset += 1
            if offset == before and ledger.skip_gap(offset) == offset:
                raise CompactionFailed(f"entry {segment.ledger_id}:{first} cannot be read")

    def _is_damaged(self, error: StoreError) -> None:
        text = str(error)
        if text not in self._damaged:
            self._damaged.append(text)
            if len(self._damaged) > DAMAGES_MAX:
                raise CompactionFailed(f"more than {DAMAGES_MAX} runs of entries are damaged, as {text}")

    def _fetched(
        self, ledger_id: int, first: int, count: int
    ) -> Generator[bool | None, None, list[bytes] | EntriesDamaged]:
        """Return entries, or the damage in their position, as a part of the job."""
        count = min(count, ENTRIES_PER_FETCH)
        while True:
            self._check()
            read: tuple[list[bytes], StoreError | None]
            read = yield from self._wait(partial(self._fetch, ledger_id, first, count))
            found, error = read
            self._check()
            if isinstance(error, StoreBusy):
                yield from self._rest(BUSY_RETRY_SECONDS)
                continue
            if isinstance(error, EntriesDamaged):
                return error
            if error is not None:
                raise error
            if not found:
                raise CompactionFailed(f"ledger {ledger_id} has no entry {first}: it is being deleted")
            self.bytes_read += sum(map(len, found))
            return found

    def _fetch(
        self,
        ledger_id: int,
        first: int,
        count: int,
        report: Callable[[tuple[list[bytes], StoreError | None]], None],
    ) -> None:
        try:
            found = self.topic.services.store.fetch(
                ledger_id,
                first,
                entries_max=count,
                bytes_max=BYTES_PER_FETCH,
                ahead=ReadAhead(count, BYTES_PER_FETCH),
                done=lambda entries, error: report((entries, error)),
            )
        except StoreError as error:
            report(([], error))
            return
        if found is not None:
            report((found, None))

    # --- writing ---
    def _write(
        self, survivors: LatestPerKey, old: CompactedLedger | None, begin: int, stop: int
    ) -> Generator[bool | None, None, tuple[Seal, int]]:
        """Write the new ledger; return its seal and number of messages when all is durable."""
        topic = self.topic
        self._unwritten, self._write_error = 0, None
        self._new = topic.services.store.create_ledger(owner_of(topic.text))
        last, kept, damaged = (-1, -1, -1), 0, len(self._damaged)
        for found in self._entries(old, begin, stop):
            if found is None or isinstance(found, bool):
                yield found
                continue
            offset, ledger_id, entry_id, entry = found
            if survivors.is_over:
                raise CompactionFailed(f"more messages can be read than {survivors.messages} before")
            bits, count, staying = survivors.kept()
            if staying:
                left = entry
                if staying < count:
                    left = yield from rebatched(entry, bits)
                kept += staying
                head = head_of(left)
                # A batch that cannot be parsed is kept whole; it counts as one message here.
                messages = count_of(head) if staying == count else bits.bit_length()
                last = ledger_id, entry_id, messages - 1 if head is not None and head.is_batch else -1
                self._append(framed(offset, ledger_id, entry_id, left))
                while self._unwritten > UNWRITTEN_BYTES_MAX:
                    yield from self._wait(self._when_written)
                    self._check()
            yield None
        if len(self._damaged) > damaged:  # messages are known by number
            raise CompactionFailed("entries became unreadable meanwhile: " + "; ".join(self._damaged))
        if not survivors.is_over:
            raise CompactionFailed(f"fewer messages can be read than {survivors.messages} before")
        seal = Seal(stop, last)
        self._append(sealed(seal))
        while self._unwritten:
            yield from self._wait(self._when_written)
            self._check()
        self._check()
        return seal, kept

    def _when_written(self, resume: Callable[[None], None]) -> None:
        self._written_enough = resume

    def _append(self, data: bytes) -> None:
        assert self._new is not None
        size = len(data)
        self._unwritten += size
        self.bytes_written += size
        try:
            self.topic.services.store.append(self._new, data, partial(self._written, self._new, size))
        except StoreError:
            self._unwritten -= size
            raise

    def _written(self, ledger_id: int, size: int, error: StoreError | None) -> None:
        if ledger_id != self._new:
            return  # cancelled
        self._unwritten -= size
        if error is not None:
            self._write_error = error
        resume = self._written_enough
        if resume is not None and (error is not None or self._unwritten <= UNWRITTEN_BYTES_MAX // 2):
            self._written_enough = None
            resume(None)

    def _switch(self, seal: Seal) -> Job:
        """Write the complete new ledger into the cursor's properties, then delete the old one."""
        topic = self.topic
        assert self._new is not None
        subscription = topic.subscriptions.get(COMPACTION)
        if subscription is None:
            raise CompactionFailed(f"subscription {COMPACTION} was deleted meanwhile")
        info = next(
            each for each in topic.services.store.ledgers(owner_of(topic.text)) if each.ledger_id == self._new
        )
        new = _view(topic, info, seal)
        cursor = subscription.cursor
        before, mark = dict(cursor.properties), cursor.mark
        cursor.properties = _named(new)
        cursor.acknowledge_below(seal.horizon)
        # A crash here leaves both ledgers: the next load uses the one that the cursor names. New readers need
        # the new ledger, because entries before the new mark may be trimmed from now on.
        self._new = None
        old, topic.compacted = topic.compacted, new
        error = yield from self._wait(subscription.write_snapshot)
        if error is not None:
            cursor.properties = before
            cursor.reset(mark)
            self._new, topic.compacted = new.ledger_id, old
            raise error
        if self._is_cancelled:
            return
        if old is not None:
            old.replaced()
        log.info(
            "%r: removed %d messages, kept %d entries of %d bytes", self, self.removed, new.entries,
            new.size_bytes,
        )  # fmt: skip
        self._end(None)


def _next_entry(ledger: ManagedLedger, offset: int, begin: int) -> int:
    if ledger.start > begin:
        # Truncated: keys whose newest message was deleted would lose their compacted one, too.
        raise CompactionFailed("the topic was truncated meanwhile")
    return ledger.skip_gap(offset)


# --- compacted ledgers of a loaded topic ---
def _view(topic: CompactedTopic, info: StoredLedger, seal: Seal) -> CompactedLedger:
    return CompactedLedger(
        topic.services.store, topic.text, info.ledger_id, info.entries - 1, info.size_bytes, seal
    )


def _named(view: CompactedLedger) -> Properties:
    return {LEDGER_PROPERTY: str(view.ledger_id), HORIZON_PROPERTY: str(view.horizon)}


def recall(topic: CompactedTopic) -> None:
    """Find the compacted ledger of a loaded topic, and delete leftovers of a crash. Raises `StoreError`.

    If damage took the cursor's properties, the newest complete ledger is used.
    """
    subscription = topic.subscriptions.get(COMPACTION)
    infos = topic.services.store.ledgers(owner_of(topic.text))
    if subscription is None:
        if infos and not topic.services.store.damage.found:
            # A reader was using them when the subscription was deleted.
            topic.services.store.delete_ledgers([each.ledger_id for each in infos])
        return
    named = subscription.cursor.properties.get(LEDGER_PROPERTY)
    found: CompactedLedger | None = None
    for info in sorted(infos, key=lambda each: (str(each.ledger_id) == named, each.ledger_id), reverse=True):
        seal = seal_of(topic.services.store, info.ledger_id, info.entries)
        if seal is None and str(info.ledger_id) == named:
            # Only the seal is lost: the cursor's properties contain the horizon.
            horizon = int(subscription.cursor.properties[HORIZON_PROPERTY])
            seal = Seal(horizon, (*topic.ledger.position_before(horizon), -1))
        is_gone = named is None and seal is not None and seal.horizon < topic.ledger.start
        if is_gone and not topic.services.store.damage.found:
            # Left by a deleted subscription: later entries were not retained for it.
            continue
        if seal is not None:
            found = _view(topic, info, seal)
            break
    if found is None or str(found.ledger_id) != named:
        if named is not None:
            log.error("topic %s: its compacted ledger %s is lost to damage", topic.text, named)
        if found is not None:
            log.warning("topic %s: found its compacted ledger %d", topic.text, found.ledger_id)
            subscription.cursor.properties = _named(found)
            subscription.write_snapshot(None)
    topic.compacted = found
    left = [each.ledger_id for each in infos if found is None or each.ledger_id != found.ledger_id]
    if left:
        topic.services.store.delete_ledgers(left)


def forget(topic: CompactedTopic) -> None:
    """Delete the compacted data after the subscription or the topic was deleted."""
    if topic.compaction is not None:
        topic.compaction.cancel(f"the topic, or its subscription {COMPACTION}, is deleted")
        topic.compaction = None
    view, topic.compacted = topic.compacted, None
    # Readers of this ledger, or of an older one, continue to the end.
    views = [view, *(each.compacted for each in topic.subscriptions.values())]
    read = {each.ledger_id: each for each in views if each is not None}
    infos = topic.services.store.ledgers(owner_of(topic.text))
    left = [each.ledger_id for each in infos if each.ledger_id not in read]
    if left:
        topic.services.store.delete_ledgers(left)
    for each in read.values():
        each.replaced()


def leave_memory(topic: CompactedTopic) -> None:
    """Cancel the compaction of a topic that leaves memory."""
    if topic.compaction is not None:
        topic.compaction.cancel("the topic leaves memory")
        topic.compaction = None


def start(topic: CompactedTopic) -> None:
    """Compact now. Raises `Refused` and `StoreError`."""
    if topic.compaction is None:
        topic.compaction = Compaction(topic)
    topic.compaction.start()


def prepare(topic: CompactedTopic) -> None:
    """With a threshold, retain entries for compaction from now on."""
    if topic.policies.compaction_threshold_bytes > 0 and COMPACTION not in topic.subscriptions:
        topic.subscription(COMPACTION, offset=topic.ledger.start)


def check(topic: CompactedTopic) -> None:
    """Compact if the backlog exceeds the policies' threshold."""
    threshold = topic.policies.compaction_threshold_bytes
    if threshold <= 0:
        return
    prepare(topic)
    last = topic.compaction
    if last is not None:
        is_early = topic.scheduler.now_ms < last.retry_ms
        if last.is_running or (last.status is JobStatus.ERROR and is_early):
            return
    waiting = topic.subscriptions[COMPACTION].cursor.mark
    if waiting < topic.ledger.confirmed and topic.ledger.size_from(waiting) > threshold:
        start(topic)
