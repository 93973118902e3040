"""Marks: a signed field that mirrors add to each entry.

A mark names the pair of topics (`geminga.mirror.pairing`), the entry's source position, and a target position
before the entry, whose receipt had come when it was sent. From marks a mirror reads its progress, and they
prevent loops. Producers of a topic must not be able to forge them, else they could make the mirror skip or
acknowledge messages of others: each mark is signed with a key of the source's namespace
(`geminga.mirror.keys`).

A mark copied from one entry into a later one has a valid signature, but is detected by its position: an entry
with the same or a later source position lies between the target position in the mark and the copy.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from geminga.mirror.positions import Position
from geminga.wire.metadata import ORIGIN_FIELD
from geminga.wire.varint import read_varint, varint

PAIR_BYTES: Final = 8
SIGNATURE_BYTES: Final = 16
KEY_BYTES: Final = 32
MARKS_MAX: Final = 16
"""Number of marks of an entry that are read, the last ones: each mirror on its path wrote one, and producers
can write thousands before these."""
_ORIGIN_TAG = varint(ORIGIN_FIELD << 3 | 2)
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
"""Sizes of the wire types with a fixed size."""


class StampOrigin(NamedTuple):
    """Origin of a mirrored entry. ``after``: a target position before the entry."""

    pair: bytes
    position: Position
    after: Position


class ReplicationStamp(NamedTuple):
    """An unverified `StampOrigin`: ``body`` and ``signature`` show whether a mirror wrote it."""

    origin: StampOrigin
    body: bytes
    signature: bytes
    is_last: bool
    """True if no other mark follows: the mark of the mirror that brought the entry here."""

    def is_signed_with(self, keys: Sequence[bytes]) -> bool:
        return any(hmac.compare_digest(_signature(key, self.body), self.signature) for key in keys)


def mark_field(origin: StampOrigin, key: bytes) -> bytes:
    """Encode a mark as a field of the metadata."""
    after = origin.after
    body = b"".join(
        (
            origin.pair, varint(origin.position.ledger), varint(origin.position.entry),
            varint(after.ledger + 1), varint(after.entry + 1),
        )
    )  # fmt: skip
    return _ORIGIN_TAG + varint(len(body) + SIGNATURE_BYTES) + body + _signature(key, body)


def marks_in(metadata: bytes) -> list[ReplicationStamp]:
    """Return the last marks in an encoded MessageMetadata: those of mirrors, and forged ones."""
    fields: deque[tuple[int, int]] = deque(maxlen=MARKS_MAX)
    position, end = 0, len(metadata)
    try:
        while position < end:
            tag, position = read_varint(metadata, position)
            kind = tag & 7
            if kind == _VARINT:
                _, position = read_varint(metadata, position)
            elif kind == _BYTES:
                size, start = read_varint(metadata, position)
                position = start + size
                if tag >> 3 == ORIGIN_FIELD and size > PAIR_BYTES + SIGNATURE_BYTES and position <= end:
                    fields.append((start, position))
            elif kind in _FIXED:
                position += _FIXED[kind]
            else:
                break
    except (IndexError, ValueError):
        pass  # an unrelated field of that number
    found = []
    for start, stop in fields:
        mark = _mark(metadata[start : stop - SIGNATURE_BYTES], metadata[stop - SIGNATURE_BYTES : stop])
        if mark is not None:
            found.append(mark)
    if found:
        found[-1] = found[-1]._replace(is_last=True)
    return found


def _mark(body: bytes, signature: bytes) -> ReplicationStamp | None:
    """Decode a mark; None if it is invalid."""
    numbers, position = [], PAIR_BYTES
    try:
        while position < len(body):
            number, position = read_varint(body, position)
            numbers.append(number)
        ledger, entry, after_ledger, after_entry = numbers
    except (IndexError, ValueError):
        return None
    origin = StampOrigin(
        body[:PAIR_BYTES], Position(ledger, entry), Position(after_ledger - 1, after_entry - 1)
    )
    return ReplicationStamp(origin, body, signature, is_last=False)


def _signature(key: bytes, body: bytes) -> bytes:
    return hashlib.blake2b(body, key=key, digest_size=SIGNATURE_BYTES, person=b"geminga-mirror").digest()
