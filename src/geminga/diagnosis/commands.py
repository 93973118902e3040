"""Texts that are shown to people: numbers with their noun, times, and commands for a shell."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime


def how_many(number: int, noun: str = "message") -> str:
    """``1 message``, ``2,000 messages``, ``2 entries``."""
    nouns = noun if number == 1 else f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {nouns}"


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
