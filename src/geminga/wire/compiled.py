"""Whether compiled loops are at hand, or tables are made without them.

A process's first tables must not wait for a compiler: numba takes several seconds for the loops of
`columnar_kernels` and `columnar_encoding_kernels`, once a machine and version. Where they lie compiled in
numba's cache they are loaded at once, in a third of a second. Where they don't, tables are made by
`columnar_interpreted`, until somebody has had them compiled (`geminga.client.compiling`), which pays after
some hundred thousand messages.

The environment variable ``GEMINGA_KERNELS`` says otherwise: ``compiled`` compiles at the first table and
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
"""Messages that a process makes tables of before it has loops compiled: what that costs, some seconds of
CPU, is a few million messages' worth."""
VARIABLE = "GEMINGA_KERNELS"
CHOICES = ("auto", "compiled", "interpreted")

_FOLDER = Path(__file__).parent


class _State:
    """What is known in this process."""

    def __init__(self) -> None:
        self.choice = ""
        self.at_hand = False
        self.messages = 0


_state = _State()
_compile: Callable[[], None] | None = None


def choice() -> str:
    """What the environment says. Raises `InvalidConfiguration`."""
    chosen = os.environ.get(VARIABLE) or "auto"
    if chosen not in CHOICES:
        raise InvalidConfiguration(f"{VARIABLE}={chosen!r} is not allowed; allowed: {', '.join(CHOICES)}")
    return chosen


def at_hand() -> bool:
    """Whether to use compiled loops; from any thread."""
    if _state.at_hand:
        return True
    if not _state.choice:
        _state.choice = choice()
        _state.at_hand = _state.choice == "compiled" or (_state.choice == "auto" and is_cached())
    return _state.at_hand


def use() -> None:
    """From here on, whether they have to be compiled first or not: for processes that shall pay early."""
    _state.at_hand = True


def when_worthwhile(compile_them: Callable[[], None]) -> None:
    """Have this called, again and again, from when on compiling pays until `use` was; on any thread."""
    global _compile
    _compile = compile_them


def note(messages: int) -> None:
    """So many messages went through a table; from any thread."""
    if _state.at_hand or _state.choice != "auto":
        return
    _state.messages += messages
    if _state.messages >= MESSAGES_BEFORE_COMPILING and _compile is not None:
        _compile()


# --- the mark that says that everything is compiled -------------------------------------------------


def _places() -> list[Path]:
    """Where the mark may lie: where numba keeps what it compiles, which goes by who may write where."""
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
    """Changes with whatever a compiled loop depends on: Python, numba, the machine, the loops' source."""
    parts = [str(_FOLDER), sys.implementation.cache_tag or "", platform.machine()]
    parts += [version("numba"), version("llvmlite")]
    for name in ("columnar_kernels.py", "columnar_encoding_kernels.py", "columnar_fields.py"):
        found = (_FOLDER / name).stat()
        parts += [str(found.st_mtime_ns), str(found.st_size)]
    return " ".join(parts)


def is_cached() -> bool:
    """Whether somebody has left the mark for this very machine, version and place."""
    try:
        stamp = _stamp()
    except (OSError, PackageNotFoundError):
        return False
    for mark in _places()[:1]:
        with suppress(OSError):
            return mark.read_text() == stamp
    return False


def leave_mark() -> None:
    """Everything is compiled and kept."""
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
