"""Entries as clients write them, built with protobuf alone: single messages and batches."""

from collections.abc import Sequence
from typing import Any

from geminga.wire.compression import compress
from geminga.wire.metadata import build_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb


def encode_single_metadata(payload_size: int, sequence_id: int | None = None, **fields: Any) -> bytes:
    """Encode ``SingleMessageMetadata``: fields at their default are left out, as by clients.

    ``fields`` have the names of `geminga.wire.batch.SingleMessage`.
    """
    pairs = (fields.pop("properties", None) or {}).items()
    if fields.pop("partition_key_b64", False):
        fields["partition_key_b64_encoded"] = True
    given = {name: value for name, value in fields.items() if value or value in ("", b"")}
    metadata = pb.SingleMessageMetadata(payload_size=payload_size, sequence_id=sequence_id, **given)
    for key, value in pairs:
        metadata.properties.add(key=key, value=value)
    return metadata.SerializeToString()


def framed(metadata: bytes, payload: bytes) -> bytes:
    """Return a message of a batch: its metadata behind their size, and its payload."""
    return len(metadata).to_bytes(4, "big") + metadata + payload


def in_batch(payload: bytes = b"", **fields: Any) -> bytes:
    """Return a message as it stands in a batch, with the fields of `encode_single_metadata`."""
    return framed(encode_single_metadata(len(payload), **fields), payload)


def single_entry(payload: bytes = b"", **fields: Any) -> bytes:
    """Return an entry; ``fields`` are of ``MessageMetadata``, where required ones have defaults."""
    values = {"producer_name": "p", "sequence_id": 0, "publish_time": 1, **fields}
    return build_entry(pb.MessageMetadata(**values).SerializeToString(), payload)


def batch_entry(messages: Sequence[bytes], compression: int = 0, **fields: Any) -> bytes:
    """Return an entry with a batch of messages that `in_batch` made."""
    body = b"".join(messages)
    if compression:
        fields = {"compression": compression, "uncompressed_size": len(body), **fields}
    return single_entry(compress(compression, body), **{"num_messages_in_batch": len(messages), **fields})
