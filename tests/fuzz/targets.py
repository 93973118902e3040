"""Decoders of foreign bytes, each as a function that must return or raise the errors named for it.

A target has seeds, valid inputs that are mutated. Some also compare two ways of decoding the same bytes.
"""

import asyncio
import io
import json
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf.message import DecodeError

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.http import message_id_of, object_body
from geminga.broker.admin.schemas import pack_key_value, unpack_key_value
from geminga.broker.delivery.cursor import Cursor
from geminga.broker.delivery.ranges import RangeSet
from geminga.broker.entries.columns import IntegerColumn
from geminga.broker.entries.entry_counts import CountsCache, EntryCounts
from geminga.broker.entries.records import RecordReader
from geminga.broker.rules import avro_rules
from geminga.broker.rules.authentication import Unauthenticated
from geminga.broker.rules.policies import check_document
from geminga.broker.rules.tokens import TokenMethod, make_token
from geminga.broker.serving.proxy_header import ProxyHeaderError, read_header
from geminga.broker.settings import BrokerSettings
from geminga.cli import contexts
from geminga.cli.standalone import _read_file
from geminga.cli.units import parse_id
from geminga.client.admin.exchange import AdminSettings, Exchange, make_request, parse_admin_url, read_answer
from geminga.connection import http_lookup
from geminga.consumer.unbatching import open_payload
from geminga.errors import PulsarException
from geminga.functions import state
from geminga.ids import MessageId
from geminga.ledger.api import StoredValue
from geminga.ledger.backup.objects import ObjectFileSystem
from geminga.ledger.catalog.catalog import EntryChunk
from geminga.ledger.files import format as store_format
from geminga.ledger.memory import MemoryStore
from geminga.ledger.tier import claim_file
from geminga.mirror.cursor_state import parse_ranges
from geminga.mirror.positions import Position, parse_position
from geminga.mirror.replication_stamp import ReplicationStamp, stamps_in
from geminga.offload.file import METADATA_KEY, FileSummary, LedgerFile, NotOffloaded
from geminga.offload.manifest import ManifestUnreadable, load_head
from geminga.policies import BacklogQuota, DispatchRate, Retention
from geminga.records import decode as decode_record
from geminga.schema import ProtobufNativeSchema
from geminga.schema.generic import schema_of
from geminga.schema_info import SchemaInfo, SchemaType
from geminga.spark.offsets import from_json
from geminga.spark.pipelines import project
from geminga.spark.source.offset_log import _of_pulsar
from geminga.websocket import _arguments, _command, _message_id, _permits
from geminga.wire.batch import decode_batch, split_batch
from geminga.wire.broker_frames import BrokerFrameDecoder
from geminga.wire.client_frames import ClientFrameDecoder
from geminga.wire.columnar import ChunkCarry, decode_entries
from geminga.wire.compression import compress, decompress
from geminga.wire.encryption import PayloadDecryptor
from geminga.wire.frames import Frame, FrameDecoder
from geminga.wire.metadata import (
    RawEntry,
    build_entry,
    checksum_matches,
    parse_entry,
    peek_entry,
)  # fmt: skip
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.support.entries import encode_single_metadata

VECTORS = Path(__file__).parents[1] / "vectors"
RECORDED = VECTORS / "frames.jsonl"
Decode = Callable[[bytes], object]


@dataclass(frozen=True)
class Target:
    """A decoder, what it may raise, and the valid inputs that mutation starts from."""

    decode: Decode
    seeds: Callable[[], Sequence[bytes]]
    allowed: tuple[type[Exception], ...] = (PulsarException,)


@cache
def recorded() -> list[tuple[str, bytes]]:
    """Return the recorded frames: the direction of each, and its bytes."""
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    return [(line["direction"], bytes.fromhex(line["hex"])) for line in lines]


def frames(direction: str = "") -> list[bytes]:
    return [data for sent, data in recorded() if len(data) < 4096 and sent.startswith(direction)]


def entries() -> list[bytes]:
    """Return the entries of recorded messages that are not encrypted, and one of each kind of compression."""
    recorded_entries = {
        bytes(frame.entry) for data in frames() for frame in FrameDecoder().feed(data) if frame.entry
    }
    found = [
        entry for entry in sorted(recorded_entries)
        if not parse_entry(entry, verify=False).metadata.encryption_keys
    ]  # fmt: skip
    for kind in (pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY):
        body = b"".join(batch_of(5))
        metadata = pb.MessageMetadata(
            producer_name="p", sequence_id=1, publish_time=1, compression=kind, uncompressed_size=len(body),
            num_messages_in_batch=5,
        )  # fmt: skip
        found.append(build_entry(metadata.SerializeToString(), compress(kind, body)))
    return found


