"""Offload storage that stops answering during a request, and the closing of its store."""

import threading
from pathlib import Path
from typing import Any

import pytest
from waiting import poll_until

from geminga._util import exits
from geminga.errors import StoreError
from geminga.ledger import tiered
from geminga.ledger.api import ReadAhead
from geminga.ledger.files.filesystem import RealFileSystem
from geminga.ledger.store import FileStore
from geminga.ledger.tier import claim as tier_claim
from geminga.ledger.tier.folder_storage import FolderStorage
from geminga.ledger.tiered import TieredStore
from tests.ledger.test_tiered import TOPIC, entry

WAIT_SECONDS = 60


class UnresponsiveStorage(FolderStorage):
    """Calls of threads of these names wait until ``answers`` is set; ``asked`` is set when one does."""

    silences: tuple[str, ...] = ()

    worker_location: str | None = None  # not in another process, which would answer

    def __init__(self, folder: Path) -> None:
        super().__init__(RealFileSystem(), str(folder))
        self.answers = threading.Event()
        self.answers.set()
        self.asked = threading.Event()

    def _wait(self) -> None:
        if not self.answers.is_set() and threading.current_thread().name in self.silences:
            self.asked.set()
            self.answers.wait(WAIT_SECONDS)

    def create(self, path: str) -> Any:
        self._wait()
        return super().create(path)

    def open(self, path: str) -> Any:
        self._wait()
        return super().open(path)

    def read(self, path: str) -> bytes | None:
        self._wait()
        return super().read(path)


class Owner:
    """Owner of the store: all callbacks run in `poll`."""

    def __init__(self, folder: Path) -> None:
        self.place = UnresponsiveStorage(folder / "tier")
        self.store = TieredStore(FileStore.open(folder / "store"), self.place)
        self.ledger = self.store.create_ledger(TOPIC)
        self.entries = [entry(number) for number in range(20)]
        errors = [self.reported(lambda done, each=each: self.store.append(self.ledger, each, done))
                  for each in self.entries]  # fmt: skip
        assert errors == [None] * len(errors)

    def reported(self, ask: Any) -> StoreError | None:
        """Return what was reported."""
        found: list[StoreError | None] = []
        ask(found.append)
        return poll_until(self.store, lambda: found)[0]

    def offload(self) -> None:
        assert (
            self.reported(lambda done: self.store.tier.offload(TOPIC, self.ledger, 1, done, offset=0)) is None
        )
        assert self.reported(lambda done: self.store.tier.drop_local(TOPIC, self.ledger, done)) is None

    def ask_to_read(self, reported: Any) -> None:
        self.store.fetch(
            self.ledger, 0, entries_max=5, bytes_max=1 << 20, ahead=ReadAhead(5, 1 << 20), done=reported
        )


@pytest.fixture
def owner(tmp_path, monkeypatch):
    monkeypatch.setattr(tiered, "STOP_SECONDS_MAX", 0.2)
    monkeypatch.setattr(tier_claim, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(exits, "unfinished", set())
    owner = Owner(tmp_path)
    yield owner
    owner.place.answers.set()
    owner.store.close()


THREADS = {
    "claim": ("geminga-offload-claim",),
    "worker": ("geminga-offload",),
    "reader": ("geminga-store-reader-0", "geminga-store-reader-1"),
}


@pytest.mark.parametrize("by", THREADS)
def test_closing_does_not_wait_for_storage_that_does_not_answer(owner, by):
    owner.place.silences = THREADS[by]
    if by == "reader":
        owner.offload()
    owner.place.answers.clear()
    reported: list[Any] = []
    if by == "reader":
        owner.ask_to_read(lambda *found: reported.append(found))
    elif by == "worker":
        owner.store.tier.offload(TOPIC, owner.ledger, 1, reported.append, offset=0)
    poll_until(owner.store, owner.place.asked.is_set)
    owner.store.close()
    assert exits.unfinished == {owner.place.location}
    assert len(reported) == (by == "reader")  # a consumer knows


def test_storage_that_answers_leaves_nothing_unfinished(owner, monkeypatch):
    monkeypatch.setattr(tiered, "STOP_SECONDS_MAX", WAIT_SECONDS)
    owner.offload()
    owner.store.close()
    assert exits.unfinished == set()
