"""A batch's messages by protobuf alone, slowly: what `geminga.broker.entries.batch_rewrite` is held to."""

from typing import NamedTuple

from geminga.errors import CorruptPayload
from geminga.wire.compression import decompress
from geminga.wire.metadata import parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.strict import parse

Keyed = tuple[bytes | None, bool]
"""A message's key, None without one, and whether it has a value."""


class ModelBatch(NamedTuple):
    body: bytes
    starts: list[int]
    """Offset of each message, and the end of the last."""
    messages: list[Keyed | None]
    """None for a message that was compacted out before."""


def open_batch(entry: bytes) -> ModelBatch | None:
    """None when it cannot be looked into."""
    try:
        parsed = parse_entry(entry, verify=False)
        metadata = parsed.metadata
        if metadata.encryption_keys:
            return None
        body = bytes(parsed.payload)
        if metadata.compression:
            body = decompress(metadata.compression, body, metadata.uncompressed_size, limit=1 << 25)
        return _split(body, metadata.num_messages_in_batch)
    except CorruptPayload:
        return None


def _split(body: bytes, count: int) -> ModelBatch:
    if not 0 < count <= len(body) // 4:
        raise CorruptPayload("a count that cannot be")
    starts, messages, position = [0], list[Keyed | None](), 0
    for _ in range(count):
        end = position + 4 + int.from_bytes(body[position : position + 4], "big")
        if not position + 4 < end <= len(body):
            raise CorruptPayload("metadata end behind the batch")
        single = parse(pb.SingleMessageMetadata, body[position + 4 : end], "a message", CorruptPayload)
        if single.payload_size < 0:
            raise CorruptPayload("a size below 0")
        key: str | bytes | None = single.partition_key if single.HasField("partition_key") else None
        if isinstance(key, str):
            key = key.encode("utf-8", "surrogatepass")
        messages.append(None if single.compacted_out else (key, single.payload_size > 0))
        position = end + single.payload_size
        starts.append(position)
    if position != len(body):
        raise CorruptPayload("messages end elsewhere than the batch")
    return ModelBatch(body, starts, messages)
