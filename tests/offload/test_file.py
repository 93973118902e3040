"""Columns of a file equal those decoded from its entries, or are refused."""

import gc
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from entries import batch_entry, encode_single_metadata, framed, single_entry
from pyarrow import parquet

from geminga.offload import entry_envelope
from geminga.offload import file as module
from geminga.offload.entry_envelope import COLUMNS
from geminga.offload.file import FileSummary, LedgerFile, LedgerWriter
from geminga.wire.checksum import crc32c
from geminga.wire.columnar import decode_entries
from geminga.wire.compression import ZSTD, compress
from geminga.wire.metadata import RawEntry
from geminga.wire.proto import pulsar_wire_pb2 as pb

TOPIC = "persistent://public/default/t-partition-3"


def single(number: int, key: str | None = None, *, is_base64: bool | None = None) -> bytes:
    return single_entry(
        b"value %d" % number, producer_name="standalone-0-0", sequence_id=number, publish_time=number,
        partition_key=key, partition_key_b64_encoded=is_base64,
    )  # fmt: skip


def batch(number: int, keys: Sequence[str | None], *, is_base64: bool = False, extra: bytes = b"") -> bytes:
    heads = [encode_single_metadata(5, partition_key=key, partition_key_b64=is_base64) for key in keys]
    return batch_entry(
        [framed(head + extra, b"value") for head in heads],
        producer_name="standalone-0-0", sequence_id=number, publish_time=number,
    )  # fmt: skip


def written(entries: Sequence[bytes]) -> bytes:
    sink = io.BytesIO()
    writer = LedgerWriter(sink, topic=TOPIC, partition=3, ledger_id=1 << 40, uuid="u")
    writer.add(entries)
    writer.close()
    return sink.getvalue()


def file_of(entries: Sequence[bytes]) -> LedgerFile:
    return LedgerFile(pa.BufferReader(written(entries)))


KEYLESS = [single(0), batch(1, [None] * 4), single(2)]
KEYED = [single(0, "ä"), batch(1, ["0", None, "k0", "="]), single(300, ""), batch(4, ["x" * 200])]
UNUSUAL = b"\xb0\x80\x00\x01", b"\x30\x81\x00"
"""Field 6 is true, in more bytes than need be."""


@pytest.mark.parametrize(
    "entries", [KEYLESS, KEYED, KEYED[1::2], KEYED[::2]], ids=["keyless", "keyed", "batches", "single"]
)
def test_columns_equal_those_decoded_from_entries(entries):
    raw = [RawEntry(TOPIC, 3, 1 << 40, number, each) for number, each in enumerate(entries)]
    found = parquet.read_table(pa.BufferReader(written(entries)), columns=list(COLUMNS))
    assert found.to_pylist() == decode_entries(raw, list(COLUMNS)).to_pylist()


def odd(**fields: Any) -> bytes:
    return single_entry(b"value", sequence_id=1, **fields)


