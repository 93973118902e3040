"""Two layouts for a store, as bare I/O: one shared log, or a journal with a segment file a ledger behind it.

Measures what docs/decisions/store-layout.md decides by: synced appends to one topic and to ten thousand,
and giving space back. No store is involved, only the reads, writes and syncs that each layout needs.

Run: ``python benchmarks/store_layouts.py [--folder DIR] [--megabytes 512]``
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

MEBIBYTE = 1024 * 1024
GROUP_BYTES = 2 * MEBIBYTE
FILE_BYTES = 128 * MEBIBYTE
OPEN_FILES = 500


class Log:
    """Groups appended to files of a fixed size, each synced."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.number = self.offset = 0
        self.fd = -1

    def append(self, buffers: list[bytes]) -> tuple[int, int]:
        size = sum(map(len, buffers))
        if self.fd < 0 or self.offset + size > FILE_BYTES:
            self.close()
            self.number += 1
            self.fd = os.open(self.folder / f"{self.name}-{self.number}", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            os.posix_fallocate(self.fd, 0, FILE_BYTES)
            self.offset = 0
        place = self.number, self.offset
        os.pwritev(self.fd, buffers, self.offset)
        os.fdatasync(self.fd)
        self.offset += size
        return place

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Segments:
    """A file a ledger, written behind the journal; synced before the journal's file is dropped."""

    def __init__(self, folder: Path, topics: int) -> None:
        self.folder = folder
        self.offsets = [0] * topics
        self.waiting: list[list[bytes]] = [[] for _ in range(topics)]
        self.files: dict[int, int] = {}
        self.dirty: set[int] = set()

    def fd(self, topic: int) -> int:
        fd = self.files.pop(topic, -1)
        if fd < 0:
            if len(self.files) >= OPEN_FILES:
                os.close(self.files.pop(next(iter(self.files))))
            fd = os.open(self.folder / f"segment-{topic}", os.O_RDWR | os.O_CREAT)
        self.files[topic] = fd
        return fd

    def flush(self) -> None:
        """Write the waiting entries, then sync every file that was written."""
        for topic in sorted(self.dirty):
            buffers = self.waiting[topic]
            for start in range(0, len(buffers), 512):
                self.offsets[topic] += os.pwritev(
                    self.fd(topic), buffers[start : start + 512], self.offsets[topic]
                )
            self.waiting[topic] = []
        for topic in sorted(self.dirty):
            os.fdatasync(self.fd(topic))
        self.dirty.clear()


def timed(work: Callable[[], int]) -> tuple[float, float, int]:
    cpu, start = time.process_time(), time.perf_counter()
    written = work()
    return time.perf_counter() - start, time.process_time() - cpu, written


def groups(total_bytes: int, entry_bytes: int, topics: int) -> list[list[int]]:
    """The topics of each group's entries, round-robin."""
    per_group = max(1, GROUP_BYTES // entry_bytes)
    count = total_bytes // (per_group * entry_bytes)
    return [[(g * per_group + n) % topics for n in range(per_group)] for g in range(count)]


def shared_log(folder: Path, plan: list[list[int]], entry: bytes) -> int:
    log = Log(folder, "log")
    for group in plan:
        log.append([entry] * len(group))
    log.close()
    return sum(len(group) for group in plan) * len(entry)


def journal_and_segments(folder: Path, plan: list[list[int]], entry: bytes, topics: int) -> int:
    journal, segments = Log(folder, "journal"), Segments(folder, topics)
    unflushed = 0
    for group in plan:
        journal.append([entry] * len(group))
        for topic in group:
            segments.waiting[topic].append(entry)
        segments.dirty.update(group)
        unflushed += len(group) * len(entry)
        if unflushed >= FILE_BYTES:
            segments.flush()
            unflushed = 0
            for number in range(1, journal.number):
                path = folder / f"journal-{number}"
                if path.exists():
                    path.unlink()
    segments.flush()
    journal.close()
    for fd in segments.files.values():
        os.close(fd)
    return sum(len(group) for group in plan) * len(entry)


def rewrite(folder: Path, live_share: float, entry: bytes) -> int:
    """Empty each log file: read the living entries, append them to a new log, sync, delete the file."""
    target, chance, moved = Log(folder, "new"), random.Random(1), 0
    for path in sorted(folder.glob("log-*")):
        fd = os.open(path, os.O_RDONLY)
        batch: list[bytes] = []
        for offset in range(0, FILE_BYTES - len(entry), len(entry)):
            if chance.random() < live_share:
                batch.append(os.pread(fd, len(entry), offset))
            if len(batch) >= min(512, max(1, GROUP_BYTES // len(entry))):
                target.append(batch)
                moved += len(batch)
                batch = []
        if batch:
            target.append(batch)
        os.close(fd)
        path.unlink()
    target.close()
    return moved * len(entry)


def unlink_segments(folder: Path, share: float) -> int:
    paths = sorted(folder.glob("segment-*"))
    for path in random.Random(1).sample(paths, int(len(paths) * share)):
        path.unlink()
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--megabytes", type=int, default=512, help="written in each case")
    options = parser.parse_args()
    print("| what | seconds | CPU s | MB/s |\n|---|---:|---:|---:|")

    def show(name: str, work: Callable[[], int], size_bytes: int) -> None:
        seconds, cpu, _ = timed(work)
        print(f"| {name} | {seconds:.2f} | {cpu:.2f} | {size_bytes / seconds / 1e6:,.0f} |", flush=True)

    for entry_bytes, topics in ((105_000, 1), (105_000, 10_000), (4096, 10_000), (4096, 1)):
        entry = os.urandom(entry_bytes)
        plan = groups(options.megabytes * MEBIBYTE, entry_bytes, topics)
        size_bytes = sum(map(len, plan)) * entry_bytes
        label = f"{entry_bytes:,} B entries, {topics:,} topics"
        folder = Path(tempfile.mkdtemp(prefix="layouts-", dir=options.folder))
        try:
            show(f"shared log: {label}", lambda: shared_log(folder, plan, entry), size_bytes)  # noqa: B023
            show("— giving back 100 %: delete the files", lambda: rewrite(folder, 0.0, entry), size_bytes)  # noqa: B023
            shared_log(folder, plan, entry)
            show("— giving back 75 %: rewrite 25 %", lambda: rewrite(folder, 0.25, entry), size_bytes)  # noqa: B023
            shutil.rmtree(folder)
            folder.mkdir()
            os.sync()
            show(
                f"journal and segments: {label}",
                lambda: journal_and_segments(folder, plan, entry, topics),  # noqa: B023
                size_bytes,
            )
            show("— giving back 75 %: delete the segments", lambda: unlink_segments(folder, 0.75), size_bytes)  # noqa: B023
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        os.sync()


if __name__ == "__main__":
    main()
