"""Marks: what a mirror writes into each entry, and nobody else can.

A mark says of which pair of topics the entry is (`geminga.mirror.pairing`), where in the source it comes
from, and behind which place of the target it lies: what had a receipt when it was sent. It is what a mirror
knows of its own progress, and what keeps entries from going round. So whoever may publish to a topic must not
be able to write one, else he could have messages of others left out, or acknowledged: each mark is signed
with a key of the source's namespace (`geminga.mirror.keys`).

A mark that somebody copied from an entry into a later one is signed, too. It is told by its place: an
entry with the same source position, or a later one, lies between the place that the mark names and the copy.
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
"""So many marks of an entry are looked at, the last: each mirror that it came through wrote one, and whoever
publishes can write thousands before theirs."""
_ORIGIN_TAG = varint(ORIGIN_FIELD << 3 | 2)
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
"""Sizes of the wire types of one size."""


class StampOrigin(NamedTuple):
    """Where a mirrored entry comes from. ``after``: the entry lies behind that place of the target."""

    pair: bytes
    position: Position
    after: Position


class ReplicationStamp(NamedTuple):
    """An `StampOrigin` as somebody wrote it: ``body`` and ``signature`` say whether it was a mirror."""

    origin: StampOrigin
    body: bytes
    signature: bytes
    is_last: bool
    """No other mark comes behind it: it is of the mirror that brought the entry here."""

    def is_signed_with(self, keys: Sequence[bytes]) -> bool:
        return any(hmac.compare_digest(_signature(key, self.body), self.signature) for key in keys)


def mark_field(origin: StampOrigin, key: bytes) -> bytes:
    """The field as it travels."""
    after = origin.after
    body = b"".join(
        (
            origin.pair, varint(origin.position.ledger), varint(origin.position.entry),
            varint(after.ledger + 1), varint(after.entry + 1),
        )
    )  # fmt: skip
    return _ORIGIN_TAG + varint(len(body) + SIGNATURE_BYTES) + body + _signature(key, body)


def marks_in(metadata: bytes) -> list[ReplicationStamp]:
    """The last marks in a MessageMetadata as it travels: of each mirror that it came through, and of anybody
    who wrote something alike."""
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
        pass  # nobody's field of that number
    found = []
    for start, stop in fields:
        mark = _mark(metadata[start : stop - SIGNATURE_BYTES], metadata[stop - SIGNATURE_BYTES : stop])
        if mark is not None:
            found.append(mark)
    if found:
        found[-1] = found[-1]._replace(is_last=True)
    return found


def _mark(body: bytes, signature: bytes) -> ReplicationStamp | None:
    """None for what is none."""
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
