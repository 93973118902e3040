"""A stored entry as an HTTP answer: the payload as body, the metadata as ``X-Pulsar-`` headers."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote

from aiohttp import web

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.tailing import METADATA_BYTES_MAX, text_of
from geminga.diagnosis.commands import iso_time
from geminga.errors import CorruptPayload
from geminga.wire.compression import decompress
from geminga.wire.metadata import metadata_size, parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

_HEADER_BYTES_MAX = 64_000
"""Longest value of a header; Python's HTTP client reads lines of 65,536 bytes at most."""
_UNCOMPRESSED_BYTES_MAX = 128 * 1024 * 1024


async def entry_answer(ledger_id: int, entry_id: int, entry: bytes) -> web.Response:
    """Return the answer to peek, examine and get-message-by-id. A batch is sent whole, decompressed.

    500 when the stored bytes do not parse, 413 when they would decompress to more than 128 MiB, or have more
    metadata than headers can hold. A large entry is opened on another thread.
    """
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, _answer, ledger_id, entry_id, entry)


def _answer(ledger_id: int, entry_id: int, entry: bytes) -> web.Response:
    try:
        if (size := metadata_size(entry)) > METADATA_BYTES_MAX:
            raise AdminRefusal(413, f"entry {ledger_id}:{entry_id} has {size} bytes of metadata")
        parsed = parse_entry(entry)
        metadata = parsed.metadata
        payload = bytes(parsed.payload)
        encrypted = len(metadata.encryption_keys) > 0
        if metadata.compression and not encrypted:
            size = metadata.uncompressed_size
            if size > _UNCOMPRESSED_BYTES_MAX:
                raise AdminRefusal(
                    413, f"entry {ledger_id}:{entry_id} is {size} bytes long when decompressed"
                )
            payload = decompress(metadata.compression, payload, size, limit=_UNCOMPRESSED_BYTES_MAX)
    except CorruptPayload as error:
        raise AdminRefusal(500, f"entry {ledger_id}:{entry_id} is damaged: {error}") from None
    headers = {
        "X-Pulsar-Message-ID": f"{ledger_id}:{entry_id}",
        "X-Pulsar-producer-name": _ascii(metadata.producer_name),
        "X-Pulsar-sequence-id": str(metadata.sequence_id),
        "X-Pulsar-publish-time": iso_time(metadata.publish_time),
        "X-Pulsar-partition-key-b64-encoded": str(metadata.partition_key_b64_encoded).lower(),
        "X-Pulsar-Is-Encrypted": str(encrypted).lower(),
        "X-Pulsar-uncompressed-size": str(metadata.uncompressed_size),
        "X-Pulsar-txn-uncommitted": "false",
        "X-Pulsar-txn-aborted": "false",
    }
    if metadata.HasField("compression"):
        headers["X-Pulsar-compression"] = pb.CompressionType.Name(metadata.compression)
    if metadata.event_time:
        headers["X-Pulsar-event-time"] = iso_time(metadata.event_time)
    if metadata.HasField("partition_key"):
        headers["X-Pulsar-partition-key"] = _ascii(metadata.partition_key)
    if metadata.HasField("num_messages_in_batch"):
        headers["X-Pulsar-num-batch-message"] = str(metadata.num_messages_in_batch)
        headers["X-Pulsar-batch-size"] = str(len(payload))
    if metadata.properties:
        # JSON escapes keep header values ASCII.
        headers["X-Pulsar-PROPERTY"] = json.dumps(
            {text_of(each.key): text_of(each.value) for each in metadata.properties}
        )
    if (longest := max(map(len, headers.values()))) > _HEADER_BYTES_MAX:
        raise AdminRefusal(
            413, f"entry {ledger_id}:{entry_id} has keys or properties of {longest} bytes, too many for HTTP"
        )
    return web.Response(body=payload, headers=headers, content_type="application/octet-stream")


def _ascii(text: str) -> str:
    """Return a header value as one printable ASCII line; other characters are percent-encoded."""
    return text if text.isascii() and text.isprintable() else quote(text)
