"""Codecs: recorded payloads of both clients, and bounded output for hostile ones."""

import tracemalloc
import zlib
from collections.abc import Generator
from random import Random

import cramjam
import pytest
from doubles import raising
from hypothesis import given
from hypothesis import strategies as st

from geminga.errors import CorruptPayload, UsageError
from geminga.wire import compression
from geminga.wire.metadata import parse_entry

KINDS = range(len(compression.NAMES))
PACKING = [compression.LZ4, compression.ZLIB, compression.ZSTD, compression.SNAPPY]
MIB = 1024 * 1024


def test_recorded_payloads_decompress(recorded):
    seen = set()
    for record in recorded:
        if record.entry is None:
            continue
        entry = parse_entry(record.entry)
        metadata = entry.metadata
        if metadata.encryption_keys or not metadata.compression or metadata.HasField("chunk_id"):
            continue
        data = compression.decompress(
            metadata.compression, entry.payload, metadata.uncompressed_size, limit=5 * MIB
        )
        assert len(data) == metadata.uncompressed_size
        seen.add((record.client, metadata.compression))
    # ZLIB from Java ends with a sync flush, ZLIB from C++ is a complete stream: both must be there.
    assert {("java-4.0.4", compression.ZLIB), ("python-3.13.0", compression.ZLIB)} <= seen
    assert {kind for _, kind in seen} == set(PACKING)


@given(st.binary(max_size=5000), st.sampled_from(KINDS))
def test_round_trip(data, kind):
    packed = compression.compress(kind, memoryview(data))
    assert compression.decompress(kind, memoryview(packed), len(data), limit=5000) == data


@pytest.mark.parametrize(("kind", "highest"), compression.LEVELS_MAX.items())
def test_levels_differ_in_size_and_not_in_what_readers_see(kind, highest):
    data = b"".join(b'{"number":%d,"what":"reading %d"}' % (i * i % 977, i % 31) for i in range(5000))
    sizes = {}
    for level in (0, 1, highest):
        packed = compression.compress(kind, data, level)
        assert compression.decompress(kind, packed, len(data), limit=len(data)) == data
        sizes[level] = len(packed)
    assert sizes[highest] < sizes[0] < sizes[1]


def test_zlib_with_a_sync_flush():
    packer = zlib.compressobj()
    data = b"payload " * 100
    packed = packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)
    with pytest.raises(zlib.error):
        zlib.decompress(packed)
    assert compression.decompress(compression.ZLIB, packed, len(data), limit=len(data)) == data


@pytest.mark.parametrize("kind", PACKING)
@pytest.mark.parametrize("lie", [-1000, -1, 1, 5000])
def test_a_lying_size(kind, lie):
    data = b"0123456789" * 100
    with pytest.raises(CorruptPayload, match=f"{compression.NAMES[kind]} payload"):
        compression.decompress(kind, compression.compress(kind, data), len(data) + lie, limit=MIB)


@pytest.mark.parametrize("kind", PACKING)
@pytest.mark.parametrize("size", [MIB + 1, 1 << 31, (1 << 32) - 1])
def test_sizes_above_the_limit_are_refused(kind, size):
    with pytest.raises(CorruptPayload, match=f"announces {size} bytes; at most {MIB} are accepted"):
        compression.decompress(kind, b"", size, limit=MIB)


def test_uncompressed_data_above_the_limit_is_refused():
    with pytest.raises(CorruptPayload, match="NONE payload announces 4 bytes; at most 3 are accepted"):
        compression.decompress(compression.NONE, b"abcd", 0, limit=3)


