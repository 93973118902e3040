"""Readable messages: stored entries decoded as far as a browser can show them."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from geminga.errors import CorruptPayload
from geminga.wire.batch import SingleMessage, decode_batch
from geminga.wire.compression import decompress
from geminga.wire.metadata import metadata_size, parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

Json = dict[str, Any]
MESSAGES_MAX: Final = 200
"""Messages of one answer."""
ANSWER_BYTES_MAX: Final = 1024 * 1024
"""Largest total of payloads in one answer; the next answer continues."""
ANSWER_SECONDS_MAX: Final = 0.01
"""Longest time of an answer, which ends after the entry that exceeds it."""
PAYLOAD_SHOWN_BYTES: Final = 16 * 1024
"""Longest payload that is shown whole; of longer ones the beginning is shown."""
OPENED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Larger entries are not decompressed."""
METADATA_BYTES_MAX: Final = 256 * 1024
"""Largest keys and properties of an entry or a batch: parsing more takes too long."""
BATCH_SHOWN_MAX: Final = 1_000
_TEXT_SHOWN = 1_024
_PROPERTIES_SHOWN = 50


@dataclass(slots=True)
class MessageFilter:
    """Filter of messages: ``text`` in payload, key or properties; ``key`` and ``producer`` match exactly."""

    text: str = ""
    key: str = ""
    producer: str = ""

    def takes(self, metadata: pb.MessageMetadata, message: SingleMessage | None, payload: bytes) -> bool:
        """Return whether a message matches; ``message`` is its part of a batch."""
        key = _key_of(metadata, message)
        producer = text_of(metadata.producer_name)
        if self.producer and producer != self.producer:
            return False
        if self.key and key != self.key:
            return False
        if not self.text:
            return True
        properties = _properties_of(metadata, message)
        texts = [key, producer, *(f"{name}={value}" for name, value in properties.items())]
        return any(self.text in each for each in texts) or self.text.encode() in payload


def messages_of(
    entry: bytes,
    ledger_id: int,
    entry_id: int,
    wanted: MessageFilter,
    open_ones: Callable[[int], bool] | None = None,
    shown_bytes: int = PAYLOAD_SHOWN_BYTES,
) -> Iterator[Json]:
    """Yield the matching messages of an entry, as JSON; ``open_ones(index)``: whether open in a batch.

    Of longer payloads the first ``shown_bytes`` are included.

    An entry that cannot be decoded (encrypted, damaged, a chunk) is described once.
    """
    common: Json = {"id": f"{ledger_id}:{entry_id}", "entryBytes": len(entry)}
    try:
        size = metadata_size(entry)
        if size > METADATA_BYTES_MAX:
            yield common | {"problem": f"it has {size} bytes of metadata: too many to look at"}
            return
        parsed = parse_entry(entry)
    except CorruptPayload as error:
        yield common | {"problem": f"the entry cannot be read: {error}"}
        return
    yield from _messages(parsed.metadata, bytes(parsed.payload), common, wanted, open_ones, shown_bytes)


