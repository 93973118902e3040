"""Worker processes that write offloaded files: their failures lose and block nothing."""

import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from doubles import raising
from waiting import eventually, poll_until

from geminga._util import pythons
from geminga.errors import StoreError
from geminga.ledger.store import FileStore
from geminga.ledger.tier import claim_file as claims
from geminga.ledger.tier import offload_worker, offloading, tier
from geminga.ledger.tier.offload_worker import (
    OffloadWorker,
    OffloadWriteFailed,
    WorkerLost,
    WorkerOffloadWriting,
    WorkerUnavailable,
)
from geminga.ledger.tier.offload_worker_main import NICENESS, NO_MEMORY
from geminga.ledger.tier.storage import place_at
from geminga.ledger.tier.writing import OffloadRequest
from geminga.ledger.tiered import TieredStore

TOPIC = "persistent://public/default/t"
pytestmark = pytest.mark.skipif(os.name != "posix", reason="sockets are inherited as files")


def at_normal_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start worker processes at normal priority, to finish in time beside other tests."""
    command = pythons.command

    def with_priority(module: str) -> tuple[list[str], dict[str, str]]:
        arguments, environment = command(module)
        return [*arguments[:-1], f"import {module} as m; m.NICENESS = 0; m.main()"], environment

    monkeypatch.setattr(pythons, "command", with_priority)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Store whose worker process writes the files without a limit, at normal priority."""
    at_normal_priority(monkeypatch)
    store = TieredStore(FileStore.open(tmp_path / "store"), place_at(str(tmp_path / "tier")))
    yield store
    store.close()


def until(store: TieredStore, what: Callable[[], object]) -> None:
    poll_until(store, what, 120)


def fill(store: TieredStore, entries: int = 3) -> int:
    """Create a ledger with this many entries."""
    ledger = store.create_ledger(TOPIC)
    written: list[StoreError | None] = []
    for number in range(entries):
        store.append(ledger, b"entry %d" % number, written.append)
    until(store, lambda: len(written) == entries)
    assert written == [None] * entries
    return ledger


def reported(
    store: TieredStore, ask: Callable[[Callable[[StoreError | None], None]], object]
) -> StoreError | None:
    """Return the error or None that a call passes to its callback."""
    said: list[StoreError | None] = []
    ask(said.append)
    until(store, lambda: said)
    return said[0]


def offload(store: TieredStore, ledger: int) -> StoreError | None:
    return reported(store, lambda done: store.tier.offload(TOPIC, ledger, 1, done, offset=0))


def drop_local(store: TieredStore, ledger: int) -> StoreError | None:
    return reported(store, lambda done: store.tier.drop_local(TOPIC, ledger, done))


def worker_of(store: TieredStore) -> Any:
    return store.tier.writers._process


def child_of(process: Any) -> Any:
    return process._process


def process_of(store: TieredStore) -> subprocess.Popen[bytes]:
    found = worker_of(store)
    assert found is not None
    return child_of(found)


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "tier").rglob("*.parquet"))


def at_each_piece(monkeypatch: pytest.MonkeyPatch, happens: Callable[[OffloadWorker, int], object]) -> None:
    """Call a function before the process gets a piece, with the number of pieces it got before."""
    given, add = [0], WorkerOffloadWriting.add

    def wrapped(writing: WorkerOffloadWriting, piece: Any) -> None:
        happens(writing.process, given[0])
        given[0] += 1
        add(writing, piece)

    monkeypatch.setattr(WorkerOffloadWriting, "add", wrapped)


def kill(process: OffloadWorker) -> None:
    child_of(process).kill()
    child_of(process).wait()


def test_a_file_is_written_by_the_process_and_read_back(store, tmp_path, monkeypatch):
    ledger = fill(store)
    assert offload(store, ledger) is None
    process = process_of(store)
    second = fill(store)
    monkeypatch.setattr(tier, "IDLE_SECONDS_MAX", 0.1)
    assert offload(store, second) is None
    assert process_of(store) is process, "it is kept for the next ledger"
    assert drop_local(store, ledger) is None
    assert ledger not in store.tier.local_ledgers(TOPIC)
    read: list[bytes] = []
    until(store, lambda: _read(store, ledger, read))
    assert read == [b"entry 0", b"entry 1", b"entry 2"]
    until(store, lambda: process.returncode is not None)  # it was idle
    assert worker_of(store) is None
    assert len(files(tmp_path)) == 2


def _read(store: TieredStore, ledger: int, found: list[bytes]) -> bool:
    try:
        found += store.read(ledger, len(found), entries_max=10_000, bytes_max=1 << 20)
    except StoreError:  # not yet
        return False
    return True


