"""What the filter denies is not in the catalog, whatever is written, saved and counted in meanwhile."""

from __future__ import annotations

from random import Random

import pytest

from geminga.ledger import presence as presence_module
from geminga.ledger.api import KEYS_END, Wanted
from geminga.ledger.presence import DENIED_MIN, Presence


def complete() -> Presence:
    presence = Presence()
    presence.stock_is_taken()
    return presence


def test_what_was_added_is_there_and_hardly_anything_else() -> None:
    presence = complete()
    for number in range(100_000):
        presence.add(f"topic/persistent://public/default/device-{number}")
    assert all(presence.may_have(f"topic/persistent://public/default/device-{n}") for n in range(100_000))
    wrong = sum(presence.may_have(f"topic/persistent://public/default/other-{n}") for n in range(20_000))
    assert wrong < 600


def test_parts_of_keys_and_owners() -> None:
    presence = complete()
    presence.add("cursor/a\0s")
    presence.add_owner("a")
    assert presence.may_have_under("cursor/a\0")
    assert presence.may_have("cursor/a\0other")  # one that begins so is there
    assert not presence.may_have_under("cursor/b\0")
    for prefix in ("", "cursor/", "cursor/b", "cursor/b\0s", "cursor/b\0s\0"):  # it cannot say
        assert presence.may_have_under(prefix)
    assert not presence.may_have("cursor/a")
    assert presence.may_own("a")
    assert not presence.may_own("b")
    assert presence.may_own("")  # nobody's ledgers are made by damage alone


def test_wanted() -> None:
    presence = complete()
    presence.add("k")
    presence.add("cursor/a\0s")
    presence.add_owner("o")

    def may(*keys: tuple[str, str], owners: tuple[tuple[str, str], ...] = ()) -> bool:
        return presence.may_have_any(Wanted(keys, owners))

    assert not may()
    assert not Presence().may_have_any(Wanted())
    assert presence.may_have_any(Wanted(pages=(("topic/", ""),)))
    assert presence.may_have_any(Wanted(ledgers_after=(3,)))
    assert not may(("b", "b"), ("c", "c"))
    assert may(("b", "b"), ("k", "k"))
    assert may(("cursor/a\0", f"cursor/a\0{KEYS_END}"))
    assert not may(("cursor/b\0", f"cursor/b\0{KEYS_END}"))
    assert may(("b", "c"))
    assert may(("b", f"b{KEYS_END}"))
    assert may(owners=(("o", "o"),))
    assert not may(owners=(("p", "p"),))
    assert may(owners=(("p", "q"),))


def test_until_all_is_counted_in_nothing_is_denied() -> None:
    presence = Presence()
    assert presence.may_have("k")
    assert presence.may_own("o")
    assert presence.may_have_any(Wanted((("k", "k"),)))
    assert not presence.wants_stock
    presence.denied = DENIED_MIN
    assert presence.wants_stock
    presence.take_stock(["k"], ["o"])
    presence.stock_is_taken()
    assert not presence.wants_stock
    assert presence.may_have("k")
    assert presence.may_own("o")
    assert not presence.may_have("l")
    assert not presence.may_own("p")


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_missed_while_the_filter_is_made_anew(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes, checkpoints and pages of stocktaking in any order, against a catalog in memory."""
    monkeypatch.setattr(presence_module, "_STEMS_FIRST", 16)
    chance = Random(seed)
    presence = complete()
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
            presence.add(key)
            changes.add(key)
        elif action < 0.55 and frozen is None:
            presence.frozen()
            frozen, changes = changes, set()
        elif action < 0.6 and frozen is not None:
            catalog |= frozen
            frozen = None
            presence.thawed()
        elif action < 0.9 and (place is not None or presence.wants_stock):
            page = sorted(key for key in catalog if key > (place or ""))[:50]
            presence.take_stock(page, [])
            place = page[-1] if page else None
            if not page:
                presence.stock_is_taken()
                rebuilt += 1
        elif catalog:
            # What was taken out again stays known; that makes the filter grow for nothing.
            for key in chance.sample(sorted(catalog), min(30, len(catalog))):
                if key != place:
                    catalog.discard(key)
        assert presence.is_complete
        for key in chance.sample(sorted(catalog), min(3, len(catalog))):
            assert presence.may_have(key)
    assert all(map(presence.may_have, catalog))
    assert rebuilt >= 2


def test_a_filter_that_may_not_be_made_anew_stays_bounded_and_misses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(presence_module, "_STEMS_FIRST", 16)
    monkeypatch.setattr(presence_module, "_PARTS_MAX", 3)
    presence = complete()
    for number in range(5_000):
        presence.add(f"key {number}")
    assert sum(len(words) for words, _ in presence._served._parts) == (16 + 64 + 256) // 4
    assert all(presence.may_have(f"key {number}") for number in range(5_000))
