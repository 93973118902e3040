"""Contexts: named clusters, in a file that only the user may read.

The file is ``contexts.json`` in the user's config folder (``~/.config/geminga``, or ``GEMINGA_CONFIG_HOME``),
mode 0600, replaced atomically.
"""

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from geminga.cli.common import write_private
from geminga.config import suggestion
from geminga.errors import InvalidConfiguration

Fields = Mapping[str, Any]


def contexts_file() -> Path:
    """Return the path of the file of contexts."""
    home = os.environ.get("GEMINGA_CONFIG_HOME")
    return Path(home or click.get_app_dir("geminga")) / "contexts.json"


@dataclass(frozen=True, slots=True)
class Contexts:
    """Fields of `geminga.client.cluster.Cluster` by context name, and the current context's name."""

    current: str | None = None
    by_name: Mapping[str, Fields] = field(default_factory=dict, repr=False)

    def get(self, name: str) -> Fields:
        """Return the fields of a context. Raises `InvalidConfiguration` for an unknown name."""
        if name not in self.by_name:
            known = ", ".join(self.by_name) or "none yet: geminga context set NAME --url ..."
            raise InvalidConfiguration(
                f"no context {name!r}{suggestion(name, self.by_name)}; there are: {known}"
            )
        return self.by_name[name]


def read_contexts() -> Contexts:
    """Read the file of contexts; without a file, return no contexts. Raises `InvalidConfiguration` if its
    content is invalid or if other users may read the file."""
    path = contexts_file()
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read()
    except FileNotFoundError:
        return Contexts()
    try:
        found = json.loads(content)
        contexts = Contexts(found.get("current"), {str(n): dict(f) for n, f in found["contexts"].items()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InvalidConfiguration(f"{path} is not a file of contexts: fix it, or move it away") from None
    if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        raise InvalidConfiguration(f"{path} holds secrets and others may read it: chmod 600 {path}")
    return contexts


def write_contexts(contexts: Contexts) -> None:
    """Replace the file of contexts."""
    path = contexts_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = json.dumps({"current": contexts.current, "contexts": contexts.by_name}, indent=2)
    write_private(path, content.encode() + b"\n")
