"""When which topic next needs something: an index in order of time, in the store.

TTL, retention, unused subscriptions and inactive topics act by time, also on topics that nobody uses and
that are not in memory. Looking at all topics to find the few that need something would take hours where
there are many. So each topic that may need something has a key ``due/<milliseconds>/<topic>``: keys are
read in order, up to now, and what is not due costs nothing, neither while the broker runs nor when it starts.

A time is the earliest at which something *may* be needed. It is written when a topic is made or leaves
memory, not whenever it is used: what comes too early is looked at, found to need nothing yet, and gets its
next time. The topic's own record says which key is its own (``due_ms``), so that there is one of each.

While a topic is in memory its key stays where it is and others look after it (`looks`). Keys that were
passed over for that are read again by the next start, which is when nobody else knows them: see `frontier`.

A namespace or a topic whose policies changed is due at once, under ``due/<0>/policies:<name>``; the value is
the last topic that was looked at, so that a walk over many goes on where a restart broke it off.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from geminga.broker.topics.record import TopicRecord
from geminga.ledger.api import EntryStore, PrefetchRequest

NEVER: Final = (1 << 62) - 1
"""The time of what needs nothing, whatever time it is."""

_PREFIX = "due/"
_DIGITS = 13
_LATEST_MS = 10**_DIGITS - 1
_WALK = "policies:"
_FIRST = f"{_PREFIX}{0:0{_DIGITS}d}/{_WALK}"

Due = tuple[int, str]
"""When a topic is due, and its name."""


class ExpiryIndex:
    """See the module. Times are milliseconds since 1970."""

    __slots__ = ("_next_ms", "_passed", "_reading_ms", "_store", "frontier")

    def __init__(self, store: EntryStore) -> None:
        self._store = store
        self._passed = ""
        self._next_ms = self._reading_ms = 0
        self.frontier = 0
        """Keys up to this time were read in this life: none is written there any more."""

    # --- topics ---
    def arm(self, text: str, record: TopicRecord, when_ms: int) -> int:
        """Note in the index and in the topic's record when it is due; the caller then writes the record.

        Returns what is to be given to `disarm` behind that: the time that it was due before, 0 for none.
        """
        before = record.due_ms
        if when_ms >= NEVER:
            record.due_ms = 0
            return before
        # Not where reading has been, nor where it may have been read ahead.
        when_ms = min(max(when_ms, self.frontier + 1, self._reading_ms + 1), _LATEST_MS)
        if when_ms == before:
            return 0
        self._store.put(_key(when_ms, text), b"")
        self._next_ms = min(self._next_ms, when_ms)
        record.due_ms = when_ms
        return before

    def disarm(self, text: str, when_ms: int) -> None:
        """Take a topic out of the index, where it was at that time; 0 for nowhere."""
        if when_ms:
            self._store.delete(_key(when_ms, text))

    def postpone(self, text: str, when_ms: int, until_ms: int) -> None:
        """A topic that cannot be looked at, nor its record written, is due later."""
        self._store.put(_key(min(until_ms, _LATEST_MS), text), b"")
        self._next_ms = min(self._next_ms, until_ms)
        self._store.delete(_key(when_ms, text))

    def due(self, now_ms: int) -> Generator[Due | PrefetchRequest, None, None]:
        """What is due and was not read in this life: (time, topic) in order. May be read in steps.

        Among it is what is to be brought before the next is asked for. Whoever breaks off closes it.
        """
        if self._next_ms > now_ms:
            return
        self._next_ms, self._reading_ms = NEVER, now_ms
        following = 0
        after: str | None = self._passed
        try:
            while after is not None:
                yield PrefetchRequest(pages=((_PREFIX, after),))
                keys, after = self._store.names_page(_PREFIX, after=after)
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
        """All topics of a namespace, or of a partitioned topic, are due, those up to ``last`` excepted."""
        self._store.put(_FIRST + name, last.encode())

    def end_walk(self, name: str) -> None:
        self._store.delete(_FIRST + name)

    def walks(self) -> list[tuple[str, str]]:
        """What is to be walked over: (name, last topic that was looked at)."""
        return [(key[len(_FIRST) :], value.base.decode()) for key, value in self._store.scan(_FIRST)]


def _key(when_ms: int, text: str) -> str:
    return f"{_PREFIX}{when_ms:0{_DIGITS}d}/{text}"
