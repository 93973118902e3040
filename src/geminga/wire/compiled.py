"""Whether compiled loops are at hand, and having them made in the background.

A process's first tables must not wait for a compiler: numba takes several seconds for the loops of
`columnar_kernels` and `columnar_encoding_kernels`, once a machine and version. Where they lie compiled in
numba's cache they are loaded at once, in a third of a second. Where they don't, tables are made by
`columnar_interpreted`, and once so many messages came through that it pays, another process compiles them
into the cache, with the least priority. When it is done they are loaded.

The environment variable ``GEMINGA_KERNELS`` says otherwise: ``compiled`` compiles at the first table and
waits for it, ``interpreted`` never compiles.
"""

from __future__ import annotations

import atexit
import logging
import os
import platform
import subprocess
import sys
import threading
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from geminga.errors import InvalidConfiguration

logger = logging.getLogger("geminga")

MESSAGES_BEFORE_COMPILING = 100_000
"""Messages that a process makes tables of before it has loops compiled: what that costs, some seconds of
CPU, is a million messages' worth."""
VARIABLE = "GEMINGA_KERNELS"
CHOICES = ("auto", "compiled", "interpreted")
COMPILING_SECONDS_MAX = 120.0

_FOLDER = Path(__file__).parent


class _State:
    """What is known in this process."""

    def __init__(self) -> None:
        self.choice = ""
        self.at_hand = False
        self.messages = 0
        self.compiling: subprocess.Popen[bytes] | None = None
        self.given_up = False
        self.lock = threading.Lock()


_state = _State()


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
        _state.at_hand = _state.choice == "compiled" or (_state.choice == "auto" and _is_cached())
    return _state.at_hand


def use() -> None:
    """From here on, whether they have to be compiled first or not: for processes that shall pay early."""
    _state.at_hand = True


def note(messages: int) -> None:
    """So many messages went through a table; from any thread."""
    if _state.at_hand or _state.choice != "auto":
        return
    _state.messages += messages
    if _state.messages >= MESSAGES_BEFORE_COMPILING:
        with _state.lock:
            _compile_elsewhere()


# --- the mark that says that everything is compiled -------------------------------------------------


def _places() -> list[Path]:
    """Where the mark may lie: beside what numba keeps, if that folder can be written."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    places = [Path(given)] if given else []
    places.append(_FOLDER / "__pycache__")
    with suppress(RuntimeError):  # there is no home
        places.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "geminga")
    return [place / f"geminga-kernels-{sys.implementation.cache_tag}.compiled" for place in places]


def _stamp() -> str:
    """Changes with whatever a compiled loop depends on: Python, numba, the machine, the loops' source."""
    parts = [str(_FOLDER), sys.implementation.cache_tag or "", platform.machine()]
    parts += [version("numba"), version("llvmlite")]
    for name in ("columnar_kernels.py", "columnar_encoding_kernels.py", "columnar_fields.py"):
        found = (_FOLDER / name).stat()
        parts += [str(found.st_mtime_ns), str(found.st_size)]
    return " ".join(parts)


def _is_cached() -> bool:
    try:
        stamp = _stamp()
    except (OSError, PackageNotFoundError):
        return False
    for mark in _places():
        with suppress(OSError):
            if mark.read_text() == stamp:
                return True
    return False


def _leave_mark() -> None:
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


# --- the process that compiles ----------------------------------------------------------------------


def _compile_elsewhere() -> None:
    """Start it, or see what became of it."""
    process = _state.compiling
    if process is None:
        if _state.given_up:
            return
        process = _state.compiling = _start()
        if process is None:
            _state.at_hand = True  # then it has to be here
        return
    ended = process.poll()
    if ended is None:
        return
    _state.compiling, _state.given_up = None, True
    atexit.unregister(_end)
    if ended == 0 and _is_cached():
        _state.at_hand = True
        return
    logger.warning(
        "tables go on being made without compiled loops, which is slower: compiling them ended with %d. Is "
        "there a folder that can be written? NUMBA_CACHE_DIR names one; %s=compiled compiles in each process",
        ended, VARIABLE,
    )  # fmt: skip


def _start() -> subprocess.Popen[bytes] | None:
    if "python" not in Path(sys.executable or "").name.lower():
        return None  # a program with Python inside: nobody knows how to start it
    paths = [str(_FOLDER.parent.parent), *filter(None, sys.path)]
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", "from geminga.wire.compiled import main; main()"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip
    except OSError as error:
        logger.debug("no process to compile in: %s", error)
        return None
    atexit.register(_end)
    return process


def _end() -> None:
    """The program ends before what it started."""
    process = _state.compiling
    if process is not None and process.poll() is None:
        process.kill()
        process.wait()


def compile_all() -> None:
    """Have every loop compiled, into the cache, by using each once."""
    import pyarrow as pa

    from geminga.wire.columnar import EXTRA_COLUMNS, MESSAGE_COLUMNS, decode_entries, encode_table
    from geminga.wire.metadata import RawEntry, build_entry
    from geminga.wire.proto import pulsar_wire_pb2 as pb

    use()
    value = pa.array([b"v"], pa.binary())
    pairs = pa.array([[("name", "value")]], pa.map_(pa.string(), pa.string()))
    (batch,) = encode_table(pa.table({"value": value, "key": pa.array(["aw=="]), "properties": pairs}))
    body = pb.SingleMessageMetadata(payload_size=1, partition_key="aw==", partition_key_b64_encoded=True)
    body.properties.add(key="name", value="value")
    flagged = len(body.SerializeToString()).to_bytes(4, "big") + body.SerializeToString() + b"v"
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0, num_messages_in_batch=1)
    entries = [build_entry(metadata.SerializeToString(), each) for each in (bytes(batch.body), flagged)]
    columns = (*MESSAGE_COLUMNS, *EXTRA_COLUMNS)
    decode_entries([RawEntry("t", -1, 0, number, entry) for number, entry in enumerate(entries)], columns)


def main() -> None:
    """In a process of its own."""
    with suppress(OSError, AttributeError):
        os.nice(19)
    guard = threading.Timer(COMPILING_SECONDS_MAX, os._exit, (1,))
    guard.daemon = True
    guard.start()
    compile_all()
    if _keeps_what_it_compiles():
        _leave_mark()


def _keeps_what_it_compiles() -> bool:
    from geminga.wire import columnar_kernels

    return columnar_kernels.KEPT
