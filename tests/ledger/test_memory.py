"""What only the memory store does; the rest is in test_contract."""

from __future__ import annotations

from geminga.ledger.memory import MemoryStore


def test_wakes_its_owner_once_until_polled() -> None:
    calls: list[int] = []
    store = MemoryStore(lambda: calls.append(1))
    ledger = store.create_ledger("a")
    store.append(ledger, b"x", lambda error: None)
    store.append(ledger, b"y", lambda error: None)
    assert len(calls) == 1
    assert store.poll() == 2
    store.put("k", b"v")
    assert len(calls) == 1, "a write without a callback wakes nobody"
    store.put("k", b"v", lambda error: None)
    assert len(calls) == 2


def test_needs_no_wakeup() -> None:
    store = MemoryStore()
    store.put("k", b"v", lambda error: None)
    assert store.poll() == 1
