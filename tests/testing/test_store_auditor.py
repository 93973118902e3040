"""The auditor must see what a store does wrong: it is shown stores that lie."""

from collections.abc import Callable

import pytest

from geminga.ledger.memory import MemoryStore
from tests.support.store_auditor import StoreAuditor


def make() -> tuple[StoreAuditor, MemoryStore, int]:
    """Three receipted writes, then two that are not."""
    auditor, store = StoreAuditor(), MemoryStore()
    ledger = auditor.create_ledger(store, "a")
    auditor.append(store, ledger, b"one")
    auditor.merge(store, "cursor", b"+1")
    store.poll()
    auditor.append(store, ledger, b"two")
    auditor.put(store, "cursor", b"base")
    return auditor, store, ledger


def rebuild(*steps: Callable[[MemoryStore], object]) -> MemoryStore:
    store = MemoryStore()
    for step in steps:
        step(store)
    return store


def nothing(error: object) -> None:
    pass


CREATE = lambda store: store.create_ledger("a")  # noqa: E731
ONE = lambda store: store.append(0, b"one", nothing)  # noqa: E731
TWO = lambda store: store.append(0, b"two", nothing)  # noqa: E731
MERGE = lambda store: store.keys.merge("cursor", b"+1")  # noqa: E731
PUT = lambda store: store.keys.put("cursor", b"base")  # noqa: E731


@pytest.mark.parametrize(
    "steps", [[CREATE, ONE, MERGE], [CREATE, ONE, MERGE, TWO], [CREATE, ONE, MERGE, TWO, PUT]]
)
def test_prefixes_with_all_durable_writes_are_accepted(steps):
    auditor, _, _ = make()
    auditor.check_restarted(rebuild(*steps))


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [CREATE],
        [CREATE, ONE],
        [CREATE, MERGE],
        [CREATE, ONE, MERGE, PUT],
        [CREATE, ONE, MERGE, MERGE],
        [CREATE, TWO, ONE, MERGE],
        [CREATE, ONE, MERGE, TWO, TWO],
        [CREATE, CREATE, ONE, MERGE],
    ],
)
def test_any_other_content_is_rejected(steps):
    auditor, _, _ = make()
    with pytest.raises(AssertionError, match="no allowed state"):
        auditor.check_restarted(rebuild(*steps))


def test_a_running_store_must_show_all_writes():
    auditor, store, ledger = make()
    auditor.check_running(store)
    store.append(ledger, b"behind the auditor's back", nothing)
    with pytest.raises(AssertionError):
        auditor.check_running(store)


def test_ids_given_twice_are_noticed():
    auditor, store, ledger = make()
    auditor.operations.append(("append", ledger, 1, b"again"))
    with pytest.raises(AssertionError, match="out of turn"):
        auditor.check_running(store)
    auditor.operations[-1] = ("create", ledger, "a")
    with pytest.raises(AssertionError, match="given twice"):
        auditor.check_running(store)


def test_writes_after_a_restart_are_audited_too():
    auditor, _, _ = make()
    store = rebuild(CREATE, ONE, MERGE)
    auditor.check_restarted(store)
    auditor.append(store, 0, b"three")
    auditor.delete(store, "cursor")
    store.poll()
    auditor.check_running(store)
    with pytest.raises(AssertionError):
        auditor.check_restarted(rebuild(CREATE, ONE, MERGE))
