"""Lists of topics: their hash, patterns, and who watches them (framing.md section 10)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from geminga.broker.refusal import Refused
from geminga.ids import TopicName
from geminga.wire.checksum import crc32c
from geminga.wire.proto import pulsar_wire_pb2 as pb

PATTERN_LENGTH_MAX = 50
"""Longer patterns are left to the client (``topicsPatternLengthMax``)."""
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
        try:
            self._pattern = re.compile(_DOMAIN.sub("", pattern))
        except re.error as error:
            raise Refused(
                pb.NotAllowedError, f"The pattern {pattern!r} is no regular expression: {error}"
            ) from error

    def matches(self, topic: str) -> bool:
        return self._pattern.fullmatch(_PARTITION_SUFFIX.sub("", _DOMAIN.sub("", topic))) is not None


def is_hidden(topic: str) -> bool:
    """System topics are in no list."""
    return TopicName.parse(topic).local.startswith("__")
