"""A stored entry as an HTTP answer: the payload as body, the metadata as ``X-Pulsar-`` headers."""

import asyncio
import json
from urllib.parse import quote

from aiohttp import web

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.tailing import METADATA_BYTES_MAX
from geminga.diagnosis.commands import iso_time
from geminga.errors import CorruptPayload
from geminga.wire.compression import decompress
from geminga.wire.metadata import metadata_size, parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.strict import text

_HEADER_BYTES_MAX = 64_000
"""Longest value of a header; Python's HTTP client reads lines of 65,536 bytes at most."""
_UNCOMPRESSED_BYTES_MAX = 128 * 1024 * 1024
_PIECE_BYTES = 64 * 1024
"""Larger entries are sent in pieces, as far as the peer reads."""
SEND_SECONDS_MAX = 300.0
"""Time after which a peer that still reads a large entry is disconnected: others may wait for its share."""


class EntryAnswers:
    """Sender of entries; large ones in flight have at most `_UNCOMPRESSED_BYTES_MAX` together."""

    def __init__(self) -> None:
        self._bytes = 0

    async def send(
        self, request: web.Request, ledger_id: int, entry_id: int, entry: bytes
    ) -> web.StreamResponse:
        """Return `entry_answer`; a large entry is sent here, in pieces. 503 while too large ones are sent."""
        size = min(_opened_bytes(entry), _UNCOMPRESSED_BYTES_MAX)
        if size <= _PIECE_BYTES:
            return await entry_answer(ledger_id, entry_id, entry)
        if self._bytes and self._bytes + size > _UNCOMPRESSED_BYTES_MAX:
            raise AdminRefusal(
                503, f"entries of {self._bytes} bytes are being sent, this one has {size}: try again later"
            )
        self._bytes += size
        try:
            return await _in_pieces(request, await entry_answer(ledger_id, entry_id, entry))
        finally:
            self._bytes -= size


ENTRY_ANSWERS: web.AppKey[EntryAnswers] = web.AppKey("entry_answers", EntryAnswers)


def _opened_bytes(entry: bytes) -> int:
    """Return the size of an entry, or the size that it announces when decompressed."""
    try:
        if metadata_size(entry) > METADATA_BYTES_MAX:
            return len(entry)
        return max(len(entry), parse_entry(entry, verify=False).metadata.uncompressed_size)
    except CorruptPayload:
        return len(entry)


async def _in_pieces(request: web.Request, answer: web.Response) -> web.StreamResponse:
    body, response = memoryview(answer.body), web.StreamResponse(headers=answer.headers)  # type: ignore[arg-type]
    response.content_length = len(body)
    try:
        async with asyncio.timeout(SEND_SECONDS_MAX):
            await response.prepare(request)
            for start in range(0, len(body) if request.method == "GET" else 0, _PIECE_BYTES):
                await response.write(body[start : start + _PIECE_BYTES])
            await response.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    except ConnectionError:
        pass  # a peer that leaves, or is disconnected, is no error
    return response


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
            {text(each.key): text(each.value) for each in metadata.properties}
        )
    if (longest := max(map(len, headers.values()))) > _HEADER_BYTES_MAX:
        raise AdminRefusal(
            413, f"entry {ledger_id}:{entry_id} has keys or properties of {longest} bytes, too many for HTTP"
        )
    return web.Response(body=payload, headers=headers, content_type="application/octet-stream")


def _ascii(text: str) -> str:
    """Return a header value as one printable ASCII line; other characters are percent-encoded."""
    return text if text.isascii() and text.isprintable() else quote(text)
