"""File written by another thread: in order, with a limit on pending pieces, and reported errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from geminga.ledger import threaded_writer
from geminga.ledger.threaded_writer import ThreadedWriter

pytestmark = pytest.mark.timeout(120)


class File:
    """File that records its calls and their threads; each write waits for its turn."""

    def __init__(self) -> None:
        self.did: list[object] = []
        self.threads = {threading.current_thread().name}
        self.turns = threading.Semaphore(1000)
        self.error: OSError | None = None

    def _note(self, what: object) -> None:
        self.threads.add(threading.current_thread().name)
        self.did.append(what)

    def write(self, data: bytes) -> object:
        assert self.turns.acquire(timeout=60)
        if self.error is not None:
            raise self.error
        self._note(bytes(data))
        return None

    def finish(self) -> None:
        self._note("finished")

    def abandon(self) -> None:
        self._note("abandoned")


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadPoolExecutor]:
    monkeypatch.setattr(threaded_writer, "PIECE_BYTES", 4)
    with ThreadPoolExecutor(1, "beside") as pool:
        yield pool


def opened(thread: ThreadPoolExecutor) -> tuple[ThreadedWriter, File]:
    made: list[File] = []

    def create() -> File:
        made.append(File())
        return made[0]

    return ThreadedWriter(create, thread), made[0]


def test_pieces_are_written_in_order_by_that_thread(thread: ThreadPoolExecutor) -> None:
    writing, file = opened(thread)
    for each in (b"ab", memoryview(b"cde"), b"f", b"ghijklm", b"n"):
        writing.write(each)
    writing.finish()
    assert file.did == [b"abcde", b"fghijklm", b"n", "finished"]
    assert file.threads == {"beside_0"}


def test_a_caller_that_is_faster_than_the_thread_waits(thread: ThreadPoolExecutor) -> None:
    writing, file = opened(thread)
    file.turns = threading.Semaphore(0)
    count = threaded_writer.PIECES_WAITING_MAX

    def write_more() -> None:
        for number in range(count + 3):
            writing.write(b"%04d" % number)

    writer = threading.Thread(target=write_more)
    writer.start()
    for _ in range(2):
        file.turns.release()
    while len(file.did) < 2:
        assert writer.is_alive(), "one has to wait with so many that are not written"
    file.turns.release(1000)
    writer.join(60)
    assert not writer.is_alive()
    writing.finish()
    assert file.did == [b"%04d" % number for number in range(count + 3)] + ["finished"]


def test_an_exception_of_the_thread_is_raised_to_the_caller(thread: ThreadPoolExecutor) -> None:
    writing, file = opened(thread)
    file.error = OSError("no such disk")
    reported: list[str] = []
    for number in range(threaded_writer.PIECES_WAITING_MAX + 2):
        try:
            writing.write(b"%04d" % number)
        except OSError as error:
            reported.append(str(error))
            file.error = None
    assert reported[:1] == ["no such disk"]
    assert set(reported) == {"no such disk"}
    with pytest.raises(OSError, match="no such disk"):
        writing.finish()
    file.did.clear()
    writing.abandon()
    assert file.did == ["abandoned"]

    def create() -> File:
        raise OSError("no such folder")

    with pytest.raises(OSError, match="no such folder"):
        ThreadedWriter(create, thread)


def test_an_abandoned_file_is_not_written_any_more(thread: ThreadPoolExecutor) -> None:
    writing, file = opened(thread)
    file.turns = threading.Semaphore(1)
    for each in (b"1234", b"5678", b"9abc"):
        writing.write(each)
    threading.Timer(0.0, file.turns.release, (1000,)).start()
    writing.abandon()
    assert file.did[-1] == "abandoned"
