"""Step 6 of publishing, for messages larger than the broker's limit: splitting them into chunks.

Framing.md section 1.5: the whole payload is compressed first and the compressed bytes are split. All chunks
carry the message's metadata and sequence id, one uuid, their number and the total size; each is an entry with
its own receipt. The message's id is that of its last chunk, and includes that of the first one.
"""

from dataclasses import dataclass
from typing import NamedTuple

from geminga.errors import UnsupportedVersionError
from geminga.wire.varint import varint

CHUNKS_MAX = 1 << 20
"""Maximum chunks of a message; larger messages are rejected."""


UNKNOWN_DUPLICATE = "Cannot determine whether the message is a duplicate"
"""Part of a deduplicating broker's error for a sequence id received but not stored yet."""


def incomplete(topic: str) -> UnsupportedVersionError:
    """Return the error for a message of which the broker has not stored every chunk."""
    return UnsupportedVersionError(
        f"{topic}: the broker took chunks of one message for duplicates of each other; the message is "
        "incomplete there. Apache Pulsar before 3.0 does so on topics with deduplication: switch off "
        "deduplication or chunking_enabled, or update the broker"
    )


@dataclass(slots=True, eq=False, repr=False)
class ChunkedMessage:
    """State shared by the chunks of one message.

    Its uuid, its publish time, the position of the first chunk and of the last one with a receipt, and
    whether the broker has dropped chunks (``is_incomplete``) of a message that it did not have before
    (``is_new``).
    """

    chunks: int
    total_size: int
    publish_time: int = 0
    uuid: bytes = b""
    first_ledger_id: int = -1
    first_entry_id: int = -1
    receipted: tuple[int, int] = (-1, -1)
    is_new: bool = False
    is_incomplete: bool = False


class ChunkPart(NamedTuple):
    """One chunk: its number and its message."""

    message: ChunkedMessage
    number: int

    @property
    def last(self) -> bool:
        return self.number == self.message.chunks - 1

    def metadata(self) -> bytes:
        """Return the chunk fields of ``MessageMetadata`` (26 to 29)."""
        shared = self.message
        uuid = b"\xd2\x01" + varint(len(shared.uuid)) + shared.uuid
        chunks, total_size = b"\xd8\x01" + varint(shared.chunks), b"\xe0\x01" + varint(shared.total_size)
        return uuid + chunks + total_size + b"\xe8\x01" + varint(self.number)


CHUNK_FIELDS_SIZE_MAX = 4 * 2 + 3 * 5 + 2
"""Maximum bytes of tags, the three numbers, and the length of the uuid."""


def chunk_count(size: int, chunk_size: int) -> int:
    """Return the number of chunks of ``chunk_size`` bytes for ``size`` bytes; at least 1."""
    return max(1, -(-size // chunk_size))
