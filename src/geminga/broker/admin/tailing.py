"""Readable messages: stored entries decoded as far as a browser can show them."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from geminga.broker.admin.masking import MASK, NOT_SHOWN, masked_json
from geminga.broker.admin.payload_values import Budget, Decoder, Undecodable, decode_nothing, decoder_of
from geminga.errors import CorruptPayload
from geminga.schema_info import SchemaInfo
from geminga.wire.batch import SingleMessage, decode_batch
from geminga.wire.compression import decompress
from geminga.wire.metadata import metadata_size, parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.strict import text

Json = dict[str, Any]
SchemaOf = Callable[[int], SchemaInfo | None]
"""Returns the schema of a version (-1: of messages without one), None if unknown. Raises `Undecodable`."""
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
MASKED_BYTES_MAX: Final = 1024 * 1024
"""Larger entries of topics with masked fields are not shown: masking them takes too long."""
MASKED_ITEMS_MAX: Final = 50_000
"""Fields and items of Avro and Protobuf that are decoded of one entry, at a few µs each."""
METADATA_BYTES_MAX: Final = 256 * 1024
"""Largest keys and properties of an entry or a batch: parsing more takes too long."""
BATCH_SHOWN_MAX: Final = 1_000
_TEXT_SHOWN = 1_024
_PROPERTIES_SHOWN = 50


@dataclass(slots=True)
class MessageFilter:
    """Filter of messages: ``text`` in payload, key or properties; ``key`` and ``producer`` match exactly.

    The values of fields and properties named in ``masked`` are neither found nor shown; the name ``key`` also
    stands for the message's key. ``schema_of`` is needed to show values of Avro and Protobuf where fields are
    masked.
    """

    text: str = ""
    key: str = ""
    producer: str = ""
    masked: frozenset[str] = frozenset()
    schema_of: SchemaOf = lambda _: None
    decoders: dict[int, Decoder | None] = field(default_factory=dict)

    @staticmethod
    def of(query: Mapping[str, str], masked: frozenset[str], schema_of: SchemaOf) -> MessageFilter:
        """Return the filter of a request's query."""
        text, key, producer = (query.get(name, "") for name in ("text", "key", "producer"))
        return MessageFilter(text, key, producer, masked, schema_of)

    def takes(self, metadata: pb.MessageMetadata, message: SingleMessage | None, payload: bytes) -> bool:
        """Return whether a message matches; ``message`` is its part of a batch."""
        key = _key_of(metadata, message, self.masked)
        producer = text(metadata.producer_name)
        if self.producer and producer != self.producer:
            return False
        if self.key and key != self.key:
            return False
        if not self.text:
            return True
        properties = _properties_of(metadata, message, self.masked)
        texts = [key, producer, *(f"{name}={value}" for name, value in properties.items())]
        return any(self.text in each for each in texts) or self.text.encode() in payload

    def seen(self, payload: bytes, problem: str, version: int, budget: Budget) -> tuple[bytes, str]:
        """Return the payload, of a version of the schema, as it is shown, and why it is not shown, if so."""
        if not self.masked or not payload:
            return payload, problem
        found = None
        if not problem:
            found = masked_json(payload, self.masked, self._decoder(version), budget)
        return (b"", problem or NOT_SHOWN) if found is None else (found, "")

    def _decoder(self, version: int) -> Decoder | None:
        """Return the decoder of a version; None for JSON."""
        if version not in self.decoders:
            try:
                self.decoders[version] = decoder_of(self.schema_of(version))
            except Undecodable:
                self.decoders[version] = decode_nothing
        return self.decoders[version]


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
        "producer": text(metadata.producer_name)[:_TEXT_SHOWN],
        "publishTime": metadata.publish_time,
        "schemaVersion": _version(metadata.schema_version),
    }
    if metadata.deliver_at_time:
        common["deliverAt"] = metadata.deliver_at_time
    version, budget = common["schemaVersion"], Budget(MASKED_ITEMS_MAX)
    payload, problem = _opened(metadata, raw)
    if wanted.masked and not problem and len(payload) > MASKED_BYTES_MAX:
        problem = f"{len(payload)} bytes: too many to mask"
    if metadata.num_chunks_from_msg > 1:
        problem = f"part {metadata.chunk_id + 1} of {metadata.num_chunks_from_msg} of a larger message"
    is_batch = metadata.HasField("num_messages_in_batch")
    if problem or not is_batch:
        size = len(payload)
        payload, problem = wanted.seen(payload, problem, version, budget)
        if wanted.takes(metadata, None, payload):
            yield (
                common
                | _described(metadata, None, payload, size, metadata.null_value, shown_bytes, wanted.masked)
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
        payload, problem = wanted.seen(single.payload, "", version, budget)
        if wanted.takes(metadata, single, payload):
            described = _described(
                metadata, single, payload, len(single.payload), single.null_value, shown_bytes, wanted.masked
            )
            described |= {"problem": problem} if problem else {}
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
    size: int,
    null_value: bool,
    shown_bytes: int,
    masked: frozenset[str],
) -> Json:
    """``payload`` is the shown one: a masked one may have another length than the message's ``size``."""
    properties = _properties_of(metadata, message, masked)
    event_time = metadata.event_time if message is None else message.event_time
    sequence_id = metadata.sequence_id if message is None or message.sequence_id < 0 else message.sequence_id
    found: Json = {
        "key": _key_of(metadata, message, masked)[:_TEXT_SHOWN],
        "sequenceId": sequence_id,
        "size": size,
        "payload": base64.b64encode(payload[:shown_bytes]).decode(),
    }
    if null_value:
        found["null"] = True
    if masked:
        found["masked"] = True
    if len(payload) > shown_bytes:
        found["cut"] = True
    if event_time:
        found["eventTime"] = event_time
    if properties:
        shown = list(properties.items())[:_PROPERTIES_SHOWN]
        found["properties"] = {name[:_TEXT_SHOWN]: value[:_TEXT_SHOWN] for name, value in shown}
    return found


def _key_of(metadata: pb.MessageMetadata, message: SingleMessage | None, masked: frozenset[str]) -> str:
    if message is not None and message.partition_key is not None:
        key = text(message.partition_key)
    else:
        key = text(metadata.partition_key)
    return MASK if key and "key" in masked else key


def _properties_of(
    metadata: pb.MessageMetadata, message: SingleMessage | None, masked: frozenset[str]
) -> dict[str, str]:
    if message is not None and message.properties:
        found = {text(name): text(value) for name, value in message.properties.items()}
    else:
        found = {text(each.key): text(each.value) for each in metadata.properties}
    return {name: MASK if name in masked else value for name, value in found.items()}


def _version(raw: bytes) -> int:
    """Return the number of a schema's version; -1 without a schema."""
    return int.from_bytes(raw, "big") if len(raw) == 8 else -1


def first_messages(
    entries: Iterable[tuple[int, int, bytes, Callable[[int], bool] | None]], count: int, wanted: MessageFilter
) -> list[Json]:
    """The first messages of entries, each with its ids and which of its messages are open."""
    found: list[Json] = []
    for ledger_id, entry_id, entry, open_ones in entries:
        for message in messages_of(entry, ledger_id, entry_id, wanted, open_ones):
            found.append(message)
            if len(found) >= count:
                return found
    return found
