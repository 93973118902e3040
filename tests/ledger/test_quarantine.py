"""Quarantine: the losses of damage, how long damage is listed, and how it is settled."""

import dataclasses

import pytest

from geminga.errors import StoreError
from geminga.ledger.api import LostWrites, StoredValue
from geminga.ledger.damage import Damage, DamageLoss, EntriesDamaged
from geminga.ledger.settings import StoreSettings
from geminga.ledger.state import quarantine as module
from geminga.ledger.state.ledger_table import NOBODY
from geminga.ledger.state.quarantine import Quarantine
from geminga.wire.checksum import crc32c
from tests.support.disk_stores import FOLDER, ledger_with, open_store, succeeded
from tests.support.faulty_filesystem import SimulatedDisk

LOG = "log-0000000001"


def entries(first: int, last: int | None = None, ledger_id: int = 1) -> Damage:
    last = first if last is None else last
    return Damage(LOG, 100 + first, "what", ledger_id, first, last, DamageLoss.ENTRIES)


def key(offset: int, name: str | None, lost: DamageLoss = DamageLoss.DELTA) -> Damage:
    fingerprint = crc32c(b"nameless") if name is None else None
    return Damage(LOG, offset, "what", lost=lost, key=name, fingerprint=fingerprint)


def test_consecutive_damaged_entries_are_one_damage():
    quarantine = Quarantine()
    assert quarantine.add(entries(5))
    assert not quarantine.add(entries(5))
    assert not quarantine.add(entries(6)), "it is the same thing, grown"
    assert quarantine.add(entries(8))
    assert quarantine.add(entries(7, ledger_id=2))
    assert not quarantine.add(entries(5, 6))
    assert [thing.thing for thing in quarantine] == [
        "ledger 1, entries 5 to 6", "ledger 1, entry 8", "ledger 2, entry 7",
    ]  # fmt: skip
    quarantine.ledger_is_gone(1)
    assert [thing.ledger_id for thing in quarantine] == [2]


def test_the_list_of_damaged_entries_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "ENTRY_DAMAGE_LISTED_MAX", 10)
    quarantine = Quarantine()
    for number in range(50):
        quarantine.add(entries(2 * number))
    assert len(quarantine) == 10
    assert quarantine.unlisted == 40
    assert quarantine.add(key(1, "k")), "what a key lost is always known"
    assert quarantine.lost("k") == LostWrites(deltas=1)


def test_losses_of_a_key_add_up_until_it_is_whole():
    quarantine = Quarantine([key(1, "k"), key(2, "k"), key(3, "k", DamageLoss.VALUE), key(4, "other")])
    assert quarantine.lost("k") == LostWrites(values=1, deltas=2)
    assert quarantine.lost("nothing") is None
    assert sorted(quarantine.keys_under("")) == ["k", "other"]
    quarantine.key_is_whole("k")
    assert quarantine.lost("k") is None
    assert quarantine.keys_under("k") == []
    assert len(quarantine) == 1


def test_a_key_whose_name_is_lost_is_found_by_its_checksum():
    quarantine = Quarantine([key(1, None), key(2, None)])
    assert quarantine.lost("nameless") == LostWrites(deltas=2)
    assert quarantine.lost("another") is None
    quarantine.resolve({crc32c(b"nameless"): ["nameless"]})
    assert quarantine.nameless == set()
    assert quarantine.lost("nameless") == LostWrites(deltas=2)
    quarantine.key_is_whole("nameless")
    assert len(quarantine) == 0
    quarantine.add(key(3, None))
    quarantine.key_is_whole("nameless")
    assert len(quarantine) == 0


def test_settled_damage_is_not_listed_again():
    quarantine = Quarantine([key(1, "k")])
    quarantine.settle(f"{LOG}@1")
    assert len(quarantine) == 0
    assert not quarantine.add(key(1, "k"))
    assert quarantine.settled == [f"{LOG}@1"]