ENCRYPTED = odd(encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")])
CHUNK = odd(uuid="u", chunk_id=0, num_chunks_from_msg=2, total_chunk_msg_size=10)
LAST_CHUNK = odd(uuid="u", chunk_id=1, num_chunks_from_msg=2, total_chunk_msg_size=10)
NO_TEXT = odd(partition_key="??").replace(b"??", b"\xe2\x82")[6:]
"""A key that is no UTF-8, in an entry without a checksum."""
MARKER = odd(marker_type=20)


@pytest.mark.parametrize(
    ("entries", "is_plain"),
    [
        (KEYLESS, True), (KEYED, True), ([*KEYED, MARKER], True), ([MARKER], True),
        ([*KEYED, odd(partition_key="ä", compression=ZSTD)], False),  # cannot be decompressed
        ([*KEYLESS, ENCRYPTED], False), ([CHUNK, *KEYED], False), ([CHUNK, LAST_CHUNK], False),
        ([LAST_CHUNK, *KEYED], False), ([*KEYED, NO_TEXT], False),
        ([single(7, "aGk=", is_base64=True), *KEYED], False), ([batch(7, ["a"], is_base64=True)], False),
        ([batch(7, ["aGk="], extra=UNUSUAL[1])], False), ([*KEYED, batch(7, [None], is_base64=True)], False),
    ],
)  # fmt: skip
def test_a_file_is_plain_if_its_rows_have_all_information(entries, is_plain):
    summary = file_of(entries).summary
    assert summary.plain is is_plain
    assert FileSummary.decode(summary.encode()).plain is is_plain


def test_the_checksum_of_the_footer_is_returned():
    sink = io.BytesIO()
    writer = LedgerWriter(sink, topic=TOPIC, partition=3, ledger_id=1, uuid="u")
    writer.add(KEYED)
    written = writer.close()
    data, (size, crc) = sink.getvalue(), written.tail
    assert written.size == len(data)
    assert size == int.from_bytes(data[-8:-4], "little") + 8
    assert crc == crc32c(data[-size:])


def test_a_footer_may_have_unknown_or_missing_fields():
    kept = json.loads(FileSummary("t", -1, 1, "u", plain=True).encode())
    assert FileSummary.decode(json.dumps({**kept, "later": 1}).encode()).plain
    del kept["plain"]
    assert not FileSummary.decode(json.dumps(kept).encode()).plain


def zeros(size: int) -> bytes:
    payload = compress(ZSTD, bytes(size))
    return single_entry(payload, sequence_id=1, compression=ZSTD, uncompressed_size=size)


def test_a_group_is_bounded_by_its_memory(monkeypatch):
    """A few bytes of entries may decompress to gigabytes, and a reader decompresses a whole group."""
    monkeypatch.setattr(entry_envelope, "_UNCOMPRESSED_MAX", 1 << 20)
    monkeypatch.setattr(module, "GROUP_MEMORY_BYTES", 1 << 20)
    entries = [zeros(300_000) for _ in range(40)] + [zeros(3 << 20)] + [batch(1, ["k"] * 4000)] * 9
    file = file_of(entries)
    groups = range(len(file.summary.groups))
    assert [entry for group in groups for entry in file.entries(group).entries] == entries
    taken = [file._envelope(group).joined_bytes for group in groups]
    assert max(taken) < 5 << 20
    assert sum(each > 2 << 20 for each in taken) == 1
    assert max(rows for _, _, rows, *_ in file.summary.groups) < 20_000


def test_an_entry_with_too_many_messages_has_no_rows(monkeypatch):
    monkeypatch.setattr(entry_envelope, "ROWS_MAX", 100)
    entries = [single(1), batch(2, [None] * 101), batch(3, [None] * 100), batch(4, ["k"] * 200)]
    file = file_of(entries)
    assert (file.summary.messages, file.summary.closed) == (101, 2)
    assert file.entries(0).entries == entries


def test_an_abandoned_file_is_not_written_to(monkeypatch):
    """Also not when it is freed: Arrow's writer then ends its file by itself, and logs an error."""
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    sink = io.BytesIO()
    writer = LedgerWriter(sink, topic=TOPIC, partition=3, ledger_id=1, uuid="u")
    writer.add([single(1)])
    writer._flush()
    writer.add([single(2)])
    sink.close()  # writing to it raises
    writer.abandon()
    del writer
    gc.collect()
    assert not said


def test_reading_entries_loads_no_compiled_loops(tmp_path: Path):
    (tmp_path / "file").write_bytes(written([*KEYLESS, *KEYED]))
    code = (
        "import sys\n"
        "from geminga.offload.file import LedgerFile\n"
        "found = LedgerFile(open(sys.argv[1], 'rb')).entries(0)\n"
        "print(len(found.entries), found.bad, {'numba', 'llvmlite', 'pandas'}.intersection(sys.modules))"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "file")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.split("\n")[0] == "7 [] set()"
