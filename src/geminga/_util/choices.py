"""`Choice`: the base of every enumeration in the public API.

``pulsar-client``'s enumerations are numbers that print their names: ``int(Result.Ok)`` is 0, so is
``Result.Ok`` itself, and both ``str(Result.Ok)`` and ``f"{Result.Ok}"`` are ``Result.Ok``. All of them are
true, also those of value 0.
"""

from enum import Enum, IntEnum


class Choice(IntEnum):
    """A named number; the protocol's number where it has one."""

    __str__ = Enum.__str__
    __format__ = Enum.__format__

    def __bool__(self) -> bool:
        return True


class CompressionType(Choice):
    """Compression of payloads, or of whole batches; the wire's numbers."""

    NONE = 0
    LZ4 = 1
    ZLib = 2
    ZSTD = 3
    SNAPPY = 4
