"""Encryption details of a message that is delivered encrypted, for decryption by the application."""

from geminga._util.choices import CompressionType
from geminga.wire.proto import pulsar_wire_pb2 as pb


class EncryptionKey:
    """One entry of ``encryption_keys``: the data key, encrypted with a public key."""

    __slots__ = ("key", "metadata", "value")

    def __init__(self, key: str, value: bytes, metadata: dict[str, str]) -> None:
        self.key = key
        """The public key's name."""
        self.value = value
        """The encrypted data key."""
        self.metadata = metadata

    def __repr__(self) -> str:
        return f"EncryptionKey(key={self.key}, value_len={len(self.value)}, metadata={self.metadata})"


class EncryptionContext:
    """Accessors for the encryption fields of an entry's metadata (framing.md section 1.5)."""

    __slots__ = ("_decryption_failed", "_metadata")

    def __init__(self, metadata: pb.MessageMetadata, decryption_failed: bool = True) -> None:
        self._metadata = metadata
        self._decryption_failed = decryption_failed

    def keys(self) -> list[EncryptionKey]:
        """Return the data key, encrypted for each of its public keys."""
        return [
            EncryptionKey(key.key, key.value, {pair.key: pair.value for pair in key.metadata})
            for key in self._metadata.encryption_keys
        ]

    def param(self) -> bytes:
        """Return the initialisation vector."""
        return bytes(self._metadata.encryption_param)

    def algorithm(self) -> str:
        """Return the name of the algorithm that encrypted the data key."""
        return str(self._metadata.encryption_algo)

    def compression_type(self) -> CompressionType:
        """Return the codec of the decrypted payload."""
        return CompressionType(self._metadata.compression)

    def uncompressed_message_size(self) -> int:
        """Return the uncompressed size in bytes; 0 when the payload is not compressed."""
        return int(self._metadata.uncompressed_size) if self._metadata.compression else 0

    def batch_size(self) -> int:
        """Return the number of messages in the batch, -1 for a single message."""
        metadata = self._metadata
        batched = metadata.HasField("num_messages_in_batch")
        return int(metadata.num_messages_in_batch) if batched else -1

    def is_decryption_failed(self) -> bool:
        """Return whether the payload is still encrypted."""
        return self._decryption_failed

    def __repr__(self) -> str:
        compression = pb.CompressionType.Name(self._metadata.compression)
        return (
            f"EncryptionContext(algorithm={self.algorithm()}, compression_type={compression}, "
            f"uncompressed_message_size={self.uncompressed_message_size()}, "
            f"is_decryption_failed={self.is_decryption_failed()}, keys={self.keys()})"
        )
