"""The columns of a file are those that its entries would give; where they may not be, nobody is told so."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence

import pyarrow as pa
import pytest

from geminga.offload.file import DERIVED, LedgerFile, LedgerWriter
from geminga.offload.residue import COLUMNS
from geminga.wire.columnar import decode_entries
from geminga.wire.metadata import RawEntry, build_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

TOPIC = "persistent://public/default/t-partition-3"
ALL = [*COLUMNS, *DERIVED]


def single(number: int, key: str | None = None, *, is_base64: bool = False, extra: bytes = b"") -> bytes:
    metadata = pb.MessageMetadata(producer_name="standalone-0-0", sequence_id=number, publish_time=number)
    if key is not None:
        metadata.partition_key = key
    if is_base64:
        metadata.partition_key_b64_encoded = True
    return build_entry(metadata.SerializeToString() + extra, b"value %d" % number)


def batch(number: int, keys: Sequence[str | None], *, is_base64: bool = False, extra: bytes = b"") -> bytes:
    metadata = pb.MessageMetadata(
        producer_name="standalone-0-0", sequence_id=number, publish_time=number,
        num_messages_in_batch=len(keys),
    )  # fmt: skip
    parts = []
    for key in keys:
        one = pb.SingleMessageMetadata(payload_size=5)
        if key is not None:
            one.partition_key = key
        if is_base64:
            one.partition_key_b64_encoded = True
        head = one.SerializeToString() + extra
        parts.append(struct.pack(">I", len(head)) + head + b"value")
    return build_entry(metadata.SerializeToString(), b"".join(parts))


def file_of(entries: Sequence[bytes]) -> LedgerFile:
    sink = io.BytesIO()
    writer = LedgerWriter(sink, topic=TOPIC, partition=3, ledger_id=1 << 40, uuid="u")
    writer.add(entries)
    writer.close()
    return LedgerFile(pa.BufferReader(sink.getvalue()))


KEYLESS = [single(0), batch(1, [None] * 4), single(2)]
KEYED = [single(0, "ä"), batch(1, ["0", None, "k0", "="]), single(300, ""), batch(4, ["x" * 200])]
UNUSUAL = b"\xb0\x80\x00\x01", b"\x30\x81\x00"
"""Field 6 is true, in more bytes than need be."""


@pytest.mark.parametrize(
    "entries", [KEYLESS, KEYED, KEYED[1::2], KEYED[::2]], ids=["keyless", "keyed", "batches", "single"]
)
def test_columns_are_what_the_entries_give(entries: list[bytes]) -> None:
    raw = [RawEntry(TOPIC, 3, 1 << 40, number, each) for number, each in enumerate(entries)]
    for columns in (ALL, ["key_bytes"], ["message_id"], ["message_id", "value", "key_bytes", "entry_id"]):
        found = file_of(entries).messages(0, columns)
        assert found is not None
        assert found[0].schema == decode_entries(raw, columns).schema
        assert found[0].to_pylist() == decode_entries(raw, columns).to_pylist()


@pytest.mark.parametrize(
    "sealed",
    [
        single(7, "aGk=", is_base64=True), batch(7, ["aGk="], is_base64=True),
        batch(7, ["aGk="], extra=UNUSUAL[0]), batch(7, ["aGk="], extra=UNUSUAL[1]),
        single(7, "aGk=", extra=b"\x88\x81\x00\x01"), single(7, "aGk=", extra=b"\x88\x01\x81\x00"),
    ],
)  # fmt: skip
def test_keys_that_may_be_base64_are_asked_of_the_entries(sealed: bytes) -> None:
    raw = [RawEntry(TOPIC, 3, 1, 0, sealed)]
    assert decode_entries(raw, ["key_bytes"]).column(0).to_pylist() == [b"hi"]
    for entries in ([sealed], [*KEYED, sealed], [*KEYED[::2], sealed]):
        file = file_of(entries)
        assert file.messages(0, ["value", "key_bytes"]) is None
        assert file.messages(0, ["value", "key"]) is not None
