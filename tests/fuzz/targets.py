"""Decoders of foreign bytes, each as a function that must return or raise the errors named for it.

A target has seeds, valid inputs that are mutated. Some also compare two ways of decoding the same bytes.
"""

import io
import json
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.http import message_id_of
from geminga.broker.columns import IntegerColumn
from geminga.broker.delivery.cursor import Cursor
from geminga.broker.delivery.ranges import RangeSet
from geminga.broker.entry_counts import CountsCache, EntryCounts
from geminga.broker.records import RecordReader
from geminga.broker.rules import avro_rules
from geminga.broker.rules.authentication import Unauthenticated
from geminga.broker.rules.tokens import TokenMethod, make_token
from geminga.cli.units import parse_id
from geminga.consumer.unbatching import open_payload, split_batch
from geminga.errors import CorruptPayload, PulsarException
from geminga.ids import MessageId
from geminga.ledger import format as store_format
from geminga.ledger.api import StoredValue
from geminga.ledger.catalog import EntryChunk
from geminga.ledger.memory import MemoryStore
from geminga.offload.file import METADATA_KEY, FileSummary, LedgerFile, NotOffloaded
from geminga.policies import BacklogQuota, DispatchRate, Retention
from geminga.records import decode as decode_record
from geminga.schema import ProtobufNativeSchema
from geminga.schema.generic import schema_of
from geminga.schema_info import SchemaInfo, SchemaType
from geminga.wire.batch import decode_batch
from geminga.wire.broker_frames import BrokerFrameDecoder
from geminga.wire.client_frames import ClientFrameDecoder
from geminga.wire.columnar import ChunkCarry, decode_entries
from geminga.wire.compression import compress, decompress
from geminga.wire.frames import FrameDecoder
from geminga.wire.metadata import RawEntry, build_entry, parse_entry, peek_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.support.entries import encode_single_metadata

RECORDED = Path(__file__).parents[1] / "vectors/frames.jsonl"
Decode = Callable[[bytes], object]


@dataclass(frozen=True)
class Target:
    """A decoder, what it may raise, and the valid inputs that mutation starts from."""

    decode: Decode
    allowed: tuple[type[Exception], ...]
    seeds: Callable[[], Sequence[bytes]]


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
                found += [_content(one.command) + bytes(one.entry or b"") for one in singles]
    except PulsarException as error:
        return type(error).__name__
    return found


def _content(command: pb.BaseCommand) -> bytes:
    """Return a command without what acknowledges nothing: partition and batch index in an ACK."""
    for place in command.ack.message_id if command.type == pb.BaseCommand.ACK else ():
        place.ClearField("partition")
        place.ClearField("batch_index")
    return command.SerializeToString()


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
    """The head that the broker peeks is that of the whole metadata."""
    head = peek_entry(data)
    entry = parse_entry(data, verify=False)
    metadata = entry.metadata
    name = metadata.producer_name
    if isinstance(name, bytes):  # protobuf's answer for what is not UTF-8
        name = name.decode("utf-8", "replace")
    assert (head.producer_name, head.sequence_id) == (name, metadata.sequence_id)
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
    """The two splitters of a batch agree."""
    if not data:
        return
    count, body = data[0], data[1:]
    try:
        starts, _ = split_batch(body, count)
    except CorruptPayload:
        starts = None
    messages = decode_batch(body, count)
    assert starts is not None, "only one splitter refuses the batch"
    assert len(starts) == len(messages) + 1


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
    from geminga.spark.offsets import from_json

    from_json(data.decode("utf-8", "replace"))


def offloaded_files() -> list[bytes]:
    """Return the offloaded ledger of a kept store."""
    archive = sorted((Path(__file__).parents[1] / "kept_stores").glob("*.tar.xz"))[-1]
    with tarfile.open(archive) as kept:
        names = [name for name in kept.getnames() if name.endswith(".parquet")]
        return [kept.extractfile(name).read() for name in names]


def summaries() -> list[bytes]:
    """Return the summaries in the footers of offloaded ledgers."""
    return [pq.read_metadata(io.BytesIO(file)).metadata[METADATA_KEY] for file in offloaded_files()]


def read_offloaded(data: bytes) -> None:
    file = LedgerFile(io.BytesIO(data))
    for group in range(len(file.summary.groups)):
        file.entries(group)


TARGETS: dict[str, Target] = {
    "broker-frames": Target(decode_frames(BrokerFrameDecoder), (PulsarException,), partial(frames, "client")),
    "client-frames": Target(decode_frames(ClientFrameDecoder), (PulsarException,), partial(frames, "broker")),
    "entry": Target(decode_entry, (PulsarException,), entries),
    "entry-columns": Target(decode_columns, (PulsarException,), entries),
    "batch": Target(decode_one_batch, (PulsarException,), lambda: [b"\x05" + b"".join(batch_of(5)), b"\0"]),
    "lz4": Target(unpack(pb.LZ4), (PulsarException,), packed(pb.LZ4)),
    "zlib": Target(unpack(pb.ZLIB), (PulsarException,), packed(pb.ZLIB)),
    "zstd": Target(unpack(pb.ZSTD), (PulsarException,), packed(pb.ZSTD)),
    "snappy": Target(unpack(pb.SNAPPY), (PulsarException,), packed(pb.SNAPPY)),
    "avro-value": Target(_avro.decode, (PulsarException,), avro_values),
    "json-value": Target(
        _json.decode, (PulsarException,), lambda: [b'{"a":7,"b":"x","c":[1.5],"d":{"k":"v"}}']
    ),
    "definition": Target(decode_definition, (PulsarException,), definitions),
    "avro-rules": Target(compare_definitions, (avro_rules.NotAvro,), lambda: [AVRO]),
    "cursor": Target(decode_cursor, (PulsarException,), cursors),
    "ranges": Target(
        lambda data: RangeSet.decode(RecordReader(data, "fuzzed")), (PulsarException,), range_sets
    ),
    "columns": Target(
        lambda data: IntegerColumn.decode(RecordReader(data, "fuzzed")), (PulsarException,), columns
    ),
    "store": Target(decode_store, (PulsarException,), lambda: [store_format.encode_superblock(b"0" * 16)]),
    "message-id": Target(
        MessageId.deserialize, (PulsarException, ValueError), lambda: [MessageId(1, 2, 3, 4).serialize()]
    ),
    "message-id-text": Target(
        lambda data: parse_id(data.decode("utf-8", "replace")), (ValueError,), lambda: [b"1:2:3", b"7:1:-1:4"]
    ),
    "message-id-json": Target(
        lambda data: message_id_of(json.loads(data)),
        (AdminRefusal, ValueError, RecursionError),
        lambda: [b'{"ledgerId":1,"entryId":2,"partitionIndex":-1}'],
    ),
    "policies": Target(
        decode_policies,
        (PulsarException, ValueError, RecursionError),
        lambda: [b'{"retentionTimeInMinutes":1,"limitSize":-1}'],
    ),
    "token": Target(check_token, (Unauthenticated,), lambda: [make_token("r", SECRET, "HS256").encode()]),
    "spark-offsets": Target(
        parse_offsets, (PulsarException,), lambda: [b'{"persistent://public/default/t":{"0":"5:1041:3"}}']
    ),
    "offload-summary": Target(FileSummary.decode, (NotOffloaded,), summaries),
    "offloaded-file": Target(
        read_offloaded, (NotOffloaded, PulsarException, OSError, pa.ArrowException), offloaded_files
    ),
}
"""Every target by its name."""
