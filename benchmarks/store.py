"""The store against the bare disk: how much of a plain write + fdatasync loop it keeps.

Run: ``python benchmarks/store.py [--folder DIR] [--seconds 3]``; prints a Markdown table. CPU seconds are
those of the whole process, all threads.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from geminga.ledger.store import FileStore

MEBIBYTE = 1024 * 1024
Store = FileStore


class Row:
    """One line of the table."""

    def __init__(
        self, name: str, operations: int, size_bytes: int, seconds: float, cpu_seconds: float
    ) -> None:
        self.name = name
        self.rate = operations / seconds
        self.megabytes = size_bytes / seconds / 1e6
        self.cpu_micros = cpu_seconds / operations * 1e6
        self.cpu_per_gigabyte = cpu_seconds / max(1, size_bytes) * 1e9

    def __str__(self) -> str:
        return (
            f"| {self.name} | {self.rate:,.0f} | {self.megabytes:,.0f} | {self.cpu_micros:,.2f} "
            f"| {self.cpu_per_gigabyte:,.2f} |"
        )


def bare_loop(folder: Path, group_bytes: int, seconds: float, *, allocate: bool) -> Row:
    """Write a group, fdatasync, again: what the disk gives a single writer."""
    fd = os.open(folder / "bare", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    group = os.urandom(group_bytes)
    limit = 128 * MEBIBYTE
    count = offset = 0
    cpu, start = time.process_time(), time.perf_counter()
    while time.perf_counter() - start < seconds:
        if offset + group_bytes > limit or count == 0:
            os.ftruncate(fd, 0)
            offset = 0
            if allocate:
                os.posix_fallocate(fd, 0, limit)
        os.pwrite(fd, group, offset)
        os.fdatasync(fd)
        offset += group_bytes
        count += 1
    took, cpu = time.perf_counter() - start, time.process_time() - cpu
    os.close(fd)
    os.unlink(folder / "bare")
    name = f"bare write + fdatasync of {group_bytes // 1024:,} KiB{', allocated' if allocate else ''}"
    return Row(name, count, count * group_bytes, took, cpu)


class Load:
    """Keeps a window of operations in flight on a store, as a broker with eager producers would."""

    def __init__(self, open_store: Callable[[Callable[[], None]], Store], window_bytes: int) -> None:
        self._ready = threading.Event()
        self.store = open_store(self._ready.set)
        self._window_bytes = window_bytes
        self._done = 0

    def _on_done(self, error: Exception | None) -> None:
        if error is not None:
            raise error
        self._done += 1

    def run(self, name: str, submit: Callable[[Store, int, Callable[..., None]], int], seconds: float) -> Row:
        """``submit(store, index, done)`` does operation ``index`` and returns its bytes."""
        store, on_done, ready = self.store, self._on_done, self._ready
        self._done = sent = size_bytes = 0
        size = submit(store, 0, on_done)
        sent, size_bytes = 1, size
        window = max(1, self._window_bytes // size)
        burst = max(1, min(200, window // 4))
        cpu, start = time.process_time(), time.perf_counter()
        end = start + seconds
        while time.perf_counter() < end:
            while sent - self._done < window and time.perf_counter() < end:
                for index in range(sent, sent + burst):
                    size_bytes += submit(store, index, on_done)
                sent += burst
                if ready.is_set():
                    ready.clear()
                    store.poll()
            ready.wait()
            ready.clear()
            store.poll()
        while self._done < sent:
            ready.wait()
            ready.clear()
            store.poll()
        return Row(name, sent, size_bytes, time.perf_counter() - start, time.process_time() - cpu)

    def close(self) -> None:
        self.store.close()


def appends(store: Store, topics: int, entry_bytes: int) -> Callable[[Store, int, Callable[..., None]], int]:
    ledgers = [store.create_ledger(f"topic-{n}") for n in range(topics)]
    entry = os.urandom(entry_bytes)

    def submit(store: Store, index: int, done: Callable[..., None]) -> int:
        store.append(ledgers[index % topics], entry, done)
        return entry_bytes

    return submit


def merges(keys: int, delta_bytes: int) -> Callable[[Store, int, Callable[..., None]], int]:
    names = [f"cursor/topic-{n}" for n in range(keys)]
    delta = os.urandom(delta_bytes)

    def submit(store: Store, index: int, done: Callable[..., None]) -> int:
        store.keys.merge(names[index % keys], delta, done)
        return delta_bytes

    return submit


def measure(root: Path, seconds: float, sync: str) -> list[Row]:
    rows = []
    cases: list[tuple[str, int, int, int]] = [
        ("105 KB entries, 1 topic", 105_000, 1, 16 * MEBIBYTE),
        ("105 KB entries, 10,000 topics", 105_000, 10_000, 16 * MEBIBYTE),
        ("150 B entries, 1 topic", 150, 1, 2 * MEBIBYTE),
        ("150 B entries, 10,000 topics", 150, 10_000, 2 * MEBIBYTE),
        ("150 B entries, 1 in flight", 150, 1, 150),
    ]
    for name, entry_bytes, topics, window in cases:
        folder = root / "store"
        shutil.rmtree(folder, ignore_errors=True)
        load = Load(lambda wakeup, folder=folder: FileStore.open(folder, sync=sync, wakeup=wakeup), window)  # type: ignore[misc]
        rows.append(load.run(f"sync={sync}: {name}", appends(load.store, topics, entry_bytes), seconds))
        if entry_bytes == 150 and topics == 1 and window > entry_bytes:
            rows.append(load.run(f"sync={sync}: 40 B merges, 100 keys", merges(100, 40), seconds))
        load.close()
        shutil.rmtree(folder, ignore_errors=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--folder", type=Path, default=None, help="where to write (default: a temporary folder)"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement")
    parser.add_argument("--sync", default="always", choices=("always", "interval", "never"))
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="store-benchmark-", dir=options.folder))
    try:
        print("| what | operations/s | MB/s | CPU µs/operation | CPU s/GB |")
        print("|---|---:|---:|---:|---:|")
        for group_bytes in (4096, MEBIBYTE, 4 * MEBIBYTE):
            print(bare_loop(root, group_bytes, options.seconds, allocate=False), flush=True)
            print(bare_loop(root, group_bytes, options.seconds, allocate=True), flush=True)
        for row in measure(root, options.seconds, options.sync):
            print(row, flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
