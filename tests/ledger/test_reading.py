import dataclasses
import errno
import functools
import os
import random
import threading

import pytest
from doubles import raising
from waiting import eventually, poll_until

from geminga.errors import StoreBusy, StoreDamaged, StoreError, StoreStopped
from geminga.ledger.api import PrefetchRequest, ReadAhead
from geminga.ledger.catalog.catalog import Catalog
from geminga.ledger.reading import reading
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from tests.support.disk_stores import FOLDER, append_all, open_store, succeeded
from tests.support.faulty_filesystem import FaultyFile, FaultyFileSystem, SimulatedDisk


@pytest.fixture
def reads(monkeypatch):
    """Record the sizes of the reads that reach the disk."""
    sizes: list[int] = []
    read = FaultyFile.read

    def counted(self: FaultyFile, size: int, offset: int) -> bytes:
        sizes.append(size)
        return read(self, size, offset)

    monkeypatch.setattr(FaultyFile, "read", counted)
    return sizes


def written(settings: StoreSettings, entries: list[bytes], **changes: object) -> tuple[FileStore, int]:
    """A store with the entries in a ledger, and its id; no entry stays in memory."""
    settings = dataclasses.replace(settings, **{"cache_bytes": 0, **changes})
    store = open_store(SimulatedDisk(), settings)
    return store, append_all(store, store.create_ledger("a"), entries)


@pytest.fixture
def settings(small_settings):
    return dataclasses.replace(
        small_settings, log_file_bytes=1 << 20, checkpoint_log_bytes=1 << 20, checkpoint_records=10_000
    )


def test_recent_entries_are_read_from_memory(settings, reads):
    store, ledger = written(settings, [b"%d" % number for number in range(50)], cache_bytes=100_000)
    reads.clear()
    assert store.read(ledger, 10, entries_max=5, bytes_max=100) == [b"%d" % n for n in range(10, 15)]
    assert reads == []


def test_a_run_of_entries_is_one_read(settings, reads):
    entries = [bytes([number]) * 20 for number in range(50)]
    store, ledger = written(settings, entries)
    reads.clear()
    assert store.read(ledger, 10, entries_max=30, bytes_max=10_000) == entries[10:40]
    assert reads == [600]


def test_small_entries_of_other_ledgers_in_between_are_read_over(settings, reads):
    with open_store(SimulatedDisk(), dataclasses.replace(settings, cache_bytes=0)) as store:
        ledger, other = store.create_ledger("a"), store.create_ledger("b")
        for number in range(6):
            store.append(ledger, bytes([number]) * 20, succeeded)
            store.append(other, bytes(50 if number != 2 else 40_000), succeeded)
            store.poll()
        reads.clear()
        assert store.read(ledger, 0, entries_max=9, bytes_max=10_000) == [bytes([n]) * 20 for n in range(6)]
        assert len(reads) == 2
        assert sum(reads) < 2000


