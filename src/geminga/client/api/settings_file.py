"""Settings files of producers: written by ``geminga tune advise --apply``, read by programs and by Spark.

TOML with two tables. ``[client]`` holds arguments of `geminga.Client`, ``[producer]`` arguments of
``create_producer``, under the arguments' names; enumerations are written by name::

    [client]
    memory_limit_bytes = 67108864

    [producer]
    batching_max_messages = 800
    batching_max_publish_delay_ms = 40.0
    compression_type = "ZSTD"

::

    tuned = geminga.load_settings("events.toml")
    client = geminga.Client("pulsar://localhost:6650", **tuned.client)
    producer = client.create_producer("events", **tuned.producer)

Spark's sink takes the same file: ``.option("settingsFile", "events.toml")``.
"""

import enum
import inspect
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geminga.client.options import enums
from geminga.config import check_choice, check_type, refuse, suggestion
from geminga.errors import InvalidConfiguration

_NOT_IN_A_FILE = frozenset({"self", "service_url", "topic", "producer_name", "initial_sequence_id"})
"""Arguments of a single run rather than settings of a topic."""
_NONE_OR_A_NUMBER = frozenset({"latency_budget_ms"})
"""Arguments whose default None does not show their type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """Arguments read from a settings file, ready to pass on."""

    client: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of `geminga.Client`."""
    producer: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of ``create_producer``."""


def load_settings(path: str | os.PathLike[str]) -> FileSettings:
    """Read a file of settings for a client and its producers, as ``geminga tune advise --apply`` writes it.
    Raises `InvalidConfiguration` for a file that is unreadable or not TOML, for unknown tables and arguments,
    and for values of the wrong type."""
    check_type("path", path, str, os.PathLike)
    try:
        content = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise InvalidConfiguration(f"the settings file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfiguration(f"the settings file {path} is not TOML: {error}") from None
    known = _arguments()
    for table, values in content.items():
        check_choice("table", table, tuple(known))
        check_type(table, values, dict)
    return FileSettings(
        client=_checked("client", content.get("client", {}), known["client"]),
        producer=_checked("producer", content.get("producer", {}), known["producer"]),
    )


def dump_settings(
    settings: FileSettings, comments: Mapping[str, str] | None = None, heading: str = ""
) -> str:
    """Return the text of a settings file. ``comments``: by argument, a line above it."""
    comments = comments or {}
    lines = [f"# {line}".rstrip() for line in heading.splitlines()]
    for table, values in (("client", settings.client), ("producer", settings.producer)):
        if not values:
            continue
        lines += ["", f"[{table}]"] if lines else [f"[{table}]"]
        for name, value in values.items():
            if name in comments:
                lines.append(f"# {comments[name]}")
            lines.append(f"{name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f'"{value.name}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    refuse("value", value, "a number, a boolean or a choice")


def _arguments() -> dict[str, dict[str, inspect.Parameter]]:
    """Return the arguments that a file may contain: numbers, flags and enumerations."""
    from geminga.client.api.sync import Client

    found = {}
    for table, function in (("client", Client.__init__), ("producer", Client.create_producer)):
        found[table] = {
            name: parameter
            for name, parameter in inspect.signature(function).parameters.items()
            if name in _NONE_OR_A_NUMBER
            or (name not in _NOT_IN_A_FILE and isinstance(parameter.default, (bool, int, float, enum.Enum)))
        }
    return found


def _checked(table: str, values: dict[str, Any], known: dict[str, inspect.Parameter]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise InvalidConfiguration(
                f"[{table}] has no setting {name!r}{suggestion(name, known)}; settings: {', '.join(known)}"
            )
        default = known[name].default
        if isinstance(default, enum.Enum):
            choices = getattr(enums, type(default).__name__, type(default))
            check_choice(name, value, tuple(choices.__members__))
            found[name] = choices[value]
        elif isinstance(default, bool):
            found[name] = check_type(name, value, bool)
        else:
            found[name] = check_type(name, value, int, float)
    return found