def batch_of(count: int) -> list[bytes]:
    parts = []
    for number in range(count):
        payload = b"payload %d" % number
        metadata = encode_single_metadata(len(payload), partition_key=f"k{number}", properties={"a": "b"})
        parts.append(len(metadata).to_bytes(4, "big") + metadata + payload)
    return parts


# --- wire ---
def _all_frames(decoder: FrameDecoder, data: bytes, piece: int) -> list[bytes] | str:
    found: list[bytes] = []
    try:
        # An error in what follows a frame is raised by the next call.
        for start in range(0, len(data) + piece, piece):
            for frame in decoder.feed(data[start : start + piece]):
                singles = frame.frames() if hasattr(frame, "frames") else [frame]
                found += [_content(one) + bytes(one.entry or b"") for one in singles]
    except PulsarException as error:
        return type(error).__name__
    return found


def _content(frame: Frame) -> bytes:
    """Return a frame's fields, or its command without what acknowledges nothing: partition and batch index in
    an ACK."""
    command = frame.command
    if command is None:
        values = (getattr(frame, each.name) for each in fields(frame) if each.name != "entry")  # type: ignore[arg-type]
        return repr([tuple(each) if isinstance(each, Sequence) else each for each in values]).encode()
    for place in command.ack.message_id if command.type == pb.BaseCommand.ACK else ():
        place.ClearField("partition")
        place.ClearField("batch_index")
    return bytes(command.SerializeToString())


def decode_frames(kind: type[FrameDecoder]) -> Decode:
    def decode(data: bytes) -> None:
        """Frames are the same in one piece, in many, and by the plain decoder."""
        whole = _all_frames(kind(), data, max(1, len(data)))
        for other in (_all_frames(kind(), data, 7), _all_frames(FrameDecoder(), data, max(1, len(data)))):
            if isinstance(whole, list) and isinstance(other, list):
                assert whole == other, "frames differ between two ways of decoding"
            else:
                assert type(whole) is type(other), "only one way of decoding fails"

    return decode


def decode_entry(data: bytes) -> None:
    entry = parse_entry(data, verify=False)
    metadata = entry.metadata
    peek_entry(data)
    checksum_matches(data)
    body = open_payload(metadata, entry.payload, 1 << 20)
    if metadata.HasField("num_messages_in_batch"):
        split_batch(body, metadata.num_messages_in_batch)
        decode_batch(body, metadata.num_messages_in_batch)


def decode_columns(data: bytes) -> None:
    table = decode_entries(
        [RawEntry("persistent://public/default/t", -1, 1, 2, data)],
        max_uncompressed_size=1 << 20,
        chunks=ChunkCarry(),
        verify=False,
    )
    table.validate(full=True)


def decode_one_batch(data: bytes) -> None:
    """The messages of a batch fill it."""
    if not data:
        return
    count, body = data[0], data[1:]
    starts, _ = split_batch(body, count)
    assert (len(starts), starts[0], starts[-1]) == (count + 1, 0, len(body))
    assert len(decode_batch(body, count)) == count


def unpack(kind: int) -> Decode:
    def decode(data: bytes) -> None:
        size = int.from_bytes(data[:3], "big")
        assert len(decompress(kind, data[3:], size, limit=1 << 20)) == size

    return decode


def packed(kind: int) -> Callable[[], list[bytes]]:
    bodies = (b"", b"a", b"abc" * 100, bytes(range(256)) * 8)
    return lambda: [len(body).to_bytes(3, "big") + compress(kind, body) for body in bodies]


# --- schemas ---
AVRO = (
    b'{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"b","type":["null","string"],'
    b'"default":null},{"name":"c","type":{"type":"array","items":"double"}},{"name":"d","type":{"type":"map",'
    b'"values":"bytes"}},{"name":"e","type":{"type":"enum","name":"E","symbols":["X","Y"]}}]}'
)
_avro = schema_of(SchemaInfo(type=int(SchemaType.AVRO), name="R", data=AVRO))
_json = schema_of(SchemaInfo(type=int(SchemaType.JSON), name="R", data=AVRO))


def avro_values() -> list[bytes]:
    value = {"a": 7, "b": "text", "c": [1.5, 2.5], "d": {"k": b"v"}, "e": "Y"}
    return [_avro.encode(value), _avro.encode(value | {"b": None, "c": [], "d": {}})]


