"""Names that the filter denies are not in the catalog, in any order of writes, checkpoints and builds."""

from __future__ import annotations

from random import Random

import pytest

from geminga.ledger import key_bloom_filter as presence_module
from geminga.ledger.api import KEYS_END, PrefetchRequest
from geminga.ledger.key_bloom_filter import DENIED_MIN, KeyBloomFilter


def complete() -> KeyBloomFilter:
    bloom_filter = KeyBloomFilter()
    bloom_filter.stock_is_taken()
    return bloom_filter


def test_added_names_are_found_and_hardly_any_others() -> None:
    bloom_filter = complete()
    for number in range(100_000):
        bloom_filter.add(f"topic/persistent://public/default/device-{number}")
    assert all(bloom_filter.may_have(f"topic/persistent://public/default/device-{n}") for n in range(100_000))
    wrong = sum(bloom_filter.may_have(f"topic/persistent://public/default/other-{n}") for n in range(20_000))
    assert wrong < 600


def test_prefixes_of_keys_and_owners_are_found() -> None:
    bloom_filter = complete()
    bloom_filter.add("cursor/a\0s")
    bloom_filter.add_owner("a")
    assert bloom_filter.may_have_under("cursor/a\0")
    assert bloom_filter.may_have("cursor/a\0other")  # one that begins so is there
    assert not bloom_filter.may_have_under("cursor/b\0")
    for prefix in ("", "cursor/", "cursor/b", "cursor/b\0s", "cursor/b\0s\0"):  # the filter cannot know
        assert bloom_filter.may_have_under(prefix)
    assert not bloom_filter.may_have("cursor/a")
    assert bloom_filter.may_own("a")
    assert not bloom_filter.may_own("b")
    assert bloom_filter.may_own("")  # only damage makes ledgers without owner


def test_requests_are_answered_if_any_name_may_exist() -> None:
    bloom_filter = complete()
    bloom_filter.add("k")
    bloom_filter.add("cursor/a\0s")
    bloom_filter.add_owner("o")

    def may(*keys: tuple[str, str], owners: tuple[tuple[str, str], ...] = ()) -> bool:
        return bloom_filter.may_have_any(PrefetchRequest(keys, owners))

    assert not may()
    assert not KeyBloomFilter().may_have_any(PrefetchRequest())
    assert bloom_filter.may_have_any(PrefetchRequest(pages=(("topic/", ""),)))
    assert bloom_filter.may_have_any(PrefetchRequest(ledgers_after=(3,)))
    assert not may(("b", "b"), ("c", "c"))
    assert may(("b", "b"), ("k", "k"))
    assert may(("cursor/a\0", f"cursor/a\0{KEYS_END}"))
    assert not may(("cursor/b\0", f"cursor/b\0{KEYS_END}"))
    assert may(("b", "c"))
    assert may(("b", f"b{KEYS_END}"))
    assert may(owners=(("o", "o"),))
    assert not may(owners=(("p", "p"),))
    assert may(owners=(("p", "q"),))


def test_an_incomplete_filter_reports_no_name_as_absent() -> None:
    bloom_filter = KeyBloomFilter()
    assert bloom_filter.may_have("k")
    assert bloom_filter.may_own("o")
    assert bloom_filter.may_have_any(PrefetchRequest((("k", "k"),)))
    assert not bloom_filter.wants_stock
    bloom_filter.denied = DENIED_MIN
    assert bloom_filter.wants_stock
    bloom_filter.take_stock(["k"], ["o"])
    bloom_filter.stock_is_taken()
    assert not bloom_filter.wants_stock
    assert bloom_filter.may_have("k")
    assert bloom_filter.may_own("o")
    assert not bloom_filter.may_have("l")
    assert not bloom_filter.may_own("p")


@pytest.mark.parametrize("seed", range(20))
def test_no_name_is_missed_while_the_filter_is_rebuilt(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes, checkpoints and pages of the build in any order, against a catalog in memory."""
    monkeypatch.setattr(presence_module, "_STEMS_FIRST", 16)
    chance = Random(seed)
    bloom_filter = complete()
    catalog: set[str] = set()
    changes: set[str] = set()
    frozen: set[str] | None = None
    place: str | None = None
    number = rebuilt = 0
    for _ in range(8_000):
        action = chance.random()
        if action < 0.5:
            number += 1
            key = f"{chance.randrange(1000)}/{number}"
            bloom_filter.add(key)
            changes.add(key)
        elif action < 0.55 and frozen is None:
            bloom_filter.frozen()
            frozen, changes = changes, set()
        elif action < 0.6 and frozen is not None:
            catalog |= frozen
            frozen = None
            bloom_filter.thawed()
        elif action < 0.9 and (place is not None or bloom_filter.wants_stock):
            page = sorted(key for key in catalog if key > (place or ""))[:50]
            bloom_filter.take_stock(page, [])
            place = page[-1] if page else None
            if not page:
                bloom_filter.stock_is_taken()
                rebuilt += 1
        elif catalog:
            # Deleted names stay in the filter, so that it grows for nothing.
            for key in chance.sample(sorted(catalog), min(30, len(catalog))):
                if key != place:
                    catalog.discard(key)
        assert bloom_filter.is_complete
        for key in chance.sample(sorted(catalog), min(3, len(catalog))):
            assert bloom_filter.may_have(key)
    assert all(map(bloom_filter.may_have, catalog))
    assert rebuilt >= 2


def test_a_filter_that_cannot_be_rebuilt_stays_bounded_and_misses_no_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(presence_module, "_STEMS_FIRST", 16)
    monkeypatch.setattr(presence_module, "_PARTS_MAX", 3)
    bloom_filter = complete()
    for number in range(5_000):
        bloom_filter.add(f"key {number}")
    assert sum(len(words) for words, _ in bloom_filter._served._parts) == (16 + 64 + 256) // 4
    assert all(bloom_filter.may_have(f"key {number}") for number in range(5_000))
