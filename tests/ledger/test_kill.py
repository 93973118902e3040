"""A real process killed with SIGKILL under load, again and again on the same store."""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from geminga.ledger.store import FileStore

# Appends numbered entries to two ledgers of its own and merges a cursor, and reports each receipt on its
# standard output as (kind, ledger or 0, number), after the store has said that it is on disk.
WRITER = """
import os, struct, sys, threading
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore

ready = threading.Event()
settings = StoreSettings(
    log_file_bytes=262144, checkpoint_log_bytes=131072, checkpoint_records=500, cache_bytes=65536,
    garbage_bytes_min=65536, rewrite_live_fraction=0.5, deletion_delay_seconds=0.0,
)
store = FileStore.open(sys.argv[1], wakeup=ready.set, settings=settings)
report = struct.Struct("<BQQ")
out = bytearray()

def receipt(kind, ledger, number):
    def done(error):
        if error is None:
            out.extend(report.pack(kind, ledger, number))
    return done

number = 0
cursor = store.keys.get("cursor")
count = 0 if cursor is None else int(cursor.base or b"0") + len(cursor.deltas)
ledgers = [store.create_ledger("topic-a"), store.create_ledger("topic-b")]
while True:
    for _ in range(20):
        ledger = ledgers[number % 2]
        entry = b"%d:%d:" % (ledger, number // 2) + bytes(number * 37 % 900)
        assert store.append(ledger, entry, receipt(1, ledger, number // 2)) == number // 2
        number += 1
    count += 1
    store.keys.merge("cursor", b"+", receipt(2, 0, count))
    if count % 50 == 0:
        store.keys.put("cursor", b"%d" % count, receipt(2, 0, count))
        for owner in ("topic-a", "topic-b"):
            old = [info.ledger_id for info in store.ledgers(owner)][:-2]
            store.delete_ledgers(old, receipt(3, 0, old[-1]) if old else None)
    ready.wait(0.5)
    ready.clear()
    store.poll()
    if out:
        os.write(1, out)
        out.clear()
"""
_REPORT = struct.Struct("<BQQ")


def read_reports(data: bytes) -> tuple[dict[int, int], int]:
    """Return (confirmed entries of each ledger, confirmed merges)."""
    entries: dict[int, int] = {}
    merges = 0
    for kind, ledger, number in _REPORT.iter_unpack(data[: len(data) - len(data) % _REPORT.size]):
        if kind == 1:
            entries[ledger] = number + 1
        elif kind == 2:
            merges = max(merges, number)
    return entries, merges


def check(folder: Path, entries: dict[int, int], merges: int) -> None:
    store = FileStore.open(folder)
    assert store.damage.found == []
    owned = {info.ledger_id: info for owner in ("topic-a", "topic-b") for info in store.ledgers(owner)}
    for ledger, count in entries.items():
        assert owned[ledger].entries >= count
        found: list[bytes] = []
        while len(found) < owned[ledger].entries:
            found += store.read(ledger, len(found), entries_max=500, bytes_max=10**6)
        for number, entry in enumerate(found):
            assert entry.startswith(b"%d:%d:" % (ledger, number))
            assert len(entry) == len(b"%d:%d:" % (ledger, number)) + (2 * number + ledger % 2) * 37 % 900
    cursor = store.keys.get("cursor")
    assert merges == 0 or cursor is not None
    if cursor is not None:
        assert int(cursor.base or b"0") + len(cursor.deltas) >= merges
    store.close()


def test_confirmed_writes_survive_kill_9(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    chance = random.Random(5)
    receipted = 0
    for _ in range(12):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        data = bytearray()
        target = chance.randrange(1, 40_000)
        while len(data) < target:
            part = os.read(process.stdout.fileno(), 65536)
            assert part, "the writer ended by itself"
            data += part
        process.send_signal(signal.SIGKILL)
        data += process.stdout.read()
        process.wait()
        process.stdout.close()
        entries, merges = read_reports(bytes(data))
        receipted += sum(entries.values())
        check(folder, entries, merges)
    assert receipted > 500


def test_a_missing_confirmed_entry_is_detected(tmp_path: Path) -> None:
    """The check itself fails when a confirmed entry is missing."""
    store = FileStore.open(tmp_path)
    ledger = store.create_ledger("topic-a")
    store.append(ledger, b"%d:0:" % ledger, lambda error: None)
    store.close()
    check(tmp_path, {ledger: 1}, 0)
    with pytest.raises(AssertionError):
        check(tmp_path, {ledger: 2}, 0)