def test_concurrent_offloads_do_not_mix(store, tmp_path, monkeypatch):
    """A cancelled offload, whose topic is deleted, still ends while the next one begins."""
    monkeypatch.setattr(offloading, "PIECE_ENTRIES", 400)
    ledgers = [fill(store, 600) for _ in range(3)]
    said: dict[int, StoreError | None] = {}
    for ledger in ledgers:
        store.tier.offload(
            TOPIC, ledger, 1, lambda error, ledger=ledger: said.update({ledger: error}), offset=0
        )
    store.tier._offloads[ledgers[0]].cancel("the topic is deleted")
    until(store, lambda: len(said) == 3)
    assert str(said.pop(ledgers[0])) == "the topic is deleted"
    assert said == dict.fromkeys(ledgers[1:])
    assert len(files(tmp_path)) == 2
    for ledger in ledgers[1:]:
        drop_local(store, ledger)
        read: list[bytes] = []
        while len(read) < 600:
            until(store, lambda ledger=ledger, read=read: _read(store, ledger, read))
        assert read == [b"entry %d" % number for number in range(600)]


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[OffloadWorker]:
    """Process that gives this answer to every request."""
    ours, other = socket.socketpair()
    ours.settimeout(1.0)
    process = OffloadWorker.__new__(OffloadWorker)
    process._socket = ours
    process._process = subprocess.Popen(["sleep", "600"])
    process._answers = ours.makefile("rb")
    with other:
        other.sendall(answer)
        yield process


@pytest.mark.parametrize("answer", [pickle.dumps(7), pickle.dumps((1, 2, 3)), b"null", b"{", b"\xff"])
def test_an_invalid_answer_ends_the_process(answer):
    with answering(answer) as process, pytest.raises(WorkerLost):
        process.ask("finish", "a")
    assert process.is_dead
    process.close()


def test_a_ledger_whose_process_is_killed_stays_and_goes_with_the_next_one(store, tmp_path, monkeypatch):
    at_each_piece(monkeypatch, lambda process, given: given or kill(process))
    ledger = fill(store)
    error = offload(store, ledger)
    assert f"ledger {ledger} cannot be offloaded" in str(error)
    assert "was ended by SIGKILL" in str(error)
    assert ledger in store.tier.local_ledgers(TOPIC)
    until(store, lambda: not store.tier.catalog.suspects())
    assert not files(tmp_path)
    assert offload(store, ledger) is None
    assert len(files(tmp_path)) == 1


def test_a_process_that_hangs_is_killed(store, tmp_path, monkeypatch):
    stopped: list[subprocess.Popen[bytes]] = []

    def stop(process: OffloadWorker, given: int) -> None:
        if not given:
            os.kill(child_of(process).pid, signal.SIGSTOP)
            stopped.append(child_of(process))
            process._socket.settimeout(0.2)

    at_each_piece(monkeypatch, stop)
    ledger = fill(store)
    assert "did not answer for 600 s" in str(offload(store, ledger))
    assert stopped[0].returncode == -signal.SIGKILL
    assert offload(store, ledger) is None
    until(store, lambda: not store.tier.catalog.suspects())
    assert len(files(tmp_path)) == 1


def test_a_store_can_be_closed_while_its_process_hangs(store, monkeypatch):
    stopped: list[subprocess.Popen[bytes]] = []

    def stop(process: OffloadWorker, given: int) -> None:
        os.kill(child_of(process).pid, signal.SIGSTOP)
        stopped.append(child_of(process))

    at_each_piece(monkeypatch, stop)
    said: list[StoreError | None] = []
    store.tier.offload(TOPIC, fill(store), 1, said.append, offset=0)
    until(store, lambda: stopped)
    store.close()
    assert stopped[0].returncode == -signal.SIGKILL


@pytest.mark.parametrize("why", ["forbidden", "no-python", "dies"])
def test_without_a_process_the_thread_writes_the_file(store, tmp_path, monkeypatch, caplog, why):
    if why == "forbidden":
        monkeypatch.setattr(
            offload_worker.subprocess, "Popen", raising(RuntimeError("not by me, says an audit hook"))
        )
    elif why == "no-python":
        monkeypatch.setattr(sys, "executable", "/opt/program")
    else:
        dying = [sys.executable, "-c", "raise SystemExit(3)"]
        monkeypatch.setattr(offload_worker.pythons, "command", lambda module: (dying, dict(os.environ)))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert offload(store, fill(store)) is None
    assert caplog.text.count("process offloads ledgers itself") == 1
    assert len(files(tmp_path)) == 2
    assert worker_of(store) is None


@contextlib.contextmanager
def started(tmp_path: Path) -> Iterator[OffloadWorker]:
    with contextlib.closing(OffloadWorker()) as process:
        process.open(str(tmp_path))
        yield process


