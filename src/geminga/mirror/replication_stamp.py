"""Replication stamp: a field that mirrors add to the metadata of each entry.

It names the pair of topics (`geminga.mirror.pairing`) and the entry's position in the source. From stamps a
mirror reads in the target how far it is, and which entry of the target belongs to which of the source.
Earlier versions appended a signature, which is ignored.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from geminga.entries import ORIGIN_FIELD, read_varint, varint
from geminga.mirror.positions import Position

PAIR_BYTES: Final = 8
_TAG = varint(ORIGIN_FIELD << 3 | 2)
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
"""Sizes of the wire types with a fixed size."""


class ReplicationStamp(NamedTuple):
    """Pair of topics, and position of the entry in the source."""

    pair: bytes
    position: Position

    def field(self) -> bytes:
        """Encode the stamp as a field of the metadata."""
        body = self.pair + varint(self.position.ledger) + varint(self.position.entry)
        return _TAG + varint(len(body)) + body


def stamp_in(metadata: bytes) -> ReplicationStamp | None:
    """Return the last stamp in an encoded MessageMetadata, written by the mirror that sent the entry here;
    None without one."""
    found = None
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
                if tag >> 3 == ORIGIN_FIELD and size > PAIR_BYTES and position <= end:
                    found = metadata[start:position]
            elif kind in _FIXED:
                position += _FIXED[kind]
            else:
                break
        if found is None:
            return None
        ledger, start = read_varint(found, PAIR_BYTES)
        entry, _ = read_varint(found, start)
    except (IndexError, ValueError):
        return None  # an unrelated field of that number
    return ReplicationStamp(found[:PAIR_BYTES], Position(ledger, entry))
