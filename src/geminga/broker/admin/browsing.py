"""Stored messages from any position of a topic, forward or backward, with a filter.

An answer ends after some milliseconds or enough messages; the next request continues from its ``next``. The
broker keeps no state between requests. A `tail` is a polling request for the messages behind an entry: a
client that falls behind is moved to the newest, and receives the number of skipped entries.
"""

import time
from typing import Any, Final

from geminga.broker.admin.tailing import (
    ANSWER_BYTES_MAX,
    ANSWER_SECONDS_MAX,
    MESSAGES_MAX,
    OPENED_BYTES_MAX,
    MessageFilter,
    messages_of,
)
from geminga.broker.entries import position_lookup
from geminga.broker.topics.persistent import PersistentTopic
from geminga.errors import CorruptPayload, StoreError
from geminga.wire.metadata import parse_entry

Json = dict[str, Any]
READ_AT_ONCE: Final = 200
READ_BYTES_AT_ONCE: Final = 1 << 20
NEWEST_ENTRIES_MAX: Final = 1_000
"""Entries that are counted for the newest messages."""
BEHIND_MAX: Final = 10_000
"""Clients that are further behind than this many entries are moved to the newest."""


class Browser:
    """Search through the entries of one topic; `step` takes some milliseconds, until `is_done`."""

    def __init__(
        self, topic: PersistentTopic, wanted: MessageFilter, count: int, *, older: bool, start: int, stop: int
    ) -> None:
        """Search the offsets from ``start`` to below ``stop``; with ``older`` the newest of them first."""
        self._topic = topic
        self._wanted = wanted
        self._count = count
        self._older = older
        self._start = start
        self._stop = stop
        # Masked payloads are searched as they are shown, which the stored bytes are not.
        texts = () if wanted.masked else (wanted.text, wanted.key)
        self._needles = tuple(each.encode() for each in texts if each and "=" not in each)
        self._messages: list[Json] = []
        self._shown = 0
        self._range = READ_AT_ONCE
        self.examined = 0

    @property
    def is_done(self) -> bool:
        """Whether enough was found, or everything was searched."""
        is_full = len(self._messages) >= self._count or self._shown >= ANSWER_BYTES_MAX
        return is_full or self._start >= self._stop

    def step(self) -> None:
        """Search an entry, then more for `ANSWER_SECONDS_MAX`. Raises `StoreError` if one cannot be read."""
        until = time.monotonic() + ANSWER_SECONDS_MAX
        read = self._read_older if self._older else self._read_newer
        while not self.is_done:
            read(until)
            if time.monotonic() >= until:
                break

    def _read_newer(self, until: float) -> None:
        ledger = self._topic.ledger
        self._start = ledger.skip_gap(self._start)
        found = ledger.read(self._start, self._stop, entries_max=READ_AT_ONCE, bytes_max=READ_BYTES_AT_ONCE)
        if not found:
            self._start = self._stop
        for entry in found:
            self._look(entry, self._start)
            self._start += 1
            if self.is_done or time.monotonic() >= until:
                return

    def _read_older(self, until: float) -> None:
        first, entries = self._last_entries()
        for at, entry in reversed(entries):
            self._look(entry, at)
            self._stop = at
            if self.is_done or time.monotonic() >= until:
                return
        self._stop = first

    def _last_entries(self) -> tuple[int, list[tuple[int, bytes]]]:
        """Return the first offset of a range before the stop that holds about `READ_BYTES_AT_ONCE`, and its
        entries. The range is halved until it does."""
        ledger = self._topic.ledger
        self._range = min(READ_AT_ONCE, 2 * self._range, self._stop - self._start)
        while True:
            first = max(self._start, self._stop - self._range)
            entries: list[tuple[int, bytes]] = []
            size, offset = 0, ledger.skip_gap(first)
            while offset < self._stop and size < READ_BYTES_AT_ONCE:
                found = ledger.read(
                    offset, self._stop, entries_max=READ_AT_ONCE, bytes_max=READ_BYTES_AT_ONCE
                )
                if not found:
                    return first, entries
                entries += enumerate(found, offset)
                size += sum(map(len, found))
                offset = ledger.skip_gap(offset + len(found))
            if offset >= self._stop or self._range == 1:
                return first, entries
            self._range //= 2

    def _look(self, entry: bytes, offset: int) -> None:
        self.examined += 1
        if self._needles and not self._may_match(entry):
            return
        ids = self._topic.ledger.position(offset)
        found = list(messages_of(bytes(entry), *ids, self._wanted))
        for message in reversed(found) if self._older else found:
            self._shown += len(message.get("payload", ""))
            self._messages.append(message)

    def _may_match(self, entry: bytes) -> bool:
        """Return False if an entry that is neither compressed nor encrypted does not contain the texts.

        Most entries are excluded so, without splitting their batches into messages.
        """
        data = bytes(entry)
        if all(each in data for each in self._needles):
            return True
        try:
            metadata = parse_entry(data).metadata
        except CorruptPayload:
            return True
        return bool(metadata.compression or metadata.encryption_keys)

    def answer(self) -> Json:
        """Return what was found: ``next`` continues the search, ``left`` entries remain to be searched."""
        ledger = self._topic.ledger
        at = (-1, -1)
        if ledger.segments:
            at = ledger.position(self._stop) if self._older else ledger.position_before(self._start)
        return {
            "messages": self._messages,
            "next": f"{at[0]}:{at[1]}",
            "examined": self.examined,
            "left": max(0, self._stop - self._start),
        }


