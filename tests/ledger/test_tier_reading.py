"""Reads of offloaded ledgers may wait for their storage; other calls do not."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import Blocked, eventually, join_threads, start_thread

from geminga.ledger.files.filesystem import RealFileSystem
from geminga.ledger.tier import reading as tier_reading
from geminga.ledger.tier.folder_storage import FolderStorage
from geminga.ledger.tier.reading import TierReader
from geminga.ledger.tier.writing import InlineOffloadWriting, OffloadRequest
from geminga.offload.manifest import OffloadedLedger

TOPIC = "persistent://public/default/t"


class SlowStorage(FolderStorage):
    """Storage whose reads wait for ``answers``; ``sources`` are the files opened for reading."""

    def __init__(self, folder: Path) -> None:
        super().__init__(RealFileSystem(), str(folder))
        self.answers = threading.Event()
        self.answers.set()
        self.asked = threading.Event()
        self.sources: list[Any] = []

    def open(self, path: str) -> Any:
        source = super().open(path)
        self.sources.append(source)
        read = source.read

        def slowly(size: int = -1) -> bytes:
            self.asked.set()
            assert self.answers.wait(120)
            return read(size)

        source.read = slowly
        return source


def offloaded(place: FolderStorage, name: str) -> OffloadedLedger:
    making = InlineOffloadWriting(place, OffloadRequest(name, TOPIC, -1, 1, name))
    making.add([b"entry %d" % number for number in range(3)])
    written = making.finish()
    return OffloadedLedger(1, 0, name, written.size, written.crc, name, 3, 0, 0, 21, None, None, 1)


def at_once(call: Callable[[], object]) -> None:
    """Run a call, and check that it does not block."""
    join_threads(start_thread(call))


@pytest.mark.parametrize("ends", ["forget", "close", "others"])
def test_no_other_call_waits_for_a_reader_of_slow_storage(tmp_path, ends, monkeypatch):
    monkeypatch.setattr(tier_reading, "FILES_MAX", 1)
    place = SlowStorage(tmp_path)
    record, other = offloaded(place, "a"), offloaded(place, "b")
    reader = TierReader(place)
    place.answers.clear()
    reading = Blocked(reader.job("a", record, 0, 9, 999))
    assert place.asked.wait(60)
    if ends == "others":  # their readers continue, too
        opening = threading.Event()
        opens = place.open

        def opened(path: str) -> Any:
            opening.set()
            return opens(path)

        monkeypatch.setattr(place, "open", opened)
        second = start_thread(reader.job("b", other, 0, 9, 999))
        assert opening.wait(60)
        place.answers.set()
        second.join(60)
    else:
        at_once(reader.close if ends == "close" else lambda: reader.forget("a"))
        assert reading.outcome is None
        place.answers.set()
    assert reading.ended().entries == [b"entry 0", b"entry 1", b"entry 2"]
    eventually(lambda: place.sources[0].closed)
