import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from geminga.ledger.files import filesystem as module
from geminga.ledger.files.filesystem import BUFFERS_PER_WRITE_MAX, Buffer, RealFileSystem, write_fully


class TricklingFile:
    """Takes a few bytes a call."""

    def __init__(self, bytes_max: int) -> None:
        self.content = bytearray()
        self.bytes_max = bytes_max

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        assert len(buffers) <= BUFFERS_PER_WRITE_MAX
        assert offset == len(self.content)
        data = b"".join(buffers)[: self.bytes_max]
        self.content += data
        return len(data)


@pytest.mark.parametrize("bytes_max", [1, 2, 3, 7, 100, 10**6])
def test_short_writes_are_finished(bytes_max):
    buffers: list[Buffer] = [b"abc", b"", memoryview(b"defg"), bytearray(b"h"), b"ijklmnop" * 3]
    file = TricklingFile(bytes_max)
    assert write_fully(file, buffers, 0) == 32
    assert file.content == b"abcdefgh" + b"ijklmnop" * 3


def test_more_buffers_than_one_call_takes_are_written():
    buffers: list[Buffer] = [b"%d," % n for n in range(3 * BUFFERS_PER_WRITE_MAX + 1)]
    file = TricklingFile(10**6)
    write_fully(file, buffers, 0)
    assert bytes(file.content) == b"".join(buffers)


def test_a_write_of_zero_bytes_is_an_error():
    file = TricklingFile(0)
    with pytest.raises(OSError, match="took no bytes"):
        write_fully(file, [b"x"], 0)
    assert write_fully(TricklingFile(0), [b""], 0) == 0


def test_a_file_whose_closing_fails_is_closed_once(tmp_path, monkeypatch):
    """On a second close the number may belong to a socket."""
    closed: list[int] = []

    def close(fd: int) -> None:
        closed.append(fd)
        os.close(fd)
        raise OSError(errno.EDQUOT, "no more for you")

    file = RealFileSystem().open(str(tmp_path / "a"), create=True)
    lock, _ = RealFileSystem().lock(str(tmp_path / "lock"))
    assert lock is not None
    monkeypatch.setattr(module, "os", SimpleNamespace(**{**vars(os), "close": close}))
    for _ in range(2):
        with contextlib.suppress(OSError):
            file.close()
        with contextlib.suppress(OSError):
            lock.release()
    assert len(closed) == len(set(closed)) == 2


PRINTING = """
import os, sys
sys.path.insert(0, {source!r})
from geminga.ledger.files.filesystem import RealFileSystem
filesystem = RealFileSystem()
lock, _ = filesystem.lock("lock")
files = [filesystem.open("a", create=True), filesystem.open_to_read("a")]
files[0].write([b"what was stored"], 0)
for descriptor in range(3):
    try:
        os.write(descriptor, b"Fatal Python error: out of memory")
    except OSError:
        pass
assert filesystem.lock("lock")[0] is None
"""


@pytest.mark.skipif(os.name != "posix", reason="of the shell")
def test_output_without_standard_streams_gets_into_no_file(tmp_path):
    source = str(Path(module.__file__).parents[2])
    given = [sys.executable, "-P", "-c", PRINTING.format(source=source)]
    shell = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    ended = subprocess.run([*shell, *given], cwd=tmp_path, timeout=120, check=False)
    assert ended.returncode == 0
    assert (tmp_path / "a").read_bytes() == b"what was stored"
    assert b"Fatal" not in (tmp_path / "lock").read_bytes()
