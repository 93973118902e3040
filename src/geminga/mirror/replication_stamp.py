"""Replication stamp: a field that mirrors add to the metadata of each entry.

It names the pair of topics (`geminga.mirror.pairing`) and the entry's position in the source. From stamps a
mirror reads in the target how far it is, and which entry of the target belongs to which of the source.
Earlier versions appended a signature, which is ignored.
"""

from typing import Final, NamedTuple

from google.protobuf.unknown_fields import UnknownFieldSet

from geminga.entries import ORIGIN_FIELD, MessageMetadata, read_varint, varint
from geminga.mirror.positions import Position

PAIR_BYTES: Final = 8
_TAG = varint(ORIGIN_FIELD << 3 | 2)


class ReplicationStamp(NamedTuple):
    """Pair of topics, and position of the entry in the source."""

    pair: bytes
    position: Position

    def field(self) -> bytes:
        """Encode the stamp as a field of the metadata."""
        body = self.pair + varint(self.position.ledger) + varint(self.position.entry)
        return _TAG + varint(len(body)) + body


def stamps_in(metadata: MessageMetadata) -> list[ReplicationStamp]:
    """Return the stamps of an entry, one of each mirror on its way: the last is of the mirror that sent the
    entry here."""
    found: list[ReplicationStamp] = []
    unknown = UnknownFieldSet(metadata)
    for field in map(unknown.__getitem__, range(len(unknown))):
        if field.field_number == ORIGIN_FIELD and isinstance(field.data, bytes):
            try:
                ledger, start = read_varint(field.data, PAIR_BYTES)
                entry, _ = read_varint(field.data, start)
            except (IndexError, ValueError):
                continue  # an unrelated field of that number
            found.append(ReplicationStamp(field.data[:PAIR_BYTES], Position(ledger, entry)))
    return found
