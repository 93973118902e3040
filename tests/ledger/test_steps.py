"""Long work of the owner's thread, counted in steps."""

from functools import partial
from itertools import chain, pairwise
from typing import Any

import pytest

from geminga.errors import StoreError, StoreStopped
from geminga.ledger.api import StoredValue
from geminga.ledger.callbacks import REPORTED_AT_ONCE, run_in_steps
from geminga.ledger.settings import StoreSettings
from geminga.ledger.steps import AT_ONCE, emptied, parts, taken
from geminga.ledger.store import FileStore
from tests.support.disk_stores import FOLDER, succeeded
from tests.support.faulty_filesystem import Fate, FaultyFileSystem, Plan, SimulatedDisk

COUNT = 5 * AT_ONCE
CHANGED_KEY = f"key\0{1:06}"
"""None of those that `check` looks at."""


def checkpoints_of(store: FileStore) -> Any:
    return store._checkpoints


def enough() -> bool:
    """Stop after each step of a poll."""
    return True


def note(ran: list[int], number: int, error: StoreError | None) -> None:
    ran.append(number)


@pytest.fixture
def disk():
    return SimulatedDisk()


@pytest.fixture
def open_store(disk):
    def opened(plan: Plan | None = None, **changes: Any) -> FileStore:
        settings = StoreSettings(**{"checkpoint_idle_seconds": 0.0, "preallocate_bytes": 0, **changes})
        filesystem = FaultyFileSystem(disk, plan)
        return FileStore.open(FOLDER, settings=settings, filesystem=filesystem, threads=False)

    return opened


def fill(store: FileStore, count: int = COUNT) -> list[int]:
    """Create ledgers with an entry each, and as many keys with a base and a delta."""
    ledgers = []
    for number in range(count):
        ledgers.append(store.create_ledger(f"owner-{number}"))
        store.append(ledgers[-1], b"%d" % number, succeeded)
        store.keys.put(f"key\0{number:06}", b"base")
        store.keys.merge(f"key\0{number:06}", b"delta")
    while store.is_writing:
        store.poll()
    return ledgers


