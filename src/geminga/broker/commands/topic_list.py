"""Lists of topics: their hash and patterns (framing.md section 10)."""

import re
from collections.abc import Generator, Iterable, Sequence
from re import _parser as re_parser  # type: ignore[attr-defined]
from typing import Any

from geminga.broker.runtime.cooperative import CooperativeScheduler
from geminga.broker.runtime.refusal import Refused
from geminga.wire.checksum import crc32c
from geminga.wire.proto import pulsar_wire_pb2 as pb

PATTERN_LENGTH_MAX = 50
"""Longest pattern; longer ones are matched by the client (``topicsPatternLengthMax``)."""
REPEATS_MAX = 2
"""Unbounded repetitions allowed in a pattern. Python's matcher backtracks: a peer must not keep it busy."""
FIXED_REPEAT_MAX = 16
"""Longest repetition of a fixed length that does not count as an unbounded one."""
_HASHED_AT_ONCE = 10_000
_DOMAIN = re.compile(r"^(?:non-)?persistent://")
_PARTITION_SUFFIX = re.compile(r"-partition-(?:0|[1-9][0-9]*)$")


def topics_hash(topics: Iterable[str]) -> str:
    """Return the CRC32C of the sorted names joined with commas, as 8 hex digits, little-endian."""
    return _hash_text(crc32c(",".join(sorted(topics)).encode()))


def hash_in_steps(names: Sequence[str], slices: CooperativeScheduler) -> Generator[None, None, str]:
    """Return `topics_hash` of sorted names, for a job."""
    crc = 0
    for start in range(0, len(names), _HASHED_AT_ONCE):
        part = ",".join(names[start : start + _HASHED_AT_ONCE])
        crc = crc32c(("," + part if start else part).encode(), crc)
        if slices.should_yield:
            yield None
    return _hash_text(crc)


def _hash_text(crc: int) -> str:
    return crc.to_bytes(4, "little").hex()


class TopicsPattern:
    """Pattern of complete names; the domain and a partition suffix are ignored on both sides.

    Raises `Refused` if it is too long or not a regular expression.
    """

    def __init__(self, pattern: str) -> None:
        if len(pattern) > PATTERN_LENGTH_MAX:
            raise Refused(
                pb.NotAllowedError,
                f"The pattern has {len(pattern)} characters; at most {PATTERN_LENGTH_MAX} are allowed",
            )
        self.text = text = _DOMAIN.sub("", pattern)
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
    """Return whether matching takes a small power of the name's length at most."""
    try:
        repeats = _count_repeats(re_parser.parse(pattern), inside=False)
    except _PatternTooCostly:
        return False
    return repeats <= REPEATS_MAX


class _PatternTooCostly(Exception):
    pass


def _count_repeats(nodes: Any, *, inside: bool) -> int:
    """Return the unbounded repetitions; raises `_PatternTooCostly` if backtracking may explode."""
    found = 0
    for operation, argument in nodes:
        name = str(operation)
        if name in _SINGLE:
            continue
        if name == "SUBPATTERN":
            found += _count_repeats(argument[-1], inside=inside)
        elif name in _REPEATS and not inside:
            low, high, body = argument
            found += _count_repeats(body, inside=True) + (low != high or high > FIXED_REPEAT_MAX)
        elif name == "BRANCH" and not inside:
            found += sum(_count_repeats(branch, inside=False) for branch in argument[1])
        else:
            raise _PatternTooCostly
    return found


def is_hidden(topic: str) -> bool:
    """Return whether a complete name is a system topic, which lists leave out."""
    return topic.split("/", 4)[-1].startswith("__")
