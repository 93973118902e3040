"""Index of the times at which topics need maintenance: those in memory, and all others in the store.

TTL, retention, unused subscriptions and inactive topics act by time, also on unused topics that are not in
memory. Reading all topics to find the few that are due would take hours with very many. So each topic that
may become due has a key ``due/<milliseconds>/<topic>``: keys are read in order, up to now, and topics that
are not due cost nothing, neither while the broker runs nor when it starts.

A time is the earliest at which maintenance *may* be needed. It is written when a topic is created or leaves
memory, not at each use: a topic that is checked too early gets its next time. The topic's record contains the
time of its key (``due_ms``), so that there is one key per topic.

While a topic is in memory its key is ignored: it is checked when something happened to it, or at a time that
`ExpiryIndex.plan` keeps in memory. Ignored keys are read again by the next start, when they are the only
schedule: see `frontier`.

A namespace or a topic whose policies changed is due at once, under ``due/<0>/policies:<name>``; the value is
the last topic that was checked, so that a walk over many topics resumes there after a restart.
"""

from collections.abc import Generator, Iterator
from typing import Final, Generic, Protocol, TypeVar

from geminga.broker.topics.record import TopicRecord
from geminga.ledger.api import EntryStore, PrefetchRequest

NEVER: Final = (1 << 62) - 1
"""Time of a topic that needs no maintenance."""
GONE: Final = -1
"""``check_ms`` of a topic that has left memory. Pending operations may still report to it, and another topic
with its name may exist, which maintenance of the old one would harm."""
PLANNED_MS_MAX: Final = 600_000
"""Longest time until the next check of a topic in memory."""

_PREFIX = "due/"
_DIGITS = 13
_LATEST_MS = 10**_DIGITS - 1
_WALK = "policies:"
_FIRST = f"{_PREFIX}{0:0{_DIGITS}d}/{_WALK}"

Due = tuple[int, str]
"""Time at which a topic is due, and its name."""


class IndexedTopic(Protocol):
    """Interface of a topic in memory for this module."""

    check_ms: int
    """Time of its next check; `NEVER` if none is planned, `GONE` if none ever will be."""


T = TypeVar("T", bound=IndexedTopic)


class ExpiryIndex(Generic[T]):
    """Index of the topics that are due. Times are milliseconds since 1970."""

    def __init__(self, store: EntryStore) -> None:
        self._store = store
        self._planned: dict[int, dict[T, None]] = {}
        self._passed = ""
        self._next_ms = self._reading_ms = 0
        self.frontier = 0
        """Keys up to this time were read in this run; no new ones are written there."""

    # --- topics in memory ---
    def plan(self, topic: T, when_ms: int = 0) -> None:
        """Check a topic in memory at ``when_ms``, in whole seconds, or earlier if that is planned already."""
        when_ms += -when_ms % 1000
        if when_ms < topic.check_ms:
            self._unplan(topic)
            topic.check_ms = when_ms
            self._planned.setdefault(when_ms, {})[topic] = None

    def drop(self, topic: T) -> None:
        """Remove a topic that leaves memory: it is never checked again."""
        self._unplan(topic)
        topic.check_ms = GONE

    def _unplan(self, topic: T) -> None:
        topics = self._planned.get(topic.check_ms)
        if topics is not None:
            topics.pop(topic, None)
            if not topics:
                del self._planned[topic.check_ms]

    def take_planned(self, now_ms: int) -> Iterator[T]:
        """Yield the topics in memory that are due, in steps; their plans are removed.

        After the clock was set back, times that are too far in the future are due.
        """
        due = [when for when in self._planned if when <= now_ms or when > now_ms + PLANNED_MS_MAX + 1000]
        topics = [topic for when in sorted(due) for topic in self._planned.pop(when)]
        topics.reverse()
        while topics:
            topic = topics.pop()
            if topic.check_ms != GONE:
                self._unplan(topic)  # it may have changed meanwhile
                topic.check_ms = NEVER
                yield topic

    # --- topics in the store ---
    def arm(self, text: str, record: TopicRecord, when_ms: int) -> int:
        """Set a topic's time in the index and in its record; the caller then writes the record.

        Returns its former time for `disarm`, 0 if it had none.
        """
        before = record.due_ms
        if when_ms >= NEVER:
            record.due_ms = 0
            return before
        # Not where reading has been, nor where it may have been read ahead.
        when_ms = min(max(when_ms, self.frontier + 1, self._reading_ms + 1), _LATEST_MS)
        if when_ms == before:
            return 0
        self._store.keys.put(_key(when_ms, text), b"")
        self._next_ms = min(self._next_ms, when_ms)
        record.due_ms = when_ms
        return before

    def disarm(self, text: str, when_ms: int) -> None:
        """Remove a topic's key of that time from the index; 0: no key."""
        if when_ms:
            self._store.keys.delete(_key(when_ms, text))

    def postpone(self, text: str, when_ms: int, until_ms: int) -> None:
        """Delay a topic that cannot be read, nor its record written."""
        self._store.keys.put(_key(min(until_ms, _LATEST_MS), text), b"")
        self._next_ms = min(self._next_ms, until_ms)
        self._store.keys.delete(_key(when_ms, text))

    def due(self, now_ms: int) -> Generator[Due | PrefetchRequest, None, None]:
        """Yield (time, topic) in order for topics that are due and were not read in this run.

        In steps: also yields reads of the store that must complete before the next item. The caller closes
        the generator if it stops early.
        """
        if self._next_ms > now_ms:
            return
        self._next_ms, self._reading_ms = NEVER, now_ms
        following = 0
        after: str | None = self._passed
        try:
            while after is not None:
                yield PrefetchRequest(pages=((_PREFIX, after),))
                keys, after = self._store.keys.names_page(_PREFIX, after=after)
                for key in keys:
                    when_ms, text = int(key[len(_PREFIX) :][:_DIGITS]), key[len(_PREFIX) + _DIGITS + 1 :]
                    if when_ms > now_ms:
                        following = when_ms
                        return
                    self._passed, self.frontier = key, when_ms
                    if not text.startswith(_WALK):
                        yield when_ms, text
            following = NEVER
        finally:
            self._next_ms, self._reading_ms = min(self._next_ms, following), 0

    # --- policies that changed ---
    def begin_walk(self, name: str, last: str = "") -> None:
        """Make all topics of a namespace, or of a partitioned topic, due, except those up to ``last``."""
        self._store.keys.put(_FIRST + name, last.encode())

    def end_walk(self, name: str) -> None:
        self._store.keys.delete(_FIRST + name)

    def walks(self) -> list[tuple[str, str]]:
        """Return the pending walks: (name, last topic that was checked)."""
        return [(key[len(_FIRST) :], value.base.decode()) for key, value in self._store.keys.scan(_FIRST)]


def _key(when_ms: int, text: str) -> str:
    return f"{_PREFIX}{when_ms:0{_DIGITS}d}/{text}"
