"""Step 6, for messages that are larger than the broker takes: cutting them into chunks.

Framing.md section 1.5: the whole payload is compressed first and the compressed bytes are cut. All
chunks carry the message's metadata and sequence id, one uuid, their number and the total size; each is
an entry with a receipt of its own. The message's id is that of its last chunk, with the first one inside.
"""

from __future__ import annotations

from geminga.wire.varint import varint

CHUNKS_MAX = 1 << 20
"""A message that would need more chunks is refused."""


class ChunkedMessage:
    """What the chunks of one message share: uuid, publish time, and the place of the first one."""

    __slots__ = ("chunks", "first_entry_id", "first_ledger_id", "publish_time", "total_size", "uuid")

    def __init__(self, chunks: int, total_size: int) -> None:
        self.chunks = chunks
        self.total_size = total_size
        self.publish_time = 0
        self.uuid = b""
        self.first_ledger_id = -1
        self.first_entry_id = -1


class ChunkPart:
    """One chunk: its number and its message."""

    __slots__ = ("index", "message")

    def __init__(self, message: ChunkedMessage, index: int) -> None:
        self.message = message
        self.index = index

    @property
    def last(self) -> bool:
        return self.index == self.message.chunks - 1

    def metadata(self) -> bytes:
        """The chunk fields of ``MessageMetadata`` (26 to 29)."""
        shared = self.message
        return b"".join(
            (
                b"\xd2\x01",
                varint(len(shared.uuid)),
                shared.uuid,
                b"\xd8\x01",
                varint(shared.chunks),
                b"\xe0\x01",
                varint(shared.total_size),
                b"\xe8\x01",
                varint(self.index),
            )
        )


CHUNK_FIELDS_SIZE_MAX = 4 * 2 + 3 * 5 + 2
"""Tags, the three numbers, and the length of the uuid, at their longest."""


def chunk_count(size: int, chunk_size: int) -> int:
    """How many chunks of ``chunk_size`` bytes hold ``size`` bytes; at least 1."""
    return max(1, -(-size // chunk_size))