def decode_definition(data: bytes) -> None:
    if not data:
        return
    kind = DEFINED[data[0] % len(DEFINED)]
    schema_of(SchemaInfo(type=int(kind), name="R", data=data[1:]))


DEFINED = (SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF_NATIVE)


def definitions() -> list[bytes]:
    message = ProtobufNativeSchema(pb.KeyValue).schema_info().data
    return [b"\0" + AVRO, b"\1" + AVRO, b"\2" + message]


def compare_definitions(data: bytes) -> None:
    parsed = avro_rules.parse(data)
    avro_rules.unreadable(reader=parsed, writer=avro_rules.parse(AVRO))


# --- the store's and the broker's records ---
NO_COUNTS = EntryCounts(MemoryStore(), "topic", CountsCache(), (), ())


def decode_cursor(data: bytes) -> None:
    Cursor.load(StoredValue(data, ()), "fuzzed cursor", NO_COUNTS)


def cursors() -> list[bytes]:
    cursor = Cursor(3, counts=NO_COUNTS, durable=True)
    plain = cursor.take_snapshot()
    for offset in (5, 6, 9, 70_000):
        cursor.holes.add(offset)
    cursor.batches[11] = 0b1011
    return [plain, cursor.take_snapshot()]


def range_sets() -> list[bytes]:
    ranges, out = RangeSet(), bytearray()
    for start, stop in ((5, 7), (9, 10), (70_000, 200_000)):
        ranges.add_range(start, stop)
    ranges.encode(out)
    return [b"\0", bytes(out)]


def columns() -> list[bytes]:
    out = []
    for numbers in ([], [1, 2, 3], [5, 1_000_000, 7], list(range(100))):
        data = bytearray()
        IntegerColumn(numbers).encode(data)
        out.append(bytes(data))
    return out


def decode_store(data: bytes) -> None:
    store_format.decode_superblock(data)
    store_format.decode_file_header(data)
    EntryChunk.unpack(1, 0, data)


# --- texts ---
def decode_policies(data: bytes) -> None:
    value = json.loads(data)
    for kind in (Retention, BacklogQuota, DispatchRate):
        decode_record(kind, value)


SECRET = b"0123456789abcdef0123456789abcdef"


def check_token(data: bytes) -> None:
    TokenMethod(SECRET, ("HS256",)).authenticate(data, 1)


