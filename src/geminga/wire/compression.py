"""The codecs of ``MessageMetadata.compression``, with decompression limited to the announced size.

Framing.md section 1.5: LZ4 is the raw block, Snappy the raw format, ZSTD a standard frame, ZLIB a zlib stream
that Java ends with a sync flush: no final block and no Adler-32, so a streaming decompressor is stopped at
``uncompressed_size``. Output is never larger than that size, and that size never larger than the caller's
limit, so decompression bombs can't exhaust memory.
"""

import zlib
from collections.abc import Callable, Generator
from typing import Final

import cramjam

from geminga.errors import CorruptPayload, UsageError
from geminga.wire.checksum import Buffer

NONE, LZ4, ZLIB, ZSTD, SNAPPY = range(5)
"""``CompressionType`` numbers."""
NAMES = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")

_ZLIB_LEVEL = 6
_ZSTD_LEVEL = 3
STEP_BYTES = 256 * 1024
"""Uncompressed bytes per step of ZLIB. The other codecs are several times as fast: they have one step."""
INPUT_STEP_BYTES = 8 * 1024
"""Maximum compressed bytes per step."""
LEVELS_MAX = {ZLIB: 9, ZSTD: 19}
"""The highest level of each codec that has levels; the lowest is 1. Above 19, ZSTD needs more memory than
readers must provide."""


_KNOWN_TEXT: Final = b"geminga " * 8
_KNOWN_BLOCKS: Final = {
    LZ4: bytes.fromhex("8f67656d696e67612008002050696e676120"),
    ZSTD: bytes.fromhex("28b52ffd20407500004067656d696e6761200100dd59b8"),
    SNAPPY: bytes.fromhex("401c67656d696e676120de0800"),
}
"""`_KNOWN_TEXT` in each codec of cramjam."""


class CodecError(CorruptPayload):
    """A payload that its codec rejects, or an unknown codec: no proof that the payload is damaged."""


def _into(decompress: Callable[[Buffer, bytearray], int], data: Buffer, size: int) -> bytes:
    output = bytearray(size)
    return bytes(memoryview(output)[: decompress(data, output)])


_COMPRESSORS: tuple[Callable[[Buffer, int], bytes], ...] = (
    lambda data, level: bytes(data),
    lambda data, level: bytes(cramjam.lz4.compress_block(data, store_size=False)),
    lambda data, level: zlib.compress(data, level or _ZLIB_LEVEL),
    lambda data, level: bytes(cramjam.zstd.compress(data, level=level or _ZSTD_LEVEL)),
    lambda data, level: bytes(cramjam.snappy.compress_raw(data)),
)
_DECOMPRESSORS: tuple[Callable[[Buffer, int], bytes], ...] = (
    lambda data, size: bytes(data),
    lambda data, size: _into(cramjam.lz4.decompress_block_into, data, size),
    # Request one byte more than announced, to detect a stream that holds more.
    lambda data, size: zlib.decompressobj().decompress(data, size + 1),
    lambda data, size: _into(cramjam.zstd.decompress_into, data, size),
    lambda data, size: _into(cramjam.snappy.decompress_raw_into, data, size),
)


def compress(kind: int, data: Buffer, level: int = 0) -> bytes:
    """Return ``data`` in the codec with this ``CompressionType`` number.

    ``level``: of codecs that have levels (`LEVELS_MAX`), 0 for the one that Java's and C++'s clients use.
    Raises `UsageError` for a number that is no codec.
    """
    if not 0 <= kind < len(_COMPRESSORS):
        raise UsageError(f"compression type {kind} is not known; known: {_known()}")
    return _COMPRESSORS[kind](data, level)


def compress_in_steps(kind: int, data: bytes) -> Generator[None, None, bytes]:
    """Like `compress`, without a level, in steps: other work can run while a large payload is compressed."""
    if kind != ZLIB:
        return compress(kind, data)
    codec = zlib.compressobj(_ZLIB_LEVEL)
    pieces: list[bytes] = []
    view = memoryview(data)
    for start in range(0, len(data), STEP_BYTES):
        if start:
            yield
        pieces.append(codec.compress(view[start : start + STEP_BYTES]))
    pieces.append(codec.flush())
    return b"".join(pieces)


