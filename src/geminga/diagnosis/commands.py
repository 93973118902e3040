"""Texts that are shown to people: numbers with their noun, sizes, times, and commands for a shell."""

import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime


def how_many(number: int, noun: str = "message") -> str:
    """``1 message``, ``2,000 messages``, ``2 entries``."""
    nouns = noun if number == 1 else f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {nouns}"


def size(value: float, digits: int = 1) -> str:
    """Return a size as ``1.5 GiB`` or, if whole, ``20 GiB``; ``-`` if unknown (below 0). More than 3 digits:
    in bytes."""
    if value < 0:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        decimals = 0 if unit == "B" else digits - (value >= 100)
        if round(value, decimals) < 1024 or unit == "TiB" or digits > 3:
            break
        value /= 1024
    return f"{value:,.{0 if value % 1 == 0 else decimals}f} {unit}"


def distinct(text: Callable[[float, int], str], *values: float) -> list[str]:
    """Return texts of values that are compared: `size` or `rate`, with digits enough for them to differ."""
    for digits in range(1, 5):
        texts = [text(value, digits) for value in values]
        if len({re.sub(r"\.0+\b", "", each) for each in texts}) == len(set(values)):
            break
    return texts


def span(seconds: float) -> str:
    """Return a duration as ``1h 30m`` or ``7d``, the two largest units; ``-`` if unknown (below 0)."""
    if seconds < 0:
        return "-"
    left, parts = round(seconds), []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"


def rate(value: float, digits: int = 1) -> str:
    """Return a rate as ``1,234/s``; below 10 with a decimal."""
    return f"{value:,.{0 if value == 0 else digits - (value >= 10)}f}/s"


def iso_time(milliseconds: int) -> str:
    """Format ``2026-11-21T00:46:42.051Z``; beyond the calendar the milliseconds themselves."""
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return str(milliseconds)  # clients may send any number as a time
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shell_command(verb: str, *names: str, options: str = "") -> str:
    """Return ``geminga VERB NAMES OPTIONS``. ``options`` are quoted already; with a name that begins with
    ``-`` they come first, and the names follow ``--``."""
    named = " ".join(map(shlex.quote, names))
    parts = [options, "--", named] if any(name.startswith("-") for name in names) else [named, options]
    return " ".join(["geminga", verb, *filter(None, parts)])
