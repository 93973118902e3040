"""Numbers and flags in administrators' JSON, as lenient as the library that Apache Pulsar reads them with.

Jackson takes a number given as text, cuts the fraction off where a whole number is wanted, and takes whole
numbers for flags; official tools rely on it. `tests/vectors/jackson.json` holds its answers. Text that is
blank or says ``null`` is as good as a value that is not there.
"""

from __future__ import annotations

import math
import re
from typing import Any

_WHOLE = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_FLAGS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_DIGITS_MAX = 40
"""No number of more digits is in any range; converting one would cost time."""


def is_blank(value: Any) -> bool:
    """Whether a value counts as not given."""
    return value is None or (isinstance(value, str) and value.strip() in ("", "null"))


def whole_of(value: Any) -> int | None:
    """The whole number that a JSON value stands for; None when it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if math.isfinite(value) else None
    if isinstance(value, str):
        text = value.strip()
        if len(text) <= _DIGITS_MAX and _WHOLE.fullmatch(text):
            return int(text)
    return None


def number_of(value: Any) -> float | None:
    """The number that a JSON value stands for; None when it is none, or not finite."""
    if isinstance(value, bool):
        return None
    try:
        if isinstance(value, str):
            found = float(value) if _DECIMAL.fullmatch(value.strip()) else math.nan
        elif isinstance(value, (int, float)):
            found = float(value)
        else:
            return None
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def flag_of(value: Any) -> bool | None:
    """The flag that a JSON value stands for; None when it is none."""
    if isinstance(value, int):
        return bool(value)
    return _FLAGS.get(value.strip()) if isinstance(value, str) else None
