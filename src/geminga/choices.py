"""`Choice`: the base of every enumeration that the public API shows.

``pulsar-client``'s enumerations are numbers that print their names: ``int(Result.Ok)`` is 0, so is
``Result.Ok`` itself, and both ``str(Result.Ok)`` and ``f"{Result.Ok}"`` are ``Result.Ok``. Python's own
``IntEnum`` prints the number.
"""

from __future__ import annotations

from enum import Enum, IntEnum


class Choice(IntEnum):
    """A named number; the numbers are the wire's where the wire has them."""

    __str__ = Enum.__str__
    __format__ = Enum.__format__
