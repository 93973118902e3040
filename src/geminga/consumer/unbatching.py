"""Decompression of payloads, and the error of unreadable entries.

The order is that of framing.md section 1.5: decrypt, assemble chunks, decompress, split
(`geminga.wire.batch`). Unreadable entries raise `InvalidEntry`, whose ``validation_error`` is sent to the
broker when the entry is acknowledged without delivery (section 7).
"""

from geminga.errors import CorruptPayload
from geminga.wire.compression import decompress
from geminga.wire.proto import pulsar_wire_pb2 as pb

Buffer = bytes | bytearray | memoryview

UNCOMPRESSED_SIZE_CORRUPTION = pb.CommandAck.UncompressedSizeCorruption
DECOMPRESSION_ERROR = pb.CommandAck.DecompressionError
CHECKSUM_MISMATCH = pb.CommandAck.ChecksumMismatch
BATCH_DESERIALIZE_ERROR = pb.CommandAck.BatchDeSerializeError
DECRYPTION_ERROR = pb.CommandAck.DecryptionError


class InvalidEntry(CorruptPayload):
    """An entry that no consumer can read."""

    def __init__(self, validation_error: int, reason: str) -> None:
        super().__init__(reason)
        self.validation_error = validation_error

    def __reduce__(self) -> tuple[object, tuple[int, str]]:
        return (InvalidEntry, (self.validation_error, str(self)))


def open_payload(metadata: pb.MessageMetadata, payload: Buffer, bytes_max: int) -> bytes:
    """Return the decompressed payload (of an entry, or of all chunks together).

    Raises `InvalidEntry` when it does not decompress to the announced size or that exceeds ``bytes_max``.
    """
    kind = metadata.compression
    if not kind:
        return payload if type(payload) is bytes else bytes(payload)
    size = metadata.uncompressed_size
    if size > bytes_max:
        raise InvalidEntry(
            UNCOMPRESSED_SIZE_CORRUPTION, f"{size} bytes announced, message_bytes_max is {bytes_max}"
        )
    try:
        return decompress(kind, payload, size, limit=bytes_max)
    except CorruptPayload as error:
        raise InvalidEntry(DECOMPRESSION_ERROR, str(error)) from error
