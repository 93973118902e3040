"""Compilation of the columnar loops in another process; see `geminga.wire.compiled`."""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import threading
from contextlib import suppress

from geminga import pythons
from geminga.wire import compiled

logger = logging.getLogger("geminga")

COMPILING_SECONDS_MAX = 120.0


class _CompilerProcess:
    """The compiler process, if it runs, and whether compiling was given up."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.finished = False
        self.lock = threading.Lock()


_elsewhere = _CompilerProcess()


def compile_elsewhere() -> None:
    """Start the compiler process, or check its outcome."""
    state = _elsewhere
    if state.finished or not state.lock.acquire(blocking=False):
        return  # another thread checks
    try:
        process = state.process
        if process is None:
            state.process = _start()
            if state.process is None:
                compiled.use()  # no Python to start: compile in this process
            return
        ended = process.poll()
        if ended is None:
            return
        state.process, state.finished = None, True
        if ended == 0 and compiled.is_cached():
            compiled.use()
            return
        logger.warning(
            "tables are still made without compiled loops, which is slower: compiling them ended with %d. "
            "Set NUMBA_CACHE_DIR to a writable folder, or %s=compiled to have each process compile",
            ended, compiled.VARIABLE,
        )  # fmt: skip
    finally:
        state.lock.release()


def _start() -> subprocess.Popen[bytes] | None:
    try:
        arguments, environment = pythons.command("geminga.client.compiling")
    except pythons.NoPython:
        return None
    try:
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=environment,
        )  # fmt: skip
    except OSError as error:
        logger.debug("no process to compile in: %s", error)
        return None
    atexit.register(_end)
    return process


def _end() -> None:
    """Kill the compiler process when the program ends."""
    process = _elsewhere.process
    if process is not None and process.poll() is None:
        process.kill()
        process.wait()


def compile_all() -> None:
    """Compile every loop, into the cache, by using each once."""
    import pyarrow as pa

    from geminga.wire.columnar import EXTRA_COLUMNS, MESSAGE_COLUMNS, decode_entries, encode_table
    from geminga.wire.metadata import RawEntry, build_entry
    from geminga.wire.proto import pulsar_wire_pb2 as pb

    compiled.use()
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
    """Run the compiler process."""
    with suppress(OSError, AttributeError):
        os.nice(19)
    guard = threading.Timer(COMPILING_SECONDS_MAX, os._exit, (1,))
    guard.daemon = True
    guard.start()
    compile_all()
    if _keeps_what_it_compiles():
        compiled.leave_mark()


def _keeps_what_it_compiles() -> bool:
    from geminga.wire import columnar_kernels

    return columnar_kernels.KEPT


compiled.when_worthwhile(compile_elsewhere)