def check(store: FileStore, ledgers: list[int]) -> None:
    """Check some of everything, whether the checkpoint has reached it or not."""
    for number in range(0, COUNT, AT_ONCE // 2):
        assert store.read(ledgers[number], 0, entries_max=1, bytes_max=99) == [b"%d" % number]
        assert [info.entries for info in store.ledgers(f"owner-{number}")] == [1]
        assert store.keys.get(f"key\0{number:06}") == StoredValue(b"base", (b"delta",))


def test_callbacks_are_run_in_order_a_few_at_a_time():
    seen: list[object] = []

    def fails(error: StoreError | None) -> None:
        seen.append("failed")
        raise KeyError

    error = StoreStopped("no more")
    dones = [*[None] * REPORTED_AT_ONCE, seen.append, fails, *[seen.append] * REPORTED_AT_ONCE]
    assert list(run_in_steps(dones, error)) == [0, REPORTED_AT_ONCE, 2]
    assert seen == [error, "failed", *[error] * REPORTED_AT_ONCE]
    assert not list(run_in_steps([], None))


@pytest.mark.parametrize("count", [0, 1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE])
def test_items_are_split_into_parts(count):
    things = list(range(count))
    assert list(chain.from_iterable(parts(iter(things)))) == things
    assert all(len(part) <= AT_ONCE for part in parts(things))
    left = list(things)
    assert sorted(chain.from_iterable(taken(left))) == things
    assert not left
    for each in (list(things), set(things), dict.fromkeys(things)):
        sizes = [count, *(len(each) for _ in emptied(each))]
        assert sizes[-1] == 0
        assert all(0 < before - after <= AT_ONCE for before, after in pairwise(sizes))


def test_a_groups_callbacks_are_run_in_steps(open_store):
    """Callbacks run in the order of the writes, while others are written; `is_writing` stays True."""
    store, ran = open_store(), list[int]()
    for number in range(300):
        store.keys.put(f"key\0{number}", b"", partial(note, ran, number))
    counts = []
    while len(ran) < 300:
        counts.append(store.poll(enough))
        if len(ran) == 2 * REPORTED_AT_ONCE:
            store.keys.put("late", b"", lambda error: ran.append(300))
            assert store.is_writing
    assert ran == list(range(300))
    assert max(counts) == REPORTED_AT_ONCE
    while store.is_writing:
        store.poll(enough)
    assert ran == list(range(301))
    store.close()


def test_closing_runs_the_callbacks_that_are_left(open_store):
    store, ran = open_store(), list[int]()
    for number in range(300):
        store.keys.put(f"key\0{number}", b"", partial(note, ran, number))
    store.poll(enough)
    assert 0 < len(ran) < 300
    store.close()
    assert ran == list(range(300))


def test_a_callback_that_polls_is_not_run_again(open_store):
    store, ran = open_store(), list[int]()
    for number in range(100):
        store.keys.put(f"key\0{number}", b"", lambda error: ran.append(store.poll()))
    while store.is_writing:
        store.poll(enough)
    assert ran == [0] * 100
    store.close()


def test_a_failed_write_is_reported_in_steps(open_store, monkeypatch):
    store, errors = open_store(), list[StoreError | None]()
    monkeypatch.setattr(store._journal.writer, "write", None)  # any write or sync
    for number in range(200):
        store.keys.put(f"key\0{number}", b"", errors.append)
    assert store.poll(enough) == REPORTED_AT_ONCE
    assert store.failure is not None
    while len(errors) < 200:
        assert store.poll(enough) <= REPORTED_AT_ONCE
    assert all(isinstance(error, StoreStopped) for error in errors)
    store.close()


def test_a_checkpoint_is_collected_and_freed_in_steps(open_store, disk):
    """A step is some hundred ledgers or keys; all are visible at every step, and changes are kept."""
    store = open_store()
    ledgers = fill(store)
    state, checkpoints = store.state, checkpoints_of(store)
    gone = ledgers.pop()
    checkpoints.begin()
    frozen, held, kept, added = [0], list[int](), list[int](), 0
    while checkpoints.is_running:
        snapshot_keys = state.keys.frozen
        store.poll(enough)
        check(store, ledgers)
        frozen.append(sum(each.frozen is not None for each in state.ledgers.loaded.values()))
        held.append(len(snapshot_keys))
        kept.append(len(state.ledgers.loaded))
        if len(frozen) == 3:  # a ledger is deleted, and one created, during the checkpoint
            store.delete_ledgers([gone])
            ledgers.append(store.create_ledger("late"))
        if len(frozen) > 3:
            added += 1
            store.append(ledgers[-1], b"late", succeeded)
            store.keys.merge(CHANGED_KEY, b"")
        assert len(frozen) < 1_000
    steps_of = [abs(after - before) for before, after in pairwise(frozen)]
    assert max(frozen) >= COUNT - 1
    assert max(steps_of) <= AT_ONCE + 1
    assert len(frozen) > 3 * COUNT // AT_ONCE
    assert max(abs(after - before) for before, after in pairwise(kept)) <= AT_ONCE + 1
    assert not state.keys.frozen
    store.poll()
    assert len(store.read(ledgers[-1], 0, entries_max=9_999, bytes_max=1 << 20)) == added
    disk.kill()
    with open_store() as store:
        assert len(store.read(ledgers[-1], 0, entries_max=9_999, bytes_max=1 << 20)) == added
        assert not store.ledgers(f"owner-{COUNT - 1}")
        assert store.keys.get(CHANGED_KEY) == StoredValue(b"base", (b"delta", *[b""] * added))
        check(store, [*ledgers[:-1], gone])


def test_no_other_checkpoint_begins_while_one_is_being_freed(open_store, monkeypatch):
    store = open_store(checkpoint_records=10)
    begun = []
    begin = checkpoints_of(store).begin

    def watched() -> None:
        begun.append(checkpoints_of(store)._thawing)
        begin()

    monkeypatch.setattr(checkpoints_of(store), "begin", watched)
    ledgers = [store.create_ledger(f"owner-{number}") for number in range(COUNT)]
    for _ in range(60):
        for ledger in ledgers[:20]:
            store.append(ledger, b"x", succeeded)
        store.poll(enough)
    while store.is_writing or checkpoints_of(store).is_running:
        store.poll(enough)
    assert len(begun) > 1
    assert not any(begun)
    for ledger in ledgers[:20]:
        assert len(store.read(ledger, 0, entries_max=999, bytes_max=1 << 20)) == 60
    store.close()
    with open_store() as store:
        assert [info.entries for each in range(20) for info in store.ledgers(f"owner-{each}")] == [60] * 20


def test_a_power_loss_while_a_checkpoint_is_freed_loses_nothing(open_store, disk):
    store = open_store()
    ledgers = fill(store)
    checkpoints_of(store).begin()
    while checkpoints_of(store)._thawing is None:
        store.poll(enough)
    store.poll(enough)
    assert checkpoints_of(store).is_running
    for number, fate in enumerate([Fate("none", "none"), Fate("all", "all")]):
        disk = disk.crash(fate)
        filesystem = FaultyFileSystem(disk)
        with FileStore.open(FOLDER, filesystem=filesystem, threads=False) as found:
            check(found, ledgers)
            assert found.damage.found == [], number
