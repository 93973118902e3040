"""Numbers and flags in administrators' JSON, parsed as leniently as by Apache Pulsar.

Jackson accepts a number given as text, truncates the fraction where a whole number is wanted, and accepts
whole numbers for flags; official tools rely on it. `tests/vectors/jackson.json` holds its answers. Blank text
and the text ``null`` count as a missing value.
"""

import math
import re
from typing import Any

_WHOLE = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_FLAGS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_DIGITS_MAX = 40
"""Longest number in digits: none is in any range, and converting it would take time."""


def is_blank(value: Any) -> bool:
    """Return whether a value counts as missing."""
    return value is None or (isinstance(value, str) and value.strip() in ("", "null"))


def whole_of(value: Any) -> int | None:
    """Return the whole number of a JSON value; None if it has another type."""
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
    """Return the number of a JSON value; None if it is not a finite number."""
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
    """Return the flag of a JSON value; None if it has another type."""
    if isinstance(value, int):
        return bool(value)
    return _FLAGS.get(value.strip()) if isinstance(value, str) else None
