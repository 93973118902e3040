"""Reading an uncached file does not change what the operating system caches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from geminga.ledger import uncached_files
from geminga.ledger.filesystem import RealFileSystem
from geminga.ledger.uncached_files import UncachedFile, UncachedFileSystem

PIECE = 256 * 1024
DATA = bytes(range(256)) * (4 * PIECE // 256)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """File of four pieces, all of them on the disk."""
    path = str(tmp_path / "file")
    file = RealFileSystem().open(path, create=True)
    file.write([DATA], 0)
    file.sync()
    file.close()
    return path


def opened(path: str) -> UncachedFile:
    return UncachedFileSystem().open_to_read(path)


def test_content_is_that_of_a_normal_read(path: str) -> None:
    file = opened(path)
    assert file.read(PIECE, PIECE) == DATA[PIECE : 2 * PIECE]
    assert file.read(2 * PIECE, 3 * PIECE) == DATA[3 * PIECE :], "it ends"
    assert file.read(1, 4 * PIECE) == file.read(0, 0) == b""
    file.close()


def test_pages_that_were_not_cached_do_not_stay_cached(path: str) -> None:
    file = opened(path)
    file.let_go(0, 0)
    if file.is_in_memory(0, PIECE) or file.is_in_memory(3 * PIECE, PIECE):
        pytest.skip("this file system is in memory, or does not tell")
    plain = RealFileSystem().open_to_read(path)
    os.posix_fadvise(plain._fd, 0, 0, os.POSIX_FADV_RANDOM)
    plain.read(PIECE, 0)
    for piece in range(4):
        assert file.read(PIECE, piece * PIECE) == DATA[piece * PIECE : (piece + 1) * PIECE]
    assert file.is_in_memory(0, PIECE), "somebody else reads that"
    assert not any(file.is_in_memory(piece * PIECE, PIECE) for piece in (1, 2, 3))
    for each in (file, plain):
        each.close()


def test_files_are_read_without_reports_of_the_cache(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncached_files, "_CAN_TELL", False)
    file = opened(path)
    assert file.read(PIECE, 0) == DATA[:PIECE]
    file.close()
