"""Behaviour of the memory store alone; the rest is in test_contract."""

from geminga.ledger.memory import MemoryStore


def test_wakes_its_owner_once_until_polled():
    calls: list[int] = []
    store = MemoryStore(lambda: calls.append(1))
    ledger = store.create_ledger("a")
    store.append(ledger, b"x", lambda error: None)
    store.append(ledger, b"y", lambda error: None)
    assert len(calls) == 1
    assert store.poll() == 2
    store.keys.put("k", b"v")
    assert len(calls) == 1, "a write without a callback wakes nobody"
    store.keys.put("k", b"v", lambda error: None)
    assert len(calls) == 2


def test_callbacks_run_in_slices_keep_their_order_and_new_ones_wake_the_owner():
    calls: list[int] = []
    store = MemoryStore(lambda: calls.append(1))
    reported: list[int] = []

    def put(number: int) -> None:
        store.keys.put("k", b"v", lambda error: reported.append(number))

    for number in range(1_000):
        put(number)
    put(1_000)
    store.keys.put("k", b"v", lambda error: put(1_001))
    polls = 0
    while store.stats().pending_writes:
        before = len(reported)
        store.poll(lambda: True)
        assert 0 < len(reported) - before <= 64
        polls += 1
        if polls == 3:
            put(2_000)
    assert polls >= 16
    assert reported == [*range(1_001), 2_000, 1_001]
    assert len(calls) >= 2, "for what came while it was polled"
    put(0)
    store.close()
    assert reported[-1] == 0