def bounds(
    topic: PersistentTopic, position: str, after: tuple[int, int] | None, until_ms: int | None, older: bool
) -> tuple[int, int]:
    """Return the offsets to search: from ``position`` (``earliest``, ``latest``, a time in ms, or an id), or
    behind (with ``older``: before) the id ``after``, up to the time ``until_ms``."""
    ledger = topic.ledger
    now_ms = topic.scheduler.now_ms
    start, stop = ledger.start, ledger.confirmed
    if until_ms is not None:
        stop = position_lookup.offset_by_time(ledger, until_ms + 1, now_ms)
    if after is not None:
        known = ledger.offset_from(after[0], after[1] + (0 if older else 1))
        return (start, min(stop, known)) if older else (max(start, known), stop)
    if position == "latest":
        return (start, stop) if older else (stop, stop)
    if position == "earliest":
        return (start, start) if older else (start, stop)
    if ":" in position:
        ledger_id, _, entry_id = position.partition(":")
        known = ledger.offset_from(int(ledger_id), int(entry_id))
    else:
        known = position_lookup.offset_by_time(ledger, int(position), now_ms)
    return (start, min(stop, known)) if older else (max(start, known), stop)


def tail(topic: PersistentTopic, behind: tuple[int, int] | None, count: int, wanted: MessageFilter) -> Json:
    """Return messages behind an entry (without one: the newest), as `Browser.answer` does, and how many
    entries are ``behind``, to be read, and were ``skipped``.

    With a filter the last `BEHIND_MAX` entries are searched over several answers; without one a client that
    is behind is moved to the newest.
    """
    ledger = topic.ledger
    end = ledger.confirmed
    start, skipped = ledger.start if behind is None else ledger.offset_from(behind[0], behind[1] + 1), 0
    # Without a filter no client can read faster than that; with a filter, matches may be rare.
    is_filtered = wanted.text or wanted.key or wanted.producer
    newest = max(start, end - BEHIND_MAX) if is_filtered else _newest(topic, count)
    if newest > start:
        start, skipped = newest, 0 if behind is None else newest - start
    browser = Browser(topic, wanted, count, older=False, start=start, stop=end)
    problem: Json = {}
    try:
        browser.step()
    except StoreError as error:
        problem = {"problem": str(error)}
    found = browser.answer() | problem
    messages, left = found["messages"], found.pop("left")
    return found | {
        "messages": messages[-MESSAGES_MAX:],
        "notShown": max(0, len(messages) - MESSAGES_MAX),
        "skipped": skipped,
        "behind": left,
    }


def _newest(topic: PersistentTopic, count: int) -> int:
    """Return the offset behind which about ``count`` messages follow."""
    ledger = topic.ledger
    offset, held = ledger.confirmed, 0
    # Parts of larger messages count for none.
    first = max(ledger.start, offset - NEWEST_ENTRIES_MAX)
    while offset > first and held < count:
        offset -= 1
        held += ledger.counts.of(offset)[0]
    return offset


def whole_message(
    topic: PersistentTopic, ledger_id: int, entry_id: int, batch_index: int, wanted: MessageFilter
) -> Json | None:
    """Return one message with its whole payload; None if it does not exist."""
    offset = topic.ledger.offset(ledger_id, entry_id)
    entry = None if offset is None else topic.ledger.read_one(offset)
    if entry is None:
        return None
    every = messages_of(bytes(entry), ledger_id, entry_id, wanted, shown_bytes=OPENED_BYTES_MAX)
    return next((each for each in every if each.get("batchIndex", -1) == batch_index), None)
