"""Contract of every store: one suite, run on all of them."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from doubles import raising

from geminga.errors import LedgerNotFound, StoreError, StoreStopped
from geminga.ledger.api import EntryStore, ReadAhead, StoredValue
from geminga.ledger.memory import MemoryStore
from geminga.ledger.store import FileStore
from tests.support.disk_stores import ledger_with
from tests.support.store_auditor import StoreAuditor


class Receipts:
    """Collects callbacks and waits for them as an owner does: woken, then polling."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.is_woken = True
        self.order: list[object] = []
        self.errors: list[StoreError] = []

    def of(self, name: object) -> Callable[[StoreError | None], None]:
        def done(error: StoreError | None) -> None:
            self.order.append(name)
            if error is not None:
                self.errors.append(error)

        return done

    def wait(self, store: EntryStore, count: int) -> list[object]:
        while len(self.order) < count:
            assert not self.is_woken or self.ready.wait(60), f"no wakeup after {self.order}"
            self.ready.clear()
            store.poll()
        return self.order


@pytest.fixture
def receipts():
    return Receipts()


@pytest.fixture(params=["memory", "file", "file interval", "file never", "file without threads"])
def store(request, tmp_path, receipts, small_settings):
    kind, _, mode = request.param.partition(" ")
    opened: EntryStore
    if kind == "memory":
        opened = MemoryStore(receipts.ready.set)
    else:
        threads = mode != "without threads"
        sync = mode if mode in ("interval", "never") else "always"
        opened = FileStore.open(
            tmp_path / "store", sync=sync, wakeup=receipts.ready.set, settings=small_settings, threads=threads
        )
        receipts.is_woken = threads
    yield opened
    opened.close()


def test_a_run_is_appended_and_reported_as_one(store, receipts):
    ledger = store.create_ledger("a")
    entries = [bytes([n]) * (n + 1) for n in range(30)]
    assert store.append(ledger, b"x", receipts.of("before")) == 0
    assert store.append_run(ledger, entries, receipts.of("run")) == 1
    assert store.append(ledger, b"y", receipts.of("behind")) == 31
    assert store.append_run(ledger, [b"z"], receipts.of("of one")) == 32
    assert receipts.wait(store, 4) == ["before", "run", "behind", "of one"]
    assert store.read(ledger, 0, entries_max=99, bytes_max=10_000) == [b"x", *entries, b"y", b"z"]
    (info,) = store.ledgers("a")
    assert (info.entries, info.size_bytes) == (33, sum(map(len, entries)) + 3)
    with pytest.raises(LedgerNotFound):
        store.append_run(ledger + 1, entries, receipts.of("never"))


def test_callbacks_run_in_order_of_the_calls_and_in_poll(store, receipts):
    ledger = ledger_with(store, "a", b"x", receipts.of("append"))
    store.keys.put("k", b"v", receipts.of("put"))
    store.keys.merge("k", b"d", receipts.of("merge"))
    store.keys.delete("k", receipts.of("delete"))
    store.keys.delete("never was", receipts.of("delete nothing"))
    store.append(ledger, b"y", receipts.of("append again"))
    store.delete_ledgers([ledger], receipts.of("delete ledger"))
    store.delete_ledgers([ledger], receipts.of("delete it again"))
    store.delete_ledgers([], receipts.of("delete none"))
    assert receipts.order == []
    assert receipts.wait(store, 9) == [
        "append", "put", "merge", "delete", "delete nothing", "append again", "delete ledger",
        "delete it again", "delete none",
    ]  # fmt: skip
    assert receipts.errors == []
    assert store.poll() == 0


def test_read_respects_its_limits(store, receipts):
    ledger = store.create_ledger("a")
    entries = [bytes([n]) * 10 for n in range(20)]
    for entry in entries:
        store.append(ledger, entry, receipts.of(None))

    def check() -> None:
        assert store.read(ledger, 0, entries_max=100, bytes_max=1000) == entries
        assert store.read(ledger, 5, entries_max=3, bytes_max=1000) == entries[5:8]
        assert store.read(ledger, 5, entries_max=100, bytes_max=35) == entries[5:8]
        assert store.read(ledger, 5, entries_max=100, bytes_max=1) == entries[5:6]
        assert store.read(ledger, 19, entries_max=5, bytes_max=100) == entries[19:]
        assert store.read(ledger, 20, entries_max=5, bytes_max=100) == []
        assert store.read(ledger, 1000, entries_max=5, bytes_max=100) == []
        assert store.read(ledger, -1, entries_max=2, bytes_max=100) == entries[:2]

    check()  # before they are durable
    receipts.wait(store, 20)
    check()
    for _ in range(50):  # push them out of any cache
        store.append(store.create_ledger("b"), bytes(200), receipts.of(None))
    receipts.wait(store, 70)
    check()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_an_entry(store, receipts, kind):
    ledger = ledger_with(store, "a", kind(b""), receipts.of(None))
    store.append(ledger, kind(b"some bytes"), receipts.of(None))
    store.append(ledger, kind(bytes(20_000)), receipts.of(None))
    receipts.wait(store, 3)
    found = store.read(ledger, 0, entries_max=9, bytes_max=10**6)
    assert found == [b"", b"some bytes", bytes(20_000)]
    assert all(type(entry) is bytes for entry in found)