def parse_offsets(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    _of_pulsar(text)
    from_json(text)


def kept_files(ending: str) -> list[bytes]:
    """Return the files of a kept store whose names have this ending."""
    archive = sorted((Path(__file__).parents[1] / "kept_stores").glob("*.tar.xz"))[-1]
    with tarfile.open(archive) as kept:
        names = [name for name in kept.getnames() if name.endswith(ending)]
        return [kept.extractfile(name).read() for name in names]


offloaded_files = partial(kept_files, ".parquet")


def summaries() -> list[bytes]:
    """Return the summaries in the footers of offloaded ledgers."""
    return [pq.read_metadata(io.BytesIO(file)).metadata[METADATA_KEY] for file in offloaded_files()]


def read_offloaded(data: bytes) -> None:
    file = LedgerFile(io.BytesIO(data))
    for group in range(len(file.summary.groups)):
        file.entries(group)


class Received:
    """Bytes of others: a request's body, what an event loop reads from a socket, any file of a storage."""

    method, path, location = "PUT", "/", "storage"

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    async def sock_recv(self, _socket: object, size: int) -> bytes:
        return self._data.read(size)

    async def read_body(self) -> bytes:
        return self._data.getvalue()

    def read(self, path: str = "") -> Any:
        return self._data.getvalue() if path else self.read_body()


@cache
def runner() -> asyncio.Runner:
    return asyncio.Runner()


def read_proxy_header(data: bytes) -> None:
    received: Any = Received(data)
    runner().run(read_header(received, received, 1.0))


def read_admin_body(data: bytes) -> None:
    request: Any = Received(data)
    check_document(runner().run(object_body(request)))


def read_storage(data: bytes) -> None:
    """Read the files beside offloaded ledgers and backups in a storage that others write to."""
    storage: Any = Received(data)
    with suppress(claim_file.ClaimUnreadable):
        claim_file.load(storage)
    with suppress(ManifestUnreadable):
        load_head(storage, "persistent://public/default/t")
    with suppress(PulsarException):
        ObjectFileSystem(storage).files("b")


def storage_files() -> list[bytes]:
    return [
        *kept_files("_claim.json"),
        *kept_files("manifest.json"),
        b'{"version":1,"files":{"log":["o",12,0]}}',
    ]


def read_websocket(data: bytes) -> None:
    command = _command(data.decode("utf-8", "replace"))
    for part in (_permits, _message_id, _arguments):
        with suppress(ValueError):
            part(command)


class _Line(io.BytesIO):
    """A connection that brings an answer and ends."""

    recv_into = io.BytesIO.readinto

    def settimeout(self, seconds: float) -> None:
        """Do nothing."""


def read_http(data: bytes) -> None:
    call = (
        AdminSettings(admin_url="http://h:8080"),
        parse_admin_url("http://h:8080"),
        make_request("GET", "x"),
    )
    line: Any = _Line(data)
    answer = read_answer(line, Exchange(*call, time.monotonic()))
    content = http_lookup.content_of(answer.status, answer.body, "lookup")
    http_lookup.ack_holes_of(content, "s")
    for part in (partial(http_lookup.place_of, tls=False), http_lookup.partitions_of, http_lookup.topics_of):
        with suppress(PulsarException):
            part(content, "persistent://public/default/t")


@cache
def folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def file_of(name: str, data: bytes) -> Path:
    """Write the file of a decoder that opens one."""
    path = Path(folder().name, name)
    path.touch(0o600)
    path.write_bytes(data)
    return path


def read_configuration(data: bytes) -> None:
    found = _read_file(file_of("broker.toml", data))
    fields = BrokerSettings.__dataclass_fields__
    BrokerSettings(**{"memory": True} | {name: value for name, value in found.items() if name in fields})


def read_contexts(data: bytes) -> None:
    path = file_of("contexts.json", data)
    with patch.object(contexts, "contexts_file", lambda: path):
        contexts.read_contexts()


def read_project(data: bytes) -> None:
    place = file_of(project.SPEC_FILE, data).parent
    project.configuration(place)
    project.places(place)


def parse_positions(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    with suppress(DecodeError):
        stamps_in(pb.MessageMetadata.FromString(data))
    parse_ranges(text)
    with suppress(PulsarException):
        parse_position(text)


class Replayed(state.State):
    def replay(self, message: object) -> None:
        self._replay(message)


def replay_state(data: bytes) -> None:
    key, _, payload = data.partition(b"\n")
    message = SimpleNamespace(
        partition_key=lambda: key.decode("utf-8", "replace"), has_null_value=lambda: not payload,
        data=lambda: payload, producer_name=lambda: "p",
    )  # fmt: skip
    with patch.object(state, "payload_bytes_max", lambda _: 1 << 20):
        Replayed(None, None, 0).replay(message)


@cache
def decryptor() -> PayloadDecryptor:
    return PayloadDecryptor(lambda name, metadata: (VECTORS / f"keys/{name}_private.pem").read_bytes())


def decrypt(data: bytes) -> None:
    entry = parse_entry(data, verify=False)
    decryptor()(entry.metadata, entry.payload)


def encrypted() -> list[bytes]:
    found = map(json.loads, (VECTORS / "encryption.jsonl").read_text().splitlines())
    return [build_entry(*map(bytes.fromhex, (each["metadata"], each["payload"]))) for each in found]


def pack_and_unpack(data: bytes) -> None:
    unpack_key_value(data)
    with suppress(AdminRefusal):
        pack_key_value(data.decode("utf-8", "replace"))


def of(*seeds: bytes) -> Callable[[], Sequence[bytes]]:
    return lambda: seeds


OK, PROXY = b"HTTP/1.1 200 OK\r\n\r\n", b"\r\n\r\n\0\r\nQUIT\n\x21"
TARGETS: dict[str, Target] = {
    "broker-frames": Target(decode_frames(BrokerFrameDecoder), partial(frames, "client")),
    "client-frames": Target(decode_frames(ClientFrameDecoder), partial(frames, "broker")),
    "entry": Target(decode_entry, entries),
    "entry-columns": Target(decode_columns, entries),
    "encrypted": Target(decrypt, encrypted),
    "batch": Target(decode_one_batch, lambda: [b"\x05" + b"".join(batch_of(5)), b"\0"]),
    "lz4": Target(unpack(pb.LZ4), packed(pb.LZ4)),
    "zlib": Target(unpack(pb.ZLIB), packed(pb.ZLIB)),
    "zstd": Target(unpack(pb.ZSTD), packed(pb.ZSTD)),
    "snappy": Target(unpack(pb.SNAPPY), packed(pb.SNAPPY)),
    "avro-value": Target(_avro.decode, avro_values),
    "json-value": Target(_json.decode, of(b'{"a":7,"b":"x","c":[1.5],"d":{"k":"v"}}')),
    "definition": Target(decode_definition, definitions),
    "avro-rules": Target(compare_definitions, of(AVRO), (avro_rules.NotAvro,)),
    "key-value": Target(pack_and_unpack, of(b'{"key":{"a":1},"value":"x"}', b"\0\0\0\2{}\0\0\0\1x")),
    "cursor": Target(decode_cursor, cursors),
    "ranges": Target(lambda data: RangeSet.decode(RecordReader(data, "fuzzed")), range_sets),
    "columns": Target(lambda data: IntegerColumn.decode(RecordReader(data, "fuzzed")), columns),
    "store": Target(decode_store, of(store_format.encode_superblock(b"0" * 16))),
    "message-id": Target(
        MessageId.deserialize, of(MessageId(1, 2, 3, 4).serialize()), (PulsarException, ValueError)
    ),
    "message-id-text": Target(
        lambda data: parse_id(data.decode("utf-8", "replace")), of(b"1:2:3", b"7:1:-1:4"), (ValueError,)
    ),
    "message-id-json": Target(
        lambda data: message_id_of(json.loads(data)), of(b'{"ledgerId":1,"entryId":2,"partitionIndex":-1}'),
        (AdminRefusal, ValueError, RecursionError),
    ),
    "policies": Target(
        decode_policies, of(b'{"retentionTimeInMinutes":1,"limitSize":-1}'),
        (PulsarException, ValueError, RecursionError),
    ),
    "admin-body": Target(read_admin_body, of(
        b'{"retention_policies":{"retentionTimeInMinutes":1,"retentionSizeInMB":-1},"replication_clusters":["c"],'
        b'"backlog_quota_map":{"destination_storage":{"limitSize":1,"limitTime":2,"policy":"producer_exception"}},'
        b'"auth_policies":{"namespace_auth":{"r":["produce"]}},"redeliver_unacked_policies":{"afterSeconds":1.5},'
        b'"clusterDispatchRate":{"c":{"dispatchThrottlingRateInMsg":1}},"entryFilters":{"entryFilterNames":""}}',
        b'{"message_ttl_in_seconds":3,"deduplicationEnabled":true,"properties":{"a":"b"}}',
    )),
    "token": Target(check_token, lambda: [make_token("r", SECRET, "HS256").encode()], (Unauthenticated,)),
    "proxy-header": Target(
        read_proxy_header, of(PROXY + b"\x11\0\x0c" + bytes(12), PROXY + b"\x21\0\x24" + bytes(36)),
        (ProxyHeaderError,),
    ),
    "websocket": Target(read_websocket, of(
        b'{"payload":"YQ==","key":"k","properties":{"a":"b"},"eventTime":"2026-01-01","deliverAt":1,'
        b'"deliverAfterMs":2,"replicationClusters":[]}', b'{"messageId":"CAEQAiADMAQ=","permitMessages":3}',
    ), (ValueError,)),
    "http-answer": Target(read_http, of(
        OK + b'{"brokerUrl":"pulsar://h:6650"}', OK + b'{"partitions":3}', OK + b'["t"]',
        OK.replace(b"\r\n\r\n", b"\r\nContent-Length: 2\r\n\r\n{}"),
    )),
    "configuration": Target(
        read_configuration, of(b'port = 6650\nhost = "h"\nauthorization = true\nadvertised_listeners = []\n')
    ),
    "contexts": Target(read_contexts, of(b'{"current":"a","contexts":{"a":{"url":"pulsar://h"}}}')),
    "pipeline": Target(read_project, of(b"name: p\nstorage: file:///s\nconfiguration: {a: 1}\nx:\n  - y\n")),
    "mirror": Target(
        parse_positions,
        of(b"1:2", b"[(3:0..3:5],[3:7..3:8)]", ReplicationStamp(bytes(8), Position(5, 6)).field()),
    ),
    "function-state": Target(replay_state, of(b"value/a\nx", b"counter/a/1\n-12", b"counter/a/2\n")),
    "spark-offsets": Target(parse_offsets, of(b'{"persistent://public/default/t":{"0":"5:1041:3"}}')),
    "storage": Target(read_storage, storage_files),
    "offload-summary": Target(FileSummary.decode, summaries, (NotOffloaded,)),
    "offloaded-file": Target(
        read_offloaded, offloaded_files, (NotOffloaded, PulsarException, OSError, pa.ArrowException)
    ),
}  # fmt: skip
"""Every target by its name."""
