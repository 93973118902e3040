"""Pulsar's key hashes: the partition of a key, and the Key_Shared slot of an entry.

Sections 1 and 3 of algorithms.md. Every partition hash clears the sign bit, so ``hash % partitions`` is
the partition. Routers remember those of their keys, and short sticky keys are remembered here, since keys
repeat: a look-up costs 0.1 µs, a computation 0.1 to 0.4 µs a byte.
"""

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from operator import mul
from typing import Final

from geminga.wire.checksum import Buffer

MURMUR3_SIZE: Final = 1 << 31
"""Values of `murmur3_32` are below it."""
_MASK_31 = MURMUR3_SIZE - 1
_MASK_32 = 0xFFFFFFFF
_MASK_64 = 0xFFFFFFFFFFFFFFFF

REMEMBERED_KEYS_MAX = 16_384
"""Maximum sticky keys whose hashes are cached."""
REMEMBERED_KEY_SIZE_MAX = 128
"""Longer sticky keys are not cached, which limits the memory to a few MB."""


_JAVA_POWERS = tuple(pow(31, exponent, 1 << 32) for exponent in reversed(range(REMEMBERED_KEY_SIZE_MAX)))


def java_string_hash(key: str) -> int:
    """``JavaStringHash``, the Java client's default: ``31 * h + unit`` over UTF-16 units; 0..2^31-1."""
    units = memoryview(key.encode("utf-16-le", "surrogatepass")).cast("H")
    if len(units) <= len(_JAVA_POWERS):
        # The same polynomial, without a step of bytecode a character.
        return sum(map(mul, units, _JAVA_POWERS[-len(units) :])) & _MASK_31 if units else 0
    value = 0
    for unit in units:
        value = (31 * value + unit) & _MASK_32
    return value & _MASK_31


def _murmur3_32(data: bytes) -> int:
    whole = len(data) & ~3
    value = 0
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * 0xCC9E2D51 & _MASK_32
        word = (word << 15 | word >> 17) * 0x1B873593 & _MASK_32
        value ^= word
        value = ((value << 13 | value >> 19) * 5 + 0xE6546B64) & _MASK_32
    if whole < len(data):
        word = int.from_bytes(data[whole:], "little") * 0xCC9E2D51 & _MASK_32
        value ^= (word << 15 | word >> 17) * 0x1B873593 & _MASK_32
    value ^= len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & _MASK_32
    value = (value ^ value >> 13) * 0xC2B2AE35 & _MASK_32
    return (value ^ value >> 16) & _MASK_31


_BOOST_Q = 0x9E3779B97F4A7C15
_BOOST_K = 0xDF442D22CE4859B9


def _multiply_fold(value: int) -> int:
    product = (value & _MASK_64) * _BOOST_K
    return (product & _MASK_64) ^ (product >> 64)


def _boost_hash(data: bytes) -> int:
    """Return ``boost::hash<std::string>`` (Boost 1.81 or later), low 31 bits, as ``pulsar-client`` does."""
    size = len(data)
    weight = _multiply_fold(_BOOST_Q)
    value = weight ^ size
    whole = size & ~7
    for start in range(0, whole, 8):
        weight = (weight + _BOOST_Q) & _MASK_64
        value ^= _multiply_fold(int.from_bytes(data[start : start + 8], "little") + weight)
    tail = data[whole:]
    rest = len(tail)
    word = 0
    if rest >= 4:
        word = int.from_bytes(tail[-4:], "little") << 8 * (rest - 4) | int.from_bytes(tail[:4], "little")
    elif rest:
        first, second = (rest - 1) & 2, rest >> 1
        word = tail[first] << 8 * first | tail[second] << 8 * second | tail[0]
    weight = (weight + _BOOST_Q) & _MASK_64
    value ^= _multiply_fold(word + weight)
    return _multiply_fold(value + weight) & _MASK_31


def _encoded(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


PARTITION_HASHES: Final[dict[str, Callable[[str], int]]] = {
    "JavaStringHash": java_string_hash,
    "Murmur3_32Hash": lambda key: _murmur3_32(_encoded(key)),
    "BoostHash": lambda key: _boost_hash(_encoded(key)),
}
"""Hashing scheme to the hash of a partition key (the text of ``partition_key``, base64 for byte keys)."""

_murmur_remembered = lru_cache(maxsize=REMEMBERED_KEYS_MAX)(_murmur3_32)


def murmur3_32(data: Buffer) -> int:
    """MurmurHash3 x86 32-bit, seed 0, without the sign bit; 0..2^31-1. Key_Shared uses it as well."""
    if len(data) > REMEMBERED_KEY_SIZE_MAX:
        return _murmur3_32(bytes(data))
    return _murmur_remembered(data if type(data) is bytes else bytes(data))


def murmur3_32_numbered(prefix: bytes, count: int) -> list[int]:
    """Return `murmur3_32` of ``prefix`` followed by each decimal number below ``count``: points of a hash
    ring, which are not cached."""
    return [_murmur3_32(b"%b%d" % (prefix, number)) for number in range(count)]


def partition_of(key: str, partitions: int, hashing: str) -> int:
    """Return the partition (0..partitions-1) of a key. ``hashing`` is a name of `PARTITION_HASHES`."""
    return PARTITION_HASHES[hashing](key) % partitions


# --- Key_Shared (algorithms.md section 3) -----------------------------------------------------------

SLOTS = 65536
"""Key_Shared divides the hash of the sticky key into this many slots."""
STICKY_KEY_BYTES_MAX: Final = 1024
"""Longest sticky key that is hashed itself. Longer ones are replaced by a digest: Murmur3 of 5 MB would take
half a second."""


def _sticky_hash(sticky_key: Buffer) -> int:
    return murmur3_32(sticky_key if len(sticky_key) <= STICKY_KEY_BYTES_MAX else blake2b(sticky_key).digest())


def consistent_slot(sticky_key: Buffer) -> int:
    """Return the slot 1..65535 of a sticky key under consistent hashing."""
    return _sticky_hash(sticky_key) % (SLOTS - 1) + 1


def consistent_points(prefix: bytes, count: int) -> list[int]:
    """Return the slots of ``count`` ring points: `consistent_slot` of ``prefix`` followed by 0, 1, 2, …."""
    return [point % (SLOTS - 1) + 1 for point in murmur3_32_numbered(prefix, count)]


def range_slot(sticky_key: Buffer) -> int:
    """Return the slot 1..65535 of a sticky key if consumers own ranges (auto-split and STICKY)."""
    return _sticky_hash(sticky_key) % SLOTS or 1