def test_fetch_returns_the_entries_of_read_at_once_or_later(store, receipts):
    ledger = store.create_ledger("a")
    entries = [b"%d" % number * 150 for number in range(10)]
    for entry in entries:
        store.append(ledger, entry, receipts.of("entry"))
    receipts.wait(store, 10)
    for first in (0, 3, 9, 10):
        later: list[tuple[list[bytes], StoreError | None]] = []

        def done(entries: list[bytes], error: StoreError | None, later: list[Any] = later) -> None:
            later.append((entries, error))
            receipts.order.append("fetched")

        before = len(receipts.order)
        found = store.fetch(
            ledger, first, entries_max=2, bytes_max=10_000, ahead=ReadAhead(4, 10_000), done=done
        )
        if found is None:
            receipts.wait(store, before + 1)
            ((found, error),) = later
            assert error is None
            assert found == entries[first : first + 4]
        else:
            assert found == entries[first : first + 2]
    with pytest.raises(LedgerNotFound):
        store.fetch(77, 0, entries_max=1, bytes_max=1, ahead=ReadAhead(1, 1), done=lambda *_: None)


def test_ledgers_are_listed_by_owner(store, receipts):
    first, other, second = store.create_ledger("a"), store.create_ledger("b"), store.create_ledger("a")
    store.append(second, b"12345", receipts.of(None))
    assert [(i.ledger_id, i.owner, i.entries, i.size_bytes) for i in store.ledgers("a")] == [
        (first, "a", 0, 0),
        (second, "a", 1, 5),
    ]
    assert [i.ledger_id for i in store.ledgers("b")] == [other]
    assert store.ledgers("nobody") == []
    store.delete_ledgers([first])
    assert [i.ledger_id for i in store.ledgers("a")] == [second]


def test_released_ledgers_can_be_used_again(store, receipts):
    ledger, other = store.create_ledger("a"), store.create_ledger("b")
    store.append(ledger, b"one", receipts.of(1))
    store.release([ledger, other, 999])
    store.append(ledger, b"two", receipts.of(2))
    receipts.wait(store, 2)
    store.release([ledger])
    assert store.read(ledger, 0, entries_max=9, bytes_max=99) == [b"one", b"two"]
    assert store.append(ledger, b"three", receipts.of(3)) == 2
    store.delete_ledgers([other])
    store.release([other])
    receipts.wait(store, 3)
    assert store.read(ledger, 0, entries_max=9, bytes_max=99) == [b"one", b"two", b"three"]


def test_unknown_and_deleted_ledgers_are_refused(store, receipts):
    ledger = ledger_with(store, "a", b"x", receipts.of("x"))
    store.delete_ledgers([ledger], receipts.of("delete"))
    for ledger_id in (ledger, 4711, -1):
        with pytest.raises(LedgerNotFound, match=str(ledger_id)):
            store.append(ledger_id, b"y", receipts.of("y"))
        with pytest.raises(LedgerNotFound, match=str(ledger_id)):
            store.read(ledger_id, 0, entries_max=1, bytes_max=1)
    assert receipts.wait(store, 2) == ["x", "delete"]
    assert store.create_ledger("a") > ledger


def test_keys_have_a_base_and_deltas(store):
    assert store.keys.get("k") is None
    store.keys.merge("k", b"1")
    assert store.keys.get("k") == StoredValue(b"", (b"1",))
    store.keys.put("k", b"base")
    assert store.keys.get("k") == StoredValue(b"base", ())
    store.keys.merge("k", b"2")
    store.keys.merge("k", b"3")
    assert store.keys.get("k") == StoredValue(b"base", (b"2", b"3"))
    store.keys.delete("k")
    assert store.keys.get("k") is None
    store.keys.merge("k", b"4")
    assert store.keys.get("k") == StoredValue(b"", (b"4",))
    store.keys.put("empty", b"")
    assert store.keys.get("empty") == StoredValue(b"", ())


