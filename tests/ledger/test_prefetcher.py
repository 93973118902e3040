"""Prefetcher: `done` is called when the requested rows were read, or with an error."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from geminga.errors import StoreBusy, StoreError, StoreStopped
from geminga.ledger.api import PrefetchRequest
from geminga.ledger.prefetcher import READ_AT_ONCE, Prefetcher
from geminga.ledger.read_pool import ReadPool
from geminga.ledger.reading import ReadEntries

FIRST = 3 * READ_AT_ONCE


def wanted(number: int) -> PrefetchRequest:
    return PrefetchRequest(((f"{number}", f"{number}"),))


class Catalog:
    """Catalog that reads once it may, and records its reads."""

    def __init__(self) -> None:
        self.may_read = threading.Event()
        self.asked = threading.Event()
        self.read: list[str] = []
        self.fails: dict[str, Exception] = {}

    def read_ahead(self, what: PrefetchRequest) -> None:
        self.asked.set()
        assert self.may_read.wait(60)
        ((key, _),) = what.keys
        self.read.append(key)
        if key in self.fails:
            raise self.fails[key]


class Owner:
    def __init__(self, waiting_max: int = 100) -> None:
        self.finished: deque[Callable[[], None]] = deque()
        self.signal = threading.Event()
        self.catalog = Catalog()
        self.pool: ReadPool[ReadEntries] = ReadPool(
            self.finished, self.signal.set, threads=1, wait_seconds=1.0, waiting_max=waiting_max,
            undelivered_bytes_max=1,
        )  # fmt: skip
        catalogs: list[Any] = [self.catalog]
        self.prefetcher = Prefetcher(self.pool, catalogs, lambda error: StoreError(f"unreadable: {error}"))
        self.reported: list[tuple[int, str]] = []
        self.pool.start()

    def bring(self, number: int) -> None:
        self.prefetcher.bring(
            wanted(number), lambda error: self.reported.append((number, "" if error is None else str(error)))
        )

    def poll(self, count: int) -> None:
        while len(self.reported) < count:
            assert self.signal.wait(60)
            self.signal.clear()
            while self.finished:
                self.finished.popleft()()


@pytest.fixture
def owner():
    owner = Owner()
    yield owner
    owner.catalog.may_read.set()
    owner.pool.stop(ReadEntries(error=StoreStopped("closed")))


def test_callbacks_run_in_order_and_one_job_reads_many_requests(owner):
    jobs = 0
    submit = owner.pool.submit

    def counted(*arguments: Any) -> None:
        nonlocal jobs
        jobs += 1
        submit(*arguments)

    owner.pool.submit = counted  # type: ignore[method-assign]
    for number in range(FIRST):
        owner.bring(number)
    assert not owner.reported
    owner.catalog.may_read.set()
    owner.poll(FIRST)
    assert owner.reported == [(number, "") for number in range(FIRST)]
    assert owner.catalog.read == [str(number) for number in range(FIRST)]
    assert jobs <= 5


def test_other_requests_are_read_after_one_fails(owner):
    owner.catalog.fails = {"1": StoreError("damaged"), "2": ValueError("odd")}
    owner.catalog.may_read.set()
    for number in range(4):
        owner.bring(number)
    owner.poll(4)
    assert owner.reported == [(0, ""), (1, "damaged"), (2, "unreadable: odd"), (3, "")]


def test_other_callbacks_run_after_one_that_requests_more_or_raises(owner):
    owner.catalog.may_read.set()

    def odd(error: StoreError | None) -> None:
        owner.bring(1)
        raise ValueError("of the callback")

    owner.prefetcher.bring(wanted(0), odd)
    owner.bring(2)
    owner.poll(2)
    assert sorted(owner.reported) == [(1, ""), (2, "")]


def test_a_request_is_refused_when_too_many_are_pending():
    owner = Owner(waiting_max=1)
    try:
        owner.pool.submit("other", ReadEntries, lambda _: None)
        reported: list[StoreError | None] = []
        owner.prefetcher.bring(wanted(0), reported.append)
        assert isinstance(reported[0], StoreBusy)
        assert len(reported) == 1
    finally:
        owner.pool.stop(ReadEntries(error=StoreStopped("closed")))


def test_pending_requests_fail_when_the_store_closes(monkeypatch):
    monkeypatch.setattr("geminga.ledger.read_pool.STOP_SECONDS_MAX", 0.05)
    owner = Owner()
    owner.bring(0)
    assert owner.catalog.asked.wait(60), "the disk hangs on it"
    owner.bring(1)
    refusal = StoreStopped("closed")
    assert owner.pool.stop(ReadEntries(error=refusal)) is False
    owner.prefetcher.refuse(refusal)
    assert sorted(owner.reported) == [(0, "closed"), (1, "closed")]
    owner.catalog.may_read.set()
