"""Lists of topics: their hash, patterns, and who watches them (framing.md section 10)."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from re import _parser as re_parser  # type: ignore[attr-defined]
from typing import Any

from geminga.broker.commands import answers
from geminga.broker.refusal import Refused
from geminga.ids import TopicName
from geminga.ledger.api import Buffer
from geminga.wire.checksum import crc32c
from geminga.wire.proto import pulsar_wire_pb2 as pb

PATTERN_LENGTH_MAX = 50
"""Longer patterns are left to the client (``topicsPatternLengthMax``)."""
REPEATS_MAX = 2
"""Repetitions of open length in a pattern. Python's matcher backtracks: a peer must not keep it busy."""
WATCHED_TOPICS_MAX = 2_000_000
"""Topic names that all watchers of the broker hold together; clients fall back to asking again and again."""
_DOMAIN = re.compile(r"^(?:non-)?persistent://")
_PARTITION_SUFFIX = re.compile(r"-partition-(?:0|[1-9][0-9]*)$")


def topics_hash(topics: Iterable[str]) -> str:
    """CRC32C of the sorted names joined with commas, as 8 hex digits of its little-endian bytes."""
    return crc32c(",".join(sorted(topics)).encode()).to_bytes(4, "little").hex()


class TopicsPattern:
    """A pattern of complete names; the domain on either side does not count, nor a partition suffix.

    Raises `Refused` when it is too long or no regular expression.
    """

    def __init__(self, pattern: str) -> None:
        if len(pattern) > PATTERN_LENGTH_MAX:
            raise Refused(
                pb.NotAllowedError,
                f"The pattern has {len(pattern)} characters; at most {PATTERN_LENGTH_MAX} are allowed",
            )
        text = _DOMAIN.sub("", pattern)
        try:
            self._pattern = re.compile(text)
        except (re.error, RecursionError, OverflowError) as error:
            raise Refused(
                pb.NotAllowedError, f"The pattern {pattern!r} is no regular expression: {error}"
            ) from error
        if not _is_cheap(text):
            raise Refused(
                pb.NotAllowedError,
                f"The pattern {pattern!r} may take too long to match: at most {REPEATS_MAX} repetitions, "
                "and none around another or around a choice",
            )

    def matches(self, topic: str) -> bool:
        return self._pattern.fullmatch(_PARTITION_SUFFIX.sub("", _DOMAIN.sub("", topic))) is not None


_SINGLE = {"LITERAL", "NOT_LITERAL", "ANY", "IN", "CATEGORY", "AT"}
_REPEATS = {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}


def _is_cheap(pattern: str) -> bool:
    """Whether matching takes a small power of the name's length at most."""
    try:
        repeats = _count_repeats(re_parser.parse(pattern), inside=False)
    except _TooCostly:
        return False
    return repeats <= REPEATS_MAX


class _TooCostly(Exception):
    pass


def _count_repeats(nodes: Any, *, inside: bool) -> int:
    """Repetitions of open length; raises `_TooCostly` for what may backtrack without bound."""
    found = 0
    for operation, argument in nodes:
        name = str(operation)
        if name in _SINGLE:
            continue
        if name == "SUBPATTERN":
            found += _count_repeats(argument[-1], inside=inside)
        elif name in _REPEATS and not inside:
            low, high, body = argument
            found += _count_repeats(body, inside=True) + (1 if low != high else 0)
        elif name == "BRANCH" and not inside:
            found += sum(_count_repeats(branch, inside=False) for branch in argument[1])
        else:
            raise _TooCostly
    return found


def is_hidden(topic: str) -> bool:
    """System topics are in no list."""
    return TopicName.parse(topic).local.startswith("__")


class TopicWatchers:
    """All watchers of the broker, by namespace; ``held`` is how many topic names they hold together."""

    __slots__ = ("_by_namespace", "held")

    def __init__(self) -> None:
        self._by_namespace: dict[str, dict[TopicListWatcher, None]] = {}
        self.held = 0

    def __len__(self) -> int:
        return sum(len(watchers) for watchers in self._by_namespace.values())

    def add(self, namespace: str, watcher: TopicListWatcher) -> None:
        self._by_namespace.setdefault(namespace, {})[watcher] = None

    def remove(self, namespace: str, watcher: TopicListWatcher) -> None:
        watchers = self._by_namespace.get(namespace)
        if watchers is not None:
            watchers.pop(watcher, None)
            if not watchers:
                del self._by_namespace[namespace]

    def topic_changed(self, name: TopicName, exists: bool) -> None:
        """A topic was created or deleted."""
        for watcher in list(self._by_namespace.get(name.namespace_name, ())):
            watcher.changed(name, exists)


class TopicListWatcher:
    """Tells one client when topics that match its pattern come and go.

    ``names`` are the namespace's persistent topics now. Raises `Refused` when all watchers together
    would hold more than `WATCHED_TOPICS_MAX` names.
    """

    __slots__ = ("_namespace", "_pattern", "_topics", "_watcher_id", "_watchers", "_write")

    def __init__(
        self,
        watchers: TopicWatchers,
        write: Callable[[Buffer], None],
        watcher_id: int,
        namespace: str,
        pattern: TopicsPattern,
        names: Iterable[str],
    ) -> None:
        self._watchers = watchers
        self._write = write
        self._watcher_id = watcher_id
        self._namespace = namespace
        self._pattern = pattern
        self._topics = {sys.intern(name) for name in names if not is_hidden(name) and pattern.matches(name)}
        held = watchers.held + len(self._topics)
        if held > WATCHED_TOPICS_MAX:
            raise Refused(pb.NotAllowedError, f"Watchers hold {held} topics; at most {WATCHED_TOPICS_MAX}")
        watchers.held = held
        watchers.add(namespace, self)

    @property
    def topics(self) -> list[str]:
        return sorted(self._topics)

    def changed(self, name: TopicName, exists: bool) -> None:
        """A topic of the namespace was created or deleted."""
        text = str(name)
        if not name.persistent or is_hidden(text) or not self._pattern.matches(text):
            return
        if exists == (text in self._topics):
            return
        if exists:
            self._topics.add(text)
            self._watchers.held += 1
        else:
            self._topics.discard(text)
            self._watchers.held -= 1
        self._write(
            answers.watch_update(
                self._watcher_id,
                [text] if exists else [],
                [] if exists else [text],
                topics_hash(self._topics),
            )
        )

    def close(self) -> None:
        self._watchers.remove(self._namespace, self)
        self._watchers.held -= len(self._topics)
        self._topics.clear()
