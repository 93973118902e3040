"""Replication stamp: a field that mirrors add to the metadata of each entry.

It names the pair of topics (`geminga.mirror.pairing`) and the entry's position in the source. From stamps a
mirror reads in the target how far it is, and which entry of the target belongs to which of the source.
Earlier versions appended a signature, which is ignored.
"""

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


def stamps_in(metadata: bytes) -> list[ReplicationStamp]:
    """Return the stamps in an encoded MessageMetadata, one of each mirror on the entry's way: the last is of
    the mirror that sent the entry here."""
    found: list[ReplicationStamp] = []
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
                    field = metadata[start:position]
                    ledger, start = read_varint(field, PAIR_BYTES)
                    entry, _ = read_varint(field, start)
                    found.append(ReplicationStamp(field[:PAIR_BYTES], Position(ledger, entry)))
            elif kind in _FIXED:
                position += _FIXED[kind]
            else:
                break
    except (IndexError, ValueError):
        return []  # an unrelated field of that number
    return found