@pytest.mark.parametrize("kind", PACKING)
def test_bombs_cost_no_memory(kind):
    bomb = compression.compress(kind, bytes(64 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptPayload):
            compression.decompress(kind, bomb, 1000, limit=MIB)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_several_zstd_frames_do_not_exceed_the_size():
    packed = bytes(cramjam.zstd.compress(b"x" * 1000))
    with pytest.raises(CorruptPayload):
        compression.decompress(compression.ZSTD, packed * 3, 1000, limit=MIB)


@pytest.mark.parametrize("kind", [-1, 5, 1000])
def test_unknown_codecs(kind):
    with pytest.raises(CorruptPayload, match=f"compression type {kind} is not known; known: 0 NONE, 1 LZ4"):
        compression.decompress(kind, b"", 0, limit=MIB)
    with pytest.raises(UsageError, match=f"compression type {kind} is not known"):
        compression.compress(kind, b"")


def counted(steps: Generator[None, None, bytes]) -> tuple[int, bytes]:
    """Return the number of steps, and the result."""
    count = 1
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 1, compression.STEP_BYTES, 5 * compression.STEP_BYTES + 7])
def test_steps_give_the_same_bytes_as_one_call(kind, size):
    """Steps of ZLIB, the slowest codec, have at most `STEP_BYTES`."""
    data = Random(size).randbytes(size // 2) + bytes(size - size // 2)
    steps, packed = counted(compression.compress_in_steps(kind, data))
    assert packed == compression.compress(kind, data)
    assert steps == (-(-size // compression.STEP_BYTES) or 1 if kind == compression.ZLIB else 1)
    steps, unpacked = counted(compression.decompress_in_steps(kind, packed, size, limit=MIB * 2))
    assert unpacked == data
    assert steps >= (size // compression.STEP_BYTES if kind == compression.ZLIB else 1)


@pytest.mark.parametrize("kind", PACKING)
def test_steps_refuse_the_same_payloads_as_one_call(kind):
    data = bytes(2 * compression.STEP_BYTES)
    packed = compression.compress(kind, data)
    lies = [(packed, len(data) + lie) for lie in (-1, 1, MIB * 2)]
    for payload, size in [*lies, (packed[: len(packed) // 2], len(data)), (b"\xff" * 50, 100), (packed, -1)]:
        with pytest.raises(CorruptPayload) as at_once:
            compression.decompress(kind, payload, size, limit=MIB * 2)
        with pytest.raises(CorruptPayload) as in_steps:
            counted(compression.decompress_in_steps(kind, payload, size, limit=MIB * 2))
        assert str(in_steps.value) == str(at_once.value)


def empty_blocks(count: int) -> bytes:
    """Return a ZLIB stream of ``count`` blocks with own tables and no output."""
    bits = "001" + "00000" + "00000" + "0111"  # not the last one; dynamic; 257 + 0, 1 + 0 and 4 + 14 codes
    code_sizes = ["000"] * 18
    code_sizes[2] = code_sizes[17] = "100"  # of "as many zeros as the next 7 bits say", and of 1
    bits += "".join(code_sizes)
    for zeros in (138, 118):
        bits += "1" + format(zeros - 11, "07b")[::-1]
    bits += "0" + "0" + "0"  # the end of a block, and a distance; then that end
    whole = bits * 8
    block = bytes(int(whole[place : place + 8][::-1], 2) for place in range(0, len(whole), 8))
    return zlib.compress(b"")[:2] + block * (count // 8)


def test_many_empty_blocks_are_decompressed_in_steps():
    """Five megabytes of such blocks took half a second of CPU, without a byte of payload."""
    payload = empty_blocks(40_000)
    assert zlib.decompressobj().decompress(payload, 1) == b""
    steps, found = counted(compression.decompress_in_steps(compression.ZLIB, payload, 0, limit=MIB))
    assert found == b""
    assert steps > len(payload) // compression.INPUT_STEP_BYTES > 50


def test_a_codec_that_cannot_read_a_known_block_is_refused_at_import(monkeypatch):
    monkeypatch.setattr(
        cramjam.lz4,
        "decompress_block_into",
        raising(cramjam.DecompressionError("buffer isn't large enough to hold decompressed data")),
    )
    with pytest.raises(ImportError, match=r"cannot read LZ4 .*geminga needs cramjam>="):
        compression._check_codecs()
    monkeypatch.setattr(cramjam.lz4, "decompress_block_into", lambda data, output: len(output))
    with pytest.raises(ImportError, match="cannot read LZ4"):
        compression._check_codecs()
