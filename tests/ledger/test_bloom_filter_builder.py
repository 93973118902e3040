"""Names in the catalog are added to the filter once enough lookups found nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import eventually

from geminga.errors import StoreError
from geminga.ledger import bloom_filter_builder
from geminga.ledger.api import KEYS_END, PrefetchRequest
from geminga.ledger.key_bloom_filter import DENIED_MIN
from geminga.ledger.store import FileStore


def wanted(name: str) -> PrefetchRequest:
    return PrefetchRequest(
        ((f"topic/{name}",) * 2, (f"cursor/{name}\0", f"cursor/{name}\0{KEYS_END}")), ((name,) * 2,)
    )


def brings(store: FileStore, name: str) -> bool:
    """Whether the catalog has to be read."""
    reported: list[StoreError | None] = []
    if store.bring(wanted(name), reported.append):
        return False
    until(store, lambda: bool(reported))
    assert reported == [None]
    return True


def until(store: FileStore, is_true: Callable[[], bool]) -> None:
    eventually(lambda: (store.poll(), is_true())[1])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bloom_filter_builder, "PAGE_NAMES", 7)
    with FileStore.open(tmp_path) as store:
        assert not brings(store, "0")  # the filter of a new store is complete from the first write
        store.keys.put("", b"")
        for number in range(50):
            store.keys.put(f"topic/{number}", b"")
            store.keys.put(f"cursor/{number + 100}\0s", b"")
            store.create_ledger(f"{number + 200}")
    return tmp_path


def test_after_many_failed_lookups_the_catalog_is_added(folder: Path) -> None:
    with FileStore.open(folder) as store:
        assert brings(store, "nothing")
        for number in range(DENIED_MIN):
            assert store.keys.get(f"none/{number}") is None
        store.keys.put("topic/new", b"")
        until(store, lambda: not brings(store, "nothing"))
        for name in ("0", "49", "new", "100", "149", "200", "249"):
            assert brings(store, name)
        absent = [name for name in map(str, range(1000, 2000)) if not brings(store, name)]
        assert len(absent) > 900
        assert store.keys.get("topic/7") is not None
        assert store.keys.get("") is not None
        assert [key for key, _ in store.keys.scan("cursor/107\0")] == ["cursor/107\0s"]
        assert len(store.ledgers("207")) == 1


def test_an_empty_request_is_complete_at_once(folder: Path) -> None:
    with FileStore.open(folder) as store:
        assert store.bring(PrefetchRequest(), lambda error: None)


def test_a_catalog_that_cannot_be_read_is_still_queried(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> Any:
        raise StoreError("the disk is gone")

    with FileStore.open(folder) as store:
        monkeypatch.setattr(store.reading.filter_builder._catalog.keys, "names", fail)  # type: ignore[union-attr]
        for number in range(DENIED_MIN):
            assert store.keys.get(f"none/{number}") is None
        until(store, lambda: "to its Bloom filter: the disk is gone" in caplog.text)
        assert brings(store, "nothing")
        assert store.keys.get("topic/7") is not None
        assert store.keys.get("topic/70") is None
