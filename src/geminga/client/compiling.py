"""Having the loops of columns compiled by another process, once that pays; see `geminga.wire.compiled`."""

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
    """The process, if there is one, and whether there is no sense in another."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.given_up = False
        self.lock = threading.Lock()


_elsewhere = _CompilerProcess()


def compile_elsewhere() -> None:
    """Start the process, or see what became of it."""
    state = _elsewhere
    if state.given_up or not state.lock.acquire(blocking=False):
        return  # another thread looks
    try:
        process = state.process
        if process is None:
            state.process = _start()
            if state.process is None:
                compiled.use()  # then it has to be here
            return
        ended = process.poll()
        if ended is None:
            return
        state.process, state.given_up = None, True
        if ended == 0 and compiled.is_cached():
            compiled.use()
            return
        logger.warning(
            "tables go on being made without compiled loops, which is slower: compiling them ended with %d. "
            "Is there a folder that can be written? NUMBA_CACHE_DIR names one; with %s=compiled each process "
            "compiles", ended, compiled.VARIABLE,
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
    """The program ends: what it started does too."""
    process = _elsewhere.process
    if process is not None and process.poll() is None:
        process.kill()
        process.wait()


def compile_all() -> None:
    """Have every loop compiled, into the cache, by using each once."""
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
    """In a process of its own."""
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
