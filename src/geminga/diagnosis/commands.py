"""Commands that are shown to people, as they are pasted into a shell."""

from __future__ import annotations

import shlex


def shell_command(verb: str, *names: str, options: str = "") -> str:
    """Return ``geminga VERB NAMES OPTIONS``. ``options`` are quoted already; with a name that begins with
    ``-`` they come first, and the names follow ``--``."""
    named = " ".join(map(shlex.quote, names))
    parts = [options, "--", named] if any(name.startswith("-") for name in names) else [named, options]
    return " ".join(["geminga", verb, *filter(None, parts)])