def test_a_process_without_standard_streams_reports_storage_errors(tmp_path, monkeypatch):
    """Output printed by a library of the process is neither an answer nor written to a file."""
    arguments, environment = pythons.command("geminga.ledger.tier.offload_worker_main")
    arguments = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *arguments]
    monkeypatch.setattr(offload_worker.pythons, "command", lambda module: (arguments, environment))
    with started(tmp_path) as process:
        with pytest.raises(OffloadWriteFailed, match="File name too long"):
            WorkerOffloadWriting(process, OffloadRequest("a" * 300, TOPIC, -1, 1, "u"))
        making = WorkerOffloadWriting(process, OffloadRequest("a", TOPIC, -1, 1, "u"))
        descriptors = Path(f"/proc/{child_of(process).pid}/fd")
        if descriptors.exists():
            assert {os.readlink(descriptors / str(number)) for number in range(3)} == {os.devnull}
        making.abandon()
        with pytest.raises(OffloadWriteFailed, match="'a'"):
            making.finish()


def test_the_process_has_low_priority_and_ignores_signals_to_its_service(tmp_path):
    with started(tmp_path) as process:
        here = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, child_of(process).pid) == min(here + NICENESS, 19)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(child_of(process).pid, number)
        making = WorkerOffloadWriting(process, OffloadRequest("a", TOPIC, -1, 1, "u"))
        making.add([b"one"])
        assert making.finish().summary.entries == 1


PROGRAM = """
import os, pathlib, signal, sys, time
sys.path.insert(0, {source!r})
from geminga.ledger.tier import offload_worker
from geminga.ledger.store import FileStore
from geminga.ledger.tier.storage import place_at
from geminga.ledger.tiered import TieredStore

def add(writing, piece):
    print(writing.process._process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
offload_worker.WorkerOffloadWriting.add = add
store = TieredStore(FileStore.open("store"), place_at("tier"))
ledger = store.create_ledger({topic!r})
store.append(ledger, b"entry", lambda error: None)
while store.is_writing:
    store.poll()
store.tier.offload({topic!r}, ledger, 1, lambda error: print(error, flush=True), offset=0)
while True:
    store.poll()
    time.sleep(0.01)
"""


def test_the_process_ends_with_a_killed_program(tmp_path):
    # The program cannot be imported again by the process, nor the modules beside it.
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong one')")
    source = str(Path(offload_worker.__file__).parents[2])
    given = [sys.executable, "-P", "-c", PROGRAM.format(source=source, topic=TOPIC)]
    ended = subprocess.run(given, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    number = int(ended.stdout)
    eventually(lambda: not _is_running(number))


def _is_running(number: int) -> bool:
    try:
        os.kill(number, 0)
        state = Path(f"/proc/{number}/stat")
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are set")
def test_full_storage_is_reported_by_the_process_and_retried(store, tmp_path):
    import resource

    assert offload(store, fill(store)) is None
    process, ledger = process_of(store), fill(store)
    for limit in (0, 1000):
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        for _ in range(2):
            error = offload(store, ledger)
            assert f"ledger {ledger} cannot be offloaded to {tmp_path}/tier: " in str(error)
            assert "File too large" in str(error)
            until(store, lambda: not store.tier.catalog.suspects())
            assert len(files(tmp_path)) == 1
            assert not open_files(process.pid, tmp_path)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert offload(store, ledger) is None
    assert process_of(store) is process
    assert not open_files(process.pid, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are set")
def test_a_process_out_of_memory_is_replaced(store, tmp_path):
    """The process keeps its memory while it runs: each ledger after that would fail, too."""
    import resource

    assert offload(store, fill(store)) is None
    process = process_of(store)
    size = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(process.pid, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
    ledger, written = store.create_ledger(TOPIC), list[StoreError | None]()
    for number in range(12):
        store.append(ledger, os.urandom(1 << 20) + b"%d" % number, written.append)
    until(store, lambda: len(written) == 12)
    assert "the offload worker process ran out of memory" in str(offload(store, ledger))
    assert offload(store, ledger) is None
    assert process_of(store) is not process
    assert process.poll() == NO_MEMORY
    assert len(files(tmp_path)) == 2
    until(store, lambda: not store.tier.catalog.suspects())


def open_files(process: int, folder: Path) -> list[str]:
    """Return the files below a folder that a process has open."""
    found = []
    for each in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.readlink(each))
    return [each for each in found if each.startswith(str(folder))]


def test_a_store_can_be_closed_while_its_process_starts(store, tmp_path, monkeypatch):
    """Closing does not wait for the start of a process, and the next opening finds the claim closed."""
    monkeypatch.setattr(
        offload_worker.pythons, "command", lambda module: (["sleep", "600"], dict(os.environ))
    )
    store.tier.offload(TOPIC, fill(store), 1, lambda error: None, offset=0)
    until(store, lambda: worker_of(store))
    process = process_of(store)
    store.close()
    assert process.returncode == -signal.SIGKILL
    assert not claims.load(store.tier.storage).open
    assert not files(tmp_path)


@pytest.mark.parametrize("answer", [b"{}", pickle.dumps((7, None)), pickle.dumps((None, OSError("x")))])
def test_another_program_instead_of_the_process_is_rejected(answer):
    with answering(answer) as process, pytest.raises(WorkerUnavailable):
        process.open("a")
    assert process.is_dead
    assert process._socket.fileno() == -1