# --- in a store ---
SETTINGS = StoreSettings(preallocate_bytes=0, cache_bytes=0, deletion_delay_seconds=3600.0)


def harm(disk: SimulatedDisk, what: bytes, file: str = LOG) -> None:
    content = disk.content(f"{FOLDER}/{file}")
    assert content.count(what) == 1
    content[content.index(what) + len(what) - 1] ^= 0x10


def lives(disk: SimulatedDisk) -> list[SimulatedDisk]:
    """Open the store with its catalog, and without."""
    without = disk.copy()
    without.databases.clear()
    return [disk.copy(), without]


def test_a_lost_delta_is_reported_after_every_restart_until_the_key_is_set():
    disk = SimulatedDisk()
    store = open_store(disk, SETTINGS)
    for key_name in ("cursor/a", "cursor/b"):
        store.keys.put(key_name, b"base")
        for number in range(3):
            store.keys.merge(key_name, f"{key_name} +{number}".encode())
    store.poll()
    harm(disk.kill(), b"cursor/acursor/a +1")
    harmed = StoredValue(b"base", (b"cursor/a +0", b"", b"cursor/a +2"), LostWrites(deltas=1))
    well = StoredValue(b"base", (b"cursor/b +0", b"cursor/b +1", b"cursor/b +2"))
    store = open_store(disk, SETTINGS)
    store.close()
    for life in lives(disk):
        with open_store(life, SETTINGS) as store:
            assert dict(store.keys.scan("cursor/")) == {"cursor/a": harmed, "cursor/b": well}
            (thing,) = store.damage.found
            assert (thing.key, thing.lost) == ("cursor/a", DamageLoss.DELTA)
            assert "cursor/a" in str(thing)
            store.keys.merge("cursor/a", b"more")
            assert store.keys.get("cursor/a") == StoredValue(
                b"base", (*harmed.deltas, b"more"), LostWrites(deltas=1)
            )
            store.keys.put("cursor/a", b"anew", succeeded)
        for again in lives(life):
            with open_store(again, SETTINGS) as store:
                assert store.keys.get("cursor/a") == StoredValue(b"anew", ())
                assert store.damage.found == []


def test_a_lost_snapshot_loses_nothing_and_is_rewritten():
    """A value that only adds up earlier ones may be lost without harm, as long as those are intact."""
    disk = SimulatedDisk()
    store = open_store(disk, SETTINGS)
    store.keys.put("cursor", b"base")
    store.keys.merge("cursor", b"+1")
    store.checkpoint()
    store.keys.put("cursor", b"snapshot", same=True)
    store.keys.merge("cursor", b"+2")
    store.poll()
    harm(disk.kill(), b"snapshot")
    with open_store(disk, SETTINGS) as store:
        assert store.keys.get("cursor") == StoredValue(b"base", (b"+1", b"+2"))
        assert [thing.lost for thing in store.damage.found] == [DamageLoss.NOTHING]
    for life in lives(disk):
        with open_store(life, SETTINGS) as store:
            assert store.keys.get("cursor") == StoredValue(b"base", (b"+1", b"+2"))


def test_a_ledger_without_owner_is_adopted_with_its_entries():
    disk = SimulatedDisk()
    store = open_store(disk, SETTINGS)
    ledgers = [store.create_ledger(f"topic-{number}") for number in range(3)]
    for ledger in ledgers:
        for number in range(4):
            store.append(ledger, b"entry %d" % number, succeeded)
    store.poll()
    harm(disk.kill(), b"topic-1")
    for life in lives(disk):
        with open_store(life, SETTINGS) as store:
            assert store.ledgers("topic-1") == []
            assert [info.ledger_id for info in store.ledgers(NOBODY)] == [ledgers[1]]
            assert len(store.read(ledgers[1], 0, entries_max=9, bytes_max=999)) == 4
            assert not store.damage.adopt_ledger(ledgers[0], "thief")
            assert not store.damage.adopt_ledger(77, "nobody there")
            assert store.damage.adopt_ledger(ledgers[1], "topic-1")
            assert store.damage.found == []
            store.append(ledgers[1], b"more", succeeded)
        for again in lives(life):
            with open_store(again, SETTINGS) as store:
                assert [info.ledger_id for info in store.ledgers("topic-1")] == [ledgers[1]]
                assert store.ledgers(NOBODY) == []
                assert store.damage.found == []
                entries_found = store.read(ledgers[1], 0, entries_max=99, bytes_max=999)
                assert entries_found[:4] == [b"entry %d" % number for number in range(4)]


