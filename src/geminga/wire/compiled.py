"""Choice between compiled and interpreted loops for tables.

A process's first tables must not wait for a compiler: numba takes several seconds for the loops of
`columnar_kernels` and `columnar_encoding_kernels`, once per machine and version. If they are in numba's cache
they are loaded at once, in a third of a second. Otherwise tables are converted by `columnar_interpreted`,
until a process has compiled the loops (`geminga.client.compiling`), which pays after some hundred thousand
messages.

The environment variable ``GEMINGA_KERNELS`` overrides this: ``compiled`` compiles at the first table and
waits for it, ``interpreted`` never compiles.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from geminga.errors import InvalidConfiguration

MESSAGES_BEFORE_COMPILING = 100_000
"""Messages that a process converts before it has the loops compiled: compiling takes some seconds of CPU, as
much as a few million messages."""
VARIABLE = "GEMINGA_KERNELS"
CHOICES = ("auto", "compiled", "interpreted")

_FOLDER = Path(__file__).parent


class _State:
    """State of this process."""

    def __init__(self) -> None:
        self.choice = ""
        self.at_hand = False
        self.messages = 0


_state = _State()
_compile: Callable[[], None] | None = None


def choice() -> str:
    """Return the choice in the environment. Raises `InvalidConfiguration`."""
    chosen = os.environ.get(VARIABLE) or "auto"
    if chosen not in CHOICES:
        raise InvalidConfiguration(f"{VARIABLE}={chosen!r} is not allowed; allowed: {', '.join(CHOICES)}")
    return chosen


def at_hand() -> bool:
    """Return whether to use compiled loops. Thread-safe."""
    if _state.at_hand:
        return True
    if not _state.choice:
        _state.choice = choice()
        _state.at_hand = _state.choice == "compiled" or (_state.choice == "auto" and is_cached())
    return _state.at_hand


def use() -> None:
    """Use compiled loops from now on, and compile them if needed."""
    _state.at_hand = True


def when_worthwhile(compile_them: Callable[[], None]) -> None:
    """Set the function to call repeatedly, on any thread, once compiling pays, until `use` is called."""
    global _compile
    _compile = compile_them


def note(messages: int) -> None:
    """Count messages that were converted. Thread-safe."""
    if _state.at_hand or _state.choice != "auto":
        return
    _state.messages += messages
    if _state.messages >= MESSAGES_BEFORE_COMPILING and _compile is not None:
        _compile()


# --- marker file of compiled loops ------------------------------------------------------------------


def _places() -> list[Path]:
    """Return the possible folders of the marker file: those of numba's cache, by write permission."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        folders = [Path(given)]
    else:
        beside = _FOLDER / "__pycache__"
        folders = [beside] if os.access(beside if beside.exists() else _FOLDER, os.W_OK) else []
        with suppress(RuntimeError):  # there is no home
            folders.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "geminga")
    return [folder / f"geminga-kernels-{sys.implementation.cache_tag}.compiled" for folder in folders]


def _stamp() -> str:
    """Return a text that changes with Python, numba, the machine, and the loops' source."""
    parts = [str(_FOLDER), sys.implementation.cache_tag or "", platform.machine()]
    parts += [version("numba"), version("llvmlite")]
    for name in ("columnar_kernels.py", "columnar_encoding_kernels.py", "columnar_fields.py"):
        found = (_FOLDER / name).stat()
        parts += [str(found.st_mtime_ns), str(found.st_size)]
    return " ".join(parts)


def is_cached() -> bool:
    """Return whether the marker file has the present stamp: machine, versions and source folder."""
    try:
        stamp = _stamp()
    except (OSError, PackageNotFoundError):
        return False
    for mark in _places()[:1]:
        with suppress(OSError):
            return mark.read_text() == stamp
    return False


def leave_mark() -> None:
    """Write the marker file after everything was compiled and cached."""
    stamp = _stamp()
    for mark in _places():
        try:
            mark.parent.mkdir(parents=True, exist_ok=True)
            part = mark.with_suffix(f".{os.getpid()}")
            part.write_text(stamp)
            part.replace(mark)
        except OSError:
            continue
        return