def decompress(kind: int, data: Buffer, uncompressed_size: int, *, limit: int) -> bytes:
    """Return the ``uncompressed_size`` bytes that ``data`` holds.

    ``limit``: the largest accepted ``uncompressed_size`` in bytes. For NONE the announced size is ignored
    (C++ leaves it out), and the data's own size counts. Raises `CorruptPayload` for an unknown codec, a size
    above the limit, data that the codec rejects, and a wrong size.
    """
    size = _size(kind, data, uncompressed_size, limit)
    try:
        output = _DECOMPRESSORS[kind](data, size)
    except (cramjam.DecompressionError, zlib.error) as error:
        raise _refused(kind, data, size, error) from error
    return _whole(kind, data, size, output)


def _decompress_zlib_in_steps(data: Buffer, size: int) -> Generator[None, None, bytes]:
    codec, view = zlib.decompressobj(), memoryview(data)
    pieces: list[bytes] = []
    left = size + 1
    # In small pieces: a few bytes may be a block that takes long and has no output.
    for start in range(0, len(view), INPUT_STEP_BYTES):
        rest: Buffer = view[start : start + INPUT_STEP_BYTES]
        while left and (piece := codec.decompress(rest, min(left, STEP_BYTES))):
            pieces.append(piece)
            left -= len(piece)
            rest = codec.unconsumed_tail
            yield
        if not left or codec.eof:
            break
        yield
    return b"".join(pieces)


def decompress_in_steps(
    kind: int, data: Buffer, uncompressed_size: int, *, limit: int
) -> Generator[None, None, bytes]:
    """Like `decompress`, in steps: other work can run while a large payload is decompressed."""
    if kind != ZLIB:
        return decompress(kind, data, uncompressed_size, limit=limit)
    size = _size(kind, data, uncompressed_size, limit)
    try:
        output = yield from _decompress_zlib_in_steps(data, size)
    except zlib.error as error:
        raise _refused(kind, data, size, error) from error
    return _whole(kind, data, size, output)


def _size(kind: int, data: Buffer, uncompressed_size: int, limit: int) -> int:
    """Return the checked uncompressed size."""
    if kind == NONE:
        uncompressed_size = len(data)
    elif not 0 < kind < len(_DECOMPRESSORS):
        raise CodecError(f"compression type {kind} is not known; known: {_known()}")
    if not 0 <= uncompressed_size <= limit:
        raise CorruptPayload(
            f"{NAMES[kind]} payload announces {uncompressed_size} bytes; at most {limit} are accepted"
        )
    return uncompressed_size


def _refused(kind: int, data: Buffer, size: int, error: Exception) -> CodecError:
    return CodecError(
        f"{NAMES[kind]} payload of {len(data)} bytes does not decompress to the announced "
        f"{size} bytes: {error}"
    )


def _whole(kind: int, data: Buffer, size: int, output: bytes) -> bytes:
    if len(output) != size:
        raise CodecError(
            f"{NAMES[kind]} payload of {len(data)} bytes announces {size} bytes "
            f"and holds {'more' if len(output) > size else len(output)}"
        )
    return output


def _known() -> str:
    return ", ".join(f"{number} {name}" for number, name in enumerate(NAMES))


def _check_codecs() -> None:
    """Raise ImportError if a codec can't read a known block, or its own output."""
    size = len(_KNOWN_TEXT)
    for kind, block in _KNOWN_BLOCKS.items():
        for data in (block, compress(kind, _KNOWN_TEXT)):
            try:
                read = decompress(kind, data, size, limit=size)
            except CorruptPayload as error:
                read = str(error).encode()
            if read != _KNOWN_TEXT:
                raise ImportError(
                    f"cramjam cannot read {NAMES[kind]} ({read!r}); geminga needs cramjam>=2.11: "
                    "pip install --upgrade cramjam"
                )


_check_codecs()
