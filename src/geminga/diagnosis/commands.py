"""Texts that are shown to people: numbers with their noun, and commands as they are pasted into a shell."""

from __future__ import annotations

import shlex


def how_many(number: int, noun: str = "message") -> str:
    """``1 message``, ``2,000 messages``, ``2 entries``."""
    nouns = noun if number == 1 else f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {nouns}"


def shell_command(verb: str, *names: str, options: str = "") -> str:
    """Return ``geminga VERB NAMES OPTIONS``. ``options`` are quoted already; with a name that begins with
    ``-`` they come first, and the names follow ``--``."""
    named = " ".join(map(shlex.quote, names))
    parts = [options, "--", named] if any(name.startswith("-") for name in names) else [named, options]
    return " ".join(["geminga", verb, *filter(None, parts)])