def test_given_up_entries_are_no_longer_listed_and_free_their_file(small_settings):
    settings = small_settings
    disk = SimulatedDisk()
    with open_store(disk, dataclasses.replace(settings, rewrite_live_fraction=0.0)) as store:
        ledger = store.create_ledger("kept")
        for number in range(40):
            store.append(ledger, b"entry %d " % number * 20, succeeded)
            short = ledger_with(store, "short", bytes(300), succeeded)
            store.delete_ledgers([short])
            store.poll()
    path = f"{FOLDER}/{LOG}"
    for number in (3, 4):
        content = disk.content(path)
        content[content.index(b"entry %d " % number * 20) + 9] ^= 3
    store = open_store(disk, settings)
    for number in (3, 4):
        with pytest.raises(EntriesDamaged):
            store.read(ledger, number, entries_max=1, bytes_max=999)
    (thing,) = store.damage.found
    assert (thing.first_entry_id, thing.last_entry_id) == (3, 4)
    for _ in range(6):
        store.checkpoint()
    assert path in disk.names, "the only evidence is gone"
    receipts: list[StoreError | None] = []
    assert not store.damage.settle("nothing of this name", receipts.append)
    assert store.damage.settle(thing.name, receipts.append)
    store.poll()
    assert receipts == [None, None]
    for _ in range(30):
        store.append(ledger, bytes(900), succeeded)  # rewriting may write as much as its owner does
        store.checkpoint()
    assert path not in disk.names, "nothing in it is waited for"
    store.close()
    for life in lives(disk):
        store = open_store(life, settings)
        for number in range(40):
            if number in (3, 4):
                with pytest.raises(EntriesDamaged, match="given up"):
                    store.read(ledger, number, entries_max=1, bytes_max=999)
            else:
                assert store.read(ledger, number, entries_max=1, bytes_max=1) == [b"entry %d " % number * 20]
        assert store.damage.found == []
        store.close()


def test_keys_and_ledgers_leave_a_damaged_file_in_which_they_were_written(small_settings):
    """Damage to records that the catalog has keeps no file: they are written again, with the live rest."""
    disk = SimulatedDisk()
    with open_store(disk, dataclasses.replace(small_settings, rewrite_live_fraction=0.0)) as store:
        kept = store.create_ledger("topic of the ledger")
        store.keys.put("the key", b"the value")
        store.keys.put("another key", b"another value")
        store.poll()
        for _ in range(30):
            short = ledger_with(store, "short", bytes(300), succeeded)
            store.delete_ledgers([short])
            store.poll()
        store.append(kept, b"entry", succeeded)
    for what in (b"topic of the ledger", b"the keythe value", b"another keyanother value"):
        harm(disk, what)
    with open_store(disk, small_settings) as store:
        for _ in range(6):
            store.append(kept, b"x", succeeded)
            store.checkpoint()
        assert f"{FOLDER}/{LOG}" not in disk.names
    for life in lives(disk):
        with open_store(life, small_settings) as store:
            assert dict(store.keys.scan("")) == {
                "the key": StoredValue(b"the value", ()),
                "another key": StoredValue(b"another value", ()),
            }
            assert store.read(kept, 0, entries_max=1, bytes_max=99) == [b"entry"]
            assert [info.ledger_id for info in store.ledgers("topic of the ledger")] == [kept]