def payload_messages(
    headers: Mapping[str, str], payload: bytes, wanted: MessageFilter, shown_bytes: int = PAYLOAD_SHOWN_BYTES
) -> Iterator[Json]:
    """Yield the messages of an entry as admin REST returns it: decompressed, with ``X-Pulsar-`` headers."""
    metadata = pb.MessageMetadata(
        producer_name=headers.get("X-Pulsar-producer-name", ""),
        sequence_id=max(0, _number(headers.get("X-Pulsar-sequence-id", ""))),
        publish_time=_time_ms(headers.get("X-Pulsar-publish-time", "")),
        event_time=_time_ms(headers.get("X-Pulsar-event-time", "")),
    )
    if "X-Pulsar-partition-key" in headers:
        metadata.partition_key = headers["X-Pulsar-partition-key"]
    messages = _number(headers.get("X-Pulsar-num-batch-message", ""))
    if messages > 0:
        metadata.num_messages_in_batch = messages
    if headers.get("X-Pulsar-Is-Encrypted", "").lower() == "true":
        metadata.encryption_keys.add(key="", value=b"")
    with contextlib.suppress(ValueError, AttributeError):
        for name, value in json.loads(headers.get("X-Pulsar-PROPERTY", "{}")).items():
            metadata.properties.add(key=str(name), value=str(value))
    common: Json = {"id": headers.get("X-Pulsar-Message-ID", ""), "entryBytes": len(payload)}
    yield from _messages(metadata, payload, common, wanted, None, shown_bytes)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _time_ms(text: str) -> int:
    try:
        return max(0, int(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError):
        return 0


def _messages(
    metadata: pb.MessageMetadata,
    raw: bytes,
    common: Json,
    wanted: MessageFilter,
    open_ones: Callable[[int], bool] | None,
    shown_bytes: int = PAYLOAD_SHOWN_BYTES,
) -> Iterator[Json]:
    common |= {
        "producer": text_of(metadata.producer_name)[:_TEXT_SHOWN],
        "publishTime": metadata.publish_time,
        "schemaVersion": _version(metadata.schema_version),
    }
    if metadata.deliver_at_time:
        common["deliverAt"] = metadata.deliver_at_time
    payload, problem = _opened(metadata, raw)
    if metadata.num_chunks_from_msg > 1:
        problem = f"part {metadata.chunk_id + 1} of {metadata.num_chunks_from_msg} of a larger message"
    is_batch = metadata.HasField("num_messages_in_batch")
    if problem or not is_batch:
        if wanted.takes(metadata, None, payload):
            yield (
                common
                | _described(metadata, None, payload, metadata.null_value, shown_bytes)
                | ({"problem": problem} if problem else {})
            )
        return
    count = metadata.num_messages_in_batch
    common["batchSize"] = count
    try:
        singles = []
        if count <= BATCH_SHOWN_MAX:
            singles = decode_batch(payload, count, metadata_bytes_max=METADATA_BYTES_MAX)
    except CorruptPayload as error:
        yield common | {"problem": f"the batch cannot be read: {error}"}
        return
    if count > BATCH_SHOWN_MAX:
        yield common | {"problem": f"a batch of {count} messages: too many to show"}
    for index, single in enumerate(singles):
        if single.compacted_out or (open_ones is not None and not open_ones(index)):
            continue
        if wanted.takes(metadata, single, single.payload):
            described = _described(metadata, single, single.payload, single.null_value, shown_bytes)
            yield common | described | {"batchIndex": index}


def _opened(metadata: pb.MessageMetadata, payload: bytes) -> tuple[bytes, str]:
    """Return the decompressed payload, and the reason if it cannot be read."""
    if metadata.encryption_keys:
        return payload, "encrypted"
    if not metadata.compression:
        return payload, ""
    if metadata.uncompressed_size > OPENED_BYTES_MAX:
        return payload, f"{metadata.uncompressed_size} bytes when decompressed: too many to look at"
    try:
        size = metadata.uncompressed_size
        return decompress(metadata.compression, payload, size, limit=OPENED_BYTES_MAX), ""
    except CorruptPayload as error:
        return payload, f"it cannot be decompressed: {error}"


def _described(
    metadata: pb.MessageMetadata,
    message: SingleMessage | None,
    payload: bytes,
    null_value: bool,
    shown_bytes: int,
) -> Json:
    properties = _properties_of(metadata, message)
    event_time = metadata.event_time if message is None else message.event_time
    sequence_id = metadata.sequence_id if message is None or message.sequence_id < 0 else message.sequence_id
    found: Json = {
        "key": _key_of(metadata, message)[:_TEXT_SHOWN],
        "sequenceId": sequence_id,
        "size": len(payload),
        "payload": base64.b64encode(payload[:shown_bytes]).decode(),
    }
    if null_value:
        found["null"] = True
    if event_time:
        found["eventTime"] = event_time
    if properties:
        shown = list(properties.items())[:_PROPERTIES_SHOWN]
        found["properties"] = {name[:_TEXT_SHOWN]: value[:_TEXT_SHOWN] for name, value in shown}
    return found


def _key_of(metadata: pb.MessageMetadata, message: SingleMessage | None) -> str:
    if message is not None and message.partition_key is not None:
        return text_of(message.partition_key)
    return text_of(metadata.partition_key)


def _properties_of(metadata: pb.MessageMetadata, message: SingleMessage | None) -> dict[str, str]:
    if message is not None and message.properties:
        return {text_of(name): text_of(value) for name, value in message.properties.items()}
    return {text_of(each.key): text_of(each.value) for each in metadata.properties}


def text_of(value: str | bytes) -> str:
    """Return a text of an entry; protobuf returns bytes for invalid UTF-8, which U+FFFD replaces."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _version(raw: bytes) -> int:
    """Return the number of a schema's version; -1 without a schema."""
    return int.from_bytes(raw, "big") if len(raw) == 8 else -1


def first_messages(
    entries: Iterable[tuple[int, int, bytes, Callable[[int], bool] | None]], count: int
) -> list[Json]:
    """The first messages of entries, each with its ids and which of its messages are open."""
    found: list[Json] = []
    for ledger_id, entry_id, entry, open_ones in entries:
        for message in messages_of(entry, ledger_id, entry_id, MessageFilter(), open_ones):
            found.append(message)
            if len(found) >= count:
                return found
    return found