def test_cold_and_recent_entries_come_in_one_answer(settings):
    store = open_store(SimulatedDisk(), dataclasses.replace(settings, cache_bytes=1200))
    entries = [bytes([number]) * 50 for number in range(40)]
    ledger = append_all(store, store.create_ledger("a"), entries, poll_each=True)
    assert 0 < len(store.state.ledgers.loaded[ledger].recent) < 40
    assert store.read(ledger, 0, entries_max=99, bytes_max=10**6) == entries
    assert store.read(ledger, 0, entries_max=39, bytes_max=10**6) == entries[:39]
    for bytes_max in (1, 49, 50, 51, 1700, 1999):
        found = store.read(ledger, 0, entries_max=99, bytes_max=bytes_max)
        assert found == entries[: max(1, bytes_max // 50)]
    store.close()


def test_the_cache_stays_within_its_limit(settings):
    with open_store(SimulatedDisk(), dataclasses.replace(settings, cache_bytes=40_000)) as store:
        ledgers = [store.create_ledger(f"topic-{number}") for number in range(20)]
        for number in range(600):
            store.append(ledgers[number * 7 % 20], bytes(40), succeeded)
            if number % 9 == 0:
                store.poll()
        store.poll()
        held = [entry for ledger in ledgers for entry in store.state.ledgers.loaded[ledger].recent]
        assert 0 < len(held) <= 40_000 // 240
        for ledger in ledgers:
            assert len(store.read(ledger, 0, entries_max=99, bytes_max=10**6)) == 30


def test_an_unreadable_disk_names_the_entry(settings, monkeypatch):
    store, ledger = written(settings, [b"entry"])
    with monkeypatch.context() as context:
        context.setattr(FaultyFile, "read", raising(OSError(5, "Input/output error")))
        with pytest.raises(StoreError, match=rf"ledger {ledger}, entry 0 \(log-0000000001 at offset"):
            store.read(ledger, 0, entries_max=1, bytes_max=10)
    assert store.read(ledger, 0, entries_max=1, bytes_max=10) == [b"entry"]


# --- a bad disk ---
def test_a_bad_sector_between_entries_takes_none_of_them(settings, monkeypatch):
    """The bad sector is in an entry of another ledger, over which both are read together."""
    with open_store(SimulatedDisk(), dataclasses.replace(settings, cache_bytes=0)) as store:
        ledger, other = store.create_ledger("a"), store.create_ledger("b")
        for number in range(12):
            store.append(ledger, bytes([number]) * 20, succeeded)
            store.append(other, bytes(50 if number % 4 < 3 else 40_000), succeeded)
            store.poll()
        read = FaultyFile.read

        def harmed(self: FaultyFile, size: int, offset: int) -> bytes:
            if size > 20:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return read(self, size, offset)

        monkeypatch.setattr(FaultyFile, "read", harmed)
        expected = [bytes([number]) * 20 for number in range(12)]
        for first in range(12):
            assert store.read(ledger, first, entries_max=12, bytes_max=10_000) == expected[first:]


def failing_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list: every read of a file fails with the errno that is its first element."""
    code, read = [0], FaultyFile.read

    def maybe(self: FaultyFile, size: int, offset: int) -> bytes:
        if code[0]:
            raise OSError(code[0], os.strerror(code[0]))
        return read(self, size, offset)

    monkeypatch.setattr(FaultyFile, "read", maybe)
    return code


def test_a_temporary_disk_failure_loses_nothing(settings, monkeypatch):
    """Entries unreadable for some seconds do not count as damaged, and so are not skipped for good."""
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    store, ledger = written(settings, [b"0", b"1", b"2"], unreadable_seconds=30.0)
    code = failing_reads(monkeypatch)
    code[0] = errno.EIO
    for _ in range(5):
        with pytest.raises(StoreError, match="cannot be read now") as caught:
            store.read(ledger, 0, entries_max=3, bytes_max=100)
        assert not isinstance(caught.value, StoreDamaged)
        clock[0] += 5
    code[0] = 0
    assert store.read(ledger, 0, entries_max=3, bytes_max=100) == [b"0", b"1", b"2"]
    assert store.damage.found == []
    clock[0] += 3600  # another outage counts from its own start
    code[0] = errno.EIO
    with pytest.raises(StoreError, match="cannot be read now"):
        store.read(ledger, 0, entries_max=3, bytes_max=100)
    for _ in range(6):
        clock[0] += 5
        with pytest.raises(StoreError):
            store.read(ledger, 0, entries_max=3, bytes_max=100)
    assert [(each.first_entry_id, each.last_entry_id) for each in store.damage.found] == [(0, 0)]
    store.close()


def test_remembered_unreadable_entries_are_bounded(settings):
    with open_store(SimulatedDisk(), settings) as store:
        for number in range(5000):
            assert store.reading._is_to_be_tried_again(0, number)
        assert len(store.reading._suspects) <= reading._SUSPECTS_MAX


def test_unreadable_entries_are_judged_without_the_catalog(monkeypatch):
    """The catalog is on the same disk: the owner's thread does not query it after a failed read."""
    disk = SimulatedDisk()
    settings = StoreSettings(cache_bytes=0, unreadable_seconds=0.0)
    with FileStore.open(FOLDER, settings=settings, filesystem=FaultyFileSystem(disk)) as store:
        ledger = store.create_ledger("a")
        done: list[StoreError | None] = []
        for number in range(50):
            store.append(ledger, b"%d" % number, done.append)
        poll_until(store, lambda: len(done) == 50)
    filesystem = FaultyFileSystem(disk)
    store = FileStore.open(FOLDER, settings=settings, filesystem=filesystem)
    code = failing_reads(monkeypatch)
    code[0] = errno.EIO
    errors: list[StoreError | None] = []
    ahead = ReadAhead(10, 1000)
    store.fetch(
        ledger, 0, entries_max=5, bytes_max=100, ahead=ahead, done=lambda found, error: errors.append(error)
    )
    eventually(lambda: store._finished)
    filesystem.answers.clear()
    opened: list[bool] = []
    rescue = threading.Timer(20, lambda: (opened.append(True), filesystem.answers.set()))
    rescue.start()
    poll_until(store, lambda: bool(errors))
    rescue.cancel()
    filesystem.answers.set()
    assert not opened, "the owner waited for the catalog"
    assert isinstance(errors[0], StoreDamaged)
    store.close()


def test_fetch_without_read_ahead_returns_only_entries_in_memory(tmp_path):
    with FileStore.open(tmp_path, settings=StoreSettings(cache_bytes=0)) as store:
        ledger = store.create_ledger("t")
        done: list[StoreError | None] = []

        def ignore(entries: list[bytes], error: StoreError | None) -> None:
            raise AssertionError("nothing was read")

        store.append(ledger, b"a", done.append)
        assert store.fetch(ledger, 0, entries_max=1, bytes_max=9, ahead=None, done=ignore) == [b"a"]
        poll_until(store, lambda: bool(done))
        assert store.fetch(ledger, 0, entries_max=1, bytes_max=9, ahead=None, done=ignore) is None
        assert store.read(ledger, 0, entries_max=1, bytes_max=9) == [b"a"]


@pytest.mark.parametrize("seed", range(5))
def test_thousands_of_reads_through_a_disk_that_stalls_fails_and_loses_ledgers(seed):
    """Every read gets right bytes or one error; memory is bounded; closing does not wait for the disk."""
    chance, disk = random.Random(seed), SimulatedDisk()
    filesystem = FaultyFileSystem(disk)
    settings = StoreSettings(
        cache_bytes=0, reads_waiting_max=500, read_ahead_bytes_max=64 * 1024, unreadable_seconds=0.0,
        checkpoint_records=500, log_file_bytes=1 << 18,
    )  # fmt: skip
    store = FileStore.open(FOLDER, settings=settings, filesystem=filesystem)
    ledgers = [store.create_ledger(f"t{number}") for number in range(20)]
    written = []
    for ledger in ledgers:
        for entry in range(100):
            store.append(ledger, b"%d:%d:" % (ledger, entry) + bytes(500), written.append)
    poll_until(store, lambda: len(written) == 2000)
    heard: dict[int, int] = {}
    asked = busy = 0
    alive = set(ledgers)

    def taken(number: int, ledger: int, first: int, entries: list[bytes], error: StoreError | None) -> None:
        heard[number] = heard.get(number, 0) + 1
        assert error is None or not entries
        for at, entry in enumerate(entries):
            assert entry.startswith(b"%d:%d:" % (ledger, first + at))

    for number in range(4000):
        if number % 500 == 100:
            filesystem.answers.clear()
        if number % 500 == 300:
            filesystem.answers.set()
        if number % 800 == 700:
            gone = chance.choice(sorted(alive))
            alive.discard(gone)
            store.delete_ledgers([gone])
        ledger, first = chance.choice(sorted(alive)), chance.randrange(100)
        done = functools.partial(taken, number, ledger, first)
        try:
            found = store.fetch(
                ledger, first, entries_max=5, bytes_max=10**6, ahead=ReadAhead(20, 5000), done=done
            )
            asked += 1
            if found is not None:
                done(found, None)
        except StoreBusy:
            busy += 1
        assert len(store.reading.pool._pending) <= 500
        # Reads of two threads, and one that was begun below the limit.
        assert store.reading.pool._undelivered_bytes <= 64 * 1024 + 3 * 6000
        if number % 7 == 0:
            store.poll()
    filesystem.answers.set()
    poll_until(store, lambda: len(heard) == asked)
    assert busy, "the limit was reached"
    filesystem.answers.clear()
    for number in range(10_000, 10_100):
        ledger, first = chance.choice(sorted(alive)), chance.randrange(100)
        store.fetch(
            ledger, first, entries_max=5, bytes_max=10**6, ahead=ReadAhead(20, 5000),
            done=functools.partial(taken, number, ledger, first),
        )  # fmt: skip
        asked += 1
    threading.Timer(0.5, filesystem.answers.set).start()
    store.close()
    assert len(heard) == asked
    assert set(heard.values()) == {1}, "each is told once"


def test_many_requests_to_read_ahead_are_read_and_leave_room_for_reads_of_entries(tmp_path):
    settings = StoreSettings(cache_bytes=0, reads_waiting_max=2)
    with FileStore.open(tmp_path / "store", settings=settings) as store:
        ledger, reported = store.create_ledger("a"), list[StoreError | None]()
        store.append(ledger, b"entry", succeeded)
        poll_until(store, lambda: not store.is_writing)
        for number in range(100):
            assert not store.bring(PrefetchRequest(((f"{number}", f"{number}"),)), reported.append)
        assert store.read(ledger, 0, entries_max=1, bytes_max=100) == [b"entry"]
        found: list[list[bytes]] = []
        store.fetch(
            ledger, 0, entries_max=1, bytes_max=100, ahead=ReadAhead(1, 100),
            done=lambda entries, _: found.append(entries),
        )  # fmt: skip
        poll_until(store, lambda: len(reported) == 100 and bool(found))
        assert reported == [None] * 100
        assert found == [[b"entry"]]


def test_requests_to_read_ahead_fail_when_the_store_closes(tmp_path, monkeypatch):
    monkeypatch.setattr("geminga.ledger.reading.pool.STOP_SECONDS_MAX", 0.05)
    may_read, reported = threading.Event(), list[StoreError | None]()
    store = FileStore.open(tmp_path / "store", settings=StoreSettings(reads_waiting_max=2))
    monkeypatch.setattr(Catalog, "read_ahead", lambda *_: may_read.wait(60))
    try:
        for number in range(5):
            store.bring(PrefetchRequest(((f"{number}", f"{number}"),)), reported.append)
        assert not reported
        store.close()
        store.bring(PrefetchRequest((("5", "5"),)), reported.append)
    finally:
        may_read.set()
    assert [type(error) for error in reported] == [StoreStopped] * 6
