"""Encoded ``SingleMessageMetadata``, as clients write them: fields at their default are left out."""

from typing import Any

from geminga.wire.proto import pulsar_wire_pb2 as pb


def encode_single_metadata(payload_size: int, sequence_id: int | None = None, **fields: Any) -> bytes:
    """``fields`` have the names of `geminga.wire.batch.SingleMessage`."""
    pairs = (fields.pop("properties", None) or {}).items()
    if fields.pop("partition_key_b64", False):
        fields["partition_key_b64_encoded"] = True
    given = {name: value for name, value in fields.items() if value or value in ("", b"")}
    metadata = pb.SingleMessageMetadata(payload_size=payload_size, sequence_id=sequence_id, **given)
    for key, value in pairs:
        metadata.properties.add(key=key, value=value)
    return metadata.SerializeToString()