def test_scan_returns_keys_with_a_prefix_in_order(store, receipts):
    names = ["a", "ab", "b/1", "b/10", "b/2", "b/ü", "b/\U0001f600", "c", "b"]
    for round_number in range(3):
        for name in names:
            store.keys.put(name, f"{name}{round_number}".encode(), receipts.of(None))
            store.keys.merge(name, b"d", receipts.of(None))
        receipts.wait(store, len(names) * 2 * (round_number + 1))
    expected = [(name, StoredValue(f"{name}2".encode(), (b"d",))) for name in sorted(names)]
    assert list(store.keys.scan("")) == expected
    assert list(store.keys.scan("b/")) == [item for item in expected if item[0].startswith("b/")]
    assert list(store.keys.scan("zzz")) == []
    for prefix in ("", "b/", "b"):
        for after in ("", "a", "b", "b/", "b/1", "b/10", "b/11", "c", "zzz"):
            behind = [item for item in expected if item[0].startswith(prefix) and item[0] > after]
            assert list(store.keys.scan(prefix, after=after)) == behind
            assert list(store.keys.names(prefix, after=after)) == [name for name, _ in behind]


@pytest.mark.parametrize("walk", ["scan", "names"])
def test_walks_over_keys_tolerate_changes_while_they_run(store, walk):
    for number in range(30):
        store.keys.put(f"k{number:02}", b"v")
    seen = []
    for found in getattr(store.keys, walk)("k"):
        key = found if walk == "names" else found[0]
        seen.append(key)
        store.keys.delete(key)
        store.keys.put(f"other{key}", b"w")
        store.keys.delete("k29")
    assert seen == [f"k{number:02}" for number in range(29)]


def test_other_callbacks_run_after_one_raises(store, receipts, caplog):
    ledger = ledger_with(store, "a", b"x", receipts.of(1))
    store.append(ledger, b"y", raising(RuntimeError("the callback's own fault")))
    store.append(ledger, b"z", receipts.of(2))
    assert receipts.wait(store, 2) == [1, 2]
    assert "the callback's own fault" in caplog.text


def test_callbacks_may_write(store, receipts):
    ledger = ledger_with(
        store, "a", b"first", lambda error: store.append(ledger, b"second", receipts.of("second"))
    )
    store.keys.put("k", b"v", receipts.of("put"))
    assert receipts.wait(store, 2)[:2] == ["put", "second"]
    assert store.read(ledger, 0, entries_max=9, bytes_max=99) == [b"first", b"second"]


def test_close_runs_pending_callbacks_and_can_be_repeated(store, receipts):
    ledger = ledger_with(store, "a", b"x", receipts.of("x"))
    store.keys.put("k", b"v", receipts.of("k"))
    assert store.failure is None
    store.close()
    assert receipts.order == ["x", "k"]
    store.close()
    assert isinstance(store.failure, StoreStopped)
    for call in (
        lambda: store.create_ledger("a"),
        lambda: store.append(ledger, b"y", receipts.of("y")),
        lambda: store.delete_ledgers([ledger]),
        lambda: store.keys.put("k", b"v"),
        lambda: store.keys.merge("k", b"v"),
        lambda: store.keys.delete("k"),
    ):
        with pytest.raises(StoreStopped):
            call()


def test_deleting_missing_keys_and_ledgers_changes_nothing(store, receipts):
    ledger = ledger_with(store, "a", b"entry", receipts.of("entry"))
    store.delete_ledgers([], receipts.of("none"))
    store.delete_ledgers([ledger + 1], receipts.of("not yet there"))
    ledger_with(store, "b", b"later", receipts.of("later"))
    assert receipts.wait(store, 4) == ["entry", "none", "not yet there", "later"]
    assert not receipts.errors
    assert store.read(ledger, 0, entries_max=1, bytes_max=99) == [b"entry"]
    assert store.damage.lost_entries_max(ledger) == 0


def test_stats_count_operations(store, receipts):
    ledger = store.create_ledger("a")
    for _ in range(5):
        store.append(ledger, bytes(100), receipts.of(None))
    receipts.wait(store, 5)
    stats = store.stats()
    assert (stats.appended_entries, stats.appended_bytes, stats.pending_writes) == (5, 500, 0)
    assert stats.disk_bytes >= 500


def test_random_operations_agree_with_a_model(store, receipts):
    auditor = StoreAuditor()
    ledgers: list[int] = []
    for number in range(40):
        ledgers.append(auditor.create_ledger(store, f"topic-{number % 3}"))
        for entry in range(5):
            auditor.append(store, ledgers[(number * entry) % len(ledgers)], bytes([number]) * (50 * entry))
        auditor.merge(store, f"cursor-{number % 5}", b"%d" % number)
        if number % 4 == 3:
            auditor.delete_ledgers(store, [ledgers.pop(0), ledgers.pop(0)])
            auditor.put(store, f"cursor-{number % 5}", b"base")
            auditor.delete(store, f"cursor-{(number + 1) % 5}")
        store.poll()
        if number % 10 == 9:
            auditor.check_running(store)
    while auditor.receipted < len(auditor.operations):
        store.poll()
    auditor.check_running(store)
