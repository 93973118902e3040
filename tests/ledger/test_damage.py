"""I5: damaged bytes are never served and synced data is never silently cut, wherever the damage is."""

import dataclasses
import pickle

import pytest

from geminga.errors import StoreDamaged
from geminga.ledger.damage import Damage, EntriesDamaged
from geminga.ledger.files.format import FILE_HEADER_BYTES, GROUP_HEADER_BYTES, GROUP_MAGIC, encode_file_header
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from tests.support.disk_stores import FOLDER, append_all, ledger_with, open_store, succeeded
from tests.support.faulty_filesystem import SimulatedDisk

LOGS = [f"{FOLDER}/log-{number:010d}" for number in (1, 2, 3)]
ENTRIES = {owner: [f"{owner} {n} ".encode() * 60 for n in range(12)] for owner in ("a", "b")}
KEYS = {f"key-{n}": (b"value %d" % n, (b"delta",)) for n in range(3)}


@pytest.fixture
def settings(small_settings):
    """No rewriting and a checkpoint only at a clean end, so that every byte of the log counts."""
    return dataclasses.replace(
        small_settings, checkpoint_records=10_000, checkpoint_log_bytes=10**6, rewrite_live_fraction=0.0
    )


def make_disk(settings: StoreSettings, *, clean: bool) -> SimulatedDisk:
    disk = SimulatedDisk()
    store = open_store(disk, settings)
    ledgers = {owner: store.create_ledger(owner) for owner in ENTRIES}
    for number in range(12):
        for owner, ledger in ledgers.items():
            store.append(ledger, ENTRIES[owner][number], succeeded)
        if number % 4 == 0:
            key = f"key-{number // 4}"
            store.keys.put(key, KEYS[key][0], succeeded)
            store.keys.merge(key, KEYS[key][1][0], succeeded)
        store.poll()
    if clean:
        store.close()
        return disk
    return disk.kill()


def audit(store: FileStore) -> int:
    """Check that everything served is right; returns how many entries, ledgers and keys are not served."""
    lost = 0
    for owner, expected in ENTRIES.items():
        infos = store.ledgers(owner)
        if not infos:
            lost += 1
            continue
        for entry_id, entry in enumerate(expected):
            try:
                found = store.read(infos[0].ledger_id, entry_id, entries_max=1, bytes_max=10**6)
            except EntriesDamaged as error:
                check_names_entry(error, infos[0].ledger_id, entry_id)
                lost += 1
                continue
            if found:
                assert found == [entry]
            else:
                lost += 1
    for key, value in KEYS.items():
        try:
            got = store.keys.get(key)
        except StoreDamaged:
            lost += 1
            continue
        if got is None:
            lost += 1
        elif (got.base, tuple(got.deltas)) != value:
            assert store.damage.found, "a wrong value without any damage reported"
            lost += 1
    return lost


def check_names_entry(error: EntriesDamaged, ledger_id: int, entry_id: int) -> None:
    damage = error.damage
    assert damage.ledger_id == ledger_id
    assert damage.first_entry_id is not None
    assert damage.last_entry_id is not None
    if "is missing from the store" in damage.what:  # all entries of the file
        assert damage.first_entry_id <= entry_id <= damage.last_entry_id
    else:
        assert damage.first_entry_id == entry_id
    assert damage.thing in str(error)


def check_names_cut(store: FileStore, path: str, left: int, text: str) -> None:
    found = [(each.file in path, each.offset, text in each.what) for each in store.damage.found]
    assert (True, left, True) in found, (left, store.damage.found)


def check_takes_writes(store: FileStore) -> None:
    """A damaged store continues to work, and never gives an id twice."""
    for owner in ENTRIES:
        for info in store.ledgers(owner):
            entry_id = store.append(info.ledger_id, b"after", succeeded)
            assert entry_id >= 12, "an entry id is given twice"
            store.poll()
            assert store.read(info.ledger_id, entry_id, entries_max=1, bytes_max=99) == [b"after"]
    ledger = store.create_ledger("new")
    assert ledger > 1, "a ledger id is given twice"
    assert store.append(ledger, b"x", succeeded) == 0
    for key in KEYS:
        store.keys.put(key, b"anew", succeeded)
    store.poll()
    assert all(store.keys.get(key) is not None for key in KEYS)


def audit_and_close(store: FileStore) -> None:
    audit(store)
    check_takes_writes(store)
    store.close()


def test_zeroed_sectors_in_synced_data_are_damage(settings):
    original = make_disk(settings, clean=False)
    for path in LOGS[:2]:
        size = len(original.names[path].durable)
        for start in range(0, size - 512, 512):
            disk = original.copy()
            was = bytes(disk.content(path)[start : start + 512])
            disk.content(path)[start : start + 512] = bytes(512)
            store = open_store(disk, settings)
            assert store.damage.found or not any(was)
            audit_and_close(store)


def test_zeroed_or_cut_end_of_synced_data_is_damage(settings):
    """Bytes before the mark are damage, not a torn tail: no write behind the mark was confirmed."""
    original = make_disk(settings, clean=True)
    original.databases.clear()
    last = max(path for path in LOGS if path in original.names)
    size = len(original.names[last].durable)
    for cut in range(FILE_HEADER_BYTES + 100, size, 37):
        for how in ("zero", "cut"):
            disk = original.copy()
            content = disk.content(last)
            content[cut:] = bytes(size - cut) if how == "zero" else b""
            store = open_store(disk, settings)
            assert store.damage.found
            audit_and_close(store)
            with open_store(disk, settings) as store:
                assert store.damage.found
                audit(store)


def test_a_zero_filled_tail_or_a_damaged_mark_is_no_damage(settings):
    original = make_disk(settings, clean=False)
    mark = f"{FOLDER}/synced"
    for harmed in ("tail", *range(len(original.content(mark)))):
        disk = original.copy()
        if isinstance(harmed, int):
            disk.content(mark)[harmed] ^= 1
        else:
            disk.content(max(path for path in LOGS if path in disk.names)).extend(bytes(3000))
        with open_store(disk, settings) as store:
            assert store.damage.found == [], harmed
            assert audit(store) == 0


@pytest.mark.parametrize("catalog", ["kept", "lost"])
def test_a_missing_file_is_reported(settings, catalog):
    for path in LOGS[:2]:
        disk = make_disk(settings, clean=True)
        if catalog == "lost":
            disk.databases.clear()
        disk.remove(path)
        with open_store(disk, settings) as store:
            assert any(damage.file in path and "missing" in damage.what for damage in store.damage.found)
            assert audit(store) > 0
            store.create_ledger("goes on")


def test_a_closed_file_that_is_deleted_while_the_store_is_open_is_reported_once(settings, caplog):
    disk = make_disk(settings, clean=True)
    store = open_store(disk, settings)
    store.disk.measure()
    store.poll()
    assert store.damage.found == []
    disk.remove(LOGS[0])
    for _ in range(2):
        store.disk.measure()
        store.poll()
    assert [str(each) for each in store.damage.found] == ["log-0000000001 at offset 0: the file is missing"]
    assert len(caplog.records) == 1
    assert store.failure is None
    store.create_ledger("goes on")
    store.close()
    with open_store(disk, settings) as store:
        assert [each.what for each in store.damage.found].count("the file is missing") == 1


def test_files_that_are_deleted_for_space_are_not_reported(small_settings):
    disk = SimulatedDisk()
    with open_store(disk, small_settings) as store:
        for _ in range(40):
            ledger = store.create_ledger("a")
            for _ in range(20):
                store.append(ledger, b"x" * 500, succeeded)
            store.delete_ledgers([ledger])
            store.poll()
            store.disk.measure()
        store.checkpoint()
        assert not set(LOGS) <= disk.names.keys()
        assert store.damage.found == []


def test_the_entries_of_a_missing_file_are_one_damage(settings):
    disk = SimulatedDisk()
    count, settings = 2000, dataclasses.replace(settings, log_file_bytes=1 << 20)
    with open_store(disk, settings) as store:
        ledger = append_all(store, store.create_ledger("a"), [b"x"] * count)
    disk.remove(LOGS[0])
    with open_store(disk, settings) as store:
        missing = len(store.damage.found)
        for start in (count - 1, 0, count // 2):
            with pytest.raises(EntriesDamaged, match="is missing from the store") as caught:
                store.read(ledger, start, entries_max=1, bytes_max=100)
            assert (caught.value.damage.first_entry_id, caught.value.damage.last_entry_id) == (0, count - 1)
        assert len(store.damage.found) == missing + 1


@pytest.mark.parametrize("files", [1, 2])
@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_last_file_is_reported_and_its_number_not_reused(settings, clean, files):
    settings = dataclasses.replace(settings, log_file_bytes=8192 // files)
    disk = make_disk(settings, clean=clean)
    assert len([path for path in LOGS if path in disk.names]) == files
    last = max(path for path in LOGS if path in disk.names)
    disk.remove(last)
    store = open_store(disk, settings)
    assert store.damage.found
    audit_and_close(store)
    assert last not in disk.names


def test_no_id_is_given_twice_when_the_last_two_files_are_missing(settings):
    disk = SimulatedDisk()
    store = open_store(disk, settings)
    created = []
    while LOGS[2] not in disk.names:
        created += [store.create_ledger(f"owner {number}") for number in range(10)]
        store.poll()
    disk = disk.kill()
    for path in LOGS[1:]:
        disk.remove(path)
    with open_store(disk, settings) as store:
        assert store.create_ledger("new") > created[-1]


@pytest.mark.parametrize("which", [0, -1])
def test_a_file_that_was_cut_is_reported_when_the_store_opens(settings, which):
    """Also behind a clean end, when nothing of the log is read again."""
    original = make_disk(settings, clean=True)
    path = [path for path in LOGS if path in original.names][which]
    size = len(original.names[path].durable)
    for left in (0, FILE_HEADER_BYTES, size // 2, size - 1):
        disk = original.copy()
        del disk.content(path)[left:]
        store = open_store(disk, settings)
        check_names_cut(store, path, left, f"{size - left} bytes too early")
        audit_and_close(store)
        with open_store(disk, settings) as store:
            assert store.damage.found, "damage is forgotten after a restart"
            audit(store)


def test_a_file_that_was_cut_between_groups_is_reported_after_a_kill(settings):
    """The next file says where the one before ended."""
    original = make_disk(settings, clean=False)
    data = bytes(original.names[LOGS[0]].durable)
    boundaries = [at for at in range(FILE_HEADER_BYTES, len(data)) if data.startswith(GROUP_MAGIC, at)]
    assert LOGS[1] in original.names
    assert len(boundaries) > 2
    for left in boundaries:
        disk = original.copy()
        del disk.content(LOGS[0])[left:]
        store = open_store(disk, settings)
        check_names_cut(store, LOGS[0], left, "too early")
        audit_and_close(store)


def test_swapped_files_are_reported(settings):
    disk = make_disk(settings, clean=True)
    disk.names[LOGS[0]], disk.names[LOGS[1]] = disk.names[LOGS[1]], disk.names[LOGS[0]]
    before = {path: bytes(disk.names[path].visible) for path in LOGS[:2]}
    with open_store(disk, settings) as store:
        assert sum("under another name" in damage.what for damage in store.damage.found) == 2
        assert audit(store) > 0
        check_takes_writes(store)
    assert {path: bytes(disk.names[path].visible) for path in LOGS[:2]} == before, "evidence was touched"


def test_file_of_another_store_is_reported_and_left_alone(settings):
    disk, other = make_disk(settings, clean=True), SimulatedDisk()
    with open_store(other, settings) as with_other_bytes:
        entries = [b"other %d" % number * 99 for number in range(9)]
        append_all(with_other_bytes, with_other_bytes.create_ledger("a"), entries)
    foreign = bytes(other.names[LOGS[0]].visible)
    disk.content(LOGS[0])[:] = foreign
    with open_store(disk, settings) as store:
        assert any("another store" in damage.what for damage in store.damage.found)
        assert audit(store) > 0
        check_takes_writes(store)
    assert bytes(disk.names[LOGS[0]].visible) == foreign


def test_damaged_catalog_rows_are_noticed_and_rebuilt(settings):
    disk = make_disk(settings, clean=True)
    path = f"{FOLDER}/catalog.db"
    image = bytearray(disk.databases[path][-1])
    changed = image.replace(b"value 1", b"VALUE 1")
    assert changed != image
    disk.databases[path] = [bytes(changed)]
    with open_store(disk, settings) as store, pytest.raises(StoreDamaged, match="rebuilt"):
        store.keys.get("key-1")
    with open_store(disk, settings) as store:
        assert audit(store) == 0


def test_a_damaged_superblock_is_written_again(settings):
    original = make_disk(settings, clean=True)
    before = bytes(original.names[f"{FOLDER}/superblock"].visible)
    for offset in range(len(before)):
        disk = original.copy()
        disk.content(f"{FOLDER}/superblock")[offset] ^= 1 << offset % 8
        with open_store(disk, settings) as store:
            assert audit(store) == 0
        assert bytes(disk.names[f"{FOLDER}/superblock"].durable) == before


@pytest.mark.parametrize("logs", ["none", "of two stores"])
def test_a_damaged_superblock_without_log_files_is_refused(settings, logs):
    disk = make_disk(settings, clean=True)
    if logs == "none":
        for path in [path for path in disk.names if "/log-" in path]:
            disk.remove(path)
    else:
        content = disk.content(LOGS[1])
        content[:FILE_HEADER_BYTES] = encode_file_header(2, b"another store id")
    disk.content(f"{FOLDER}/superblock")[20] ^= 1
    with pytest.raises(StoreDamaged, match="superblock"):
        open_store(disk, settings)
    assert not disk.locks


def test_group_magic_inside_entries_is_not_taken_for_a_group(settings):
    """Entries that contain bytes of the log's format, next to damage."""
    disk = SimulatedDisk()
    with open_store(disk, settings) as store:
        ledger = store.create_ledger("a")
        content = bytes(disk.names[LOGS[0]].visible) if LOGS[0] in disk.names else b""
        entries = [b"%d" % n + GROUP_MAGIC * 9 + content[:200] + bytes(GROUP_HEADER_BYTES) for n in range(6)]
        append_all(store, ledger, entries, poll_each=True)
    disk.databases.clear()
    place = bytes(disk.names[LOGS[0]].visible).index(entries[2])
    disk.content(LOGS[0])[place - 60] ^= 0xFF
    with open_store(disk, settings) as store:
        assert store.damage.found
        for entry_id, entry in enumerate(entries):
            if entry_id != 2:
                assert store.read(ledger, entry_id, entries_max=1, bytes_max=9999) == [entry]
        with pytest.raises(EntriesDamaged):
            store.read(ledger, 2, entries_max=1, bytes_max=9999)


def test_reading_stops_before_the_damaged_entry(settings):
    disk = make_disk(settings, clean=True)
    for path in LOGS:
        if path in disk.names and ENTRIES["a"][5] in disk.names[path].visible:
            disk.content(path)[disk.names[path].visible.index(ENTRIES["a"][5]) + 3] ^= 4
    with open_store(disk, settings) as store:
        (info,) = store.ledgers("a")
        assert store.read(info.ledger_id, 3, entries_max=9, bytes_max=10**6) == ENTRIES["a"][3:5]
        with pytest.raises(EntriesDamaged, match="entry 5"):
            store.read(info.ledger_id, 5, entries_max=9, bytes_max=10**6)
        assert store.read(info.ledger_id, 6, entries_max=9, bytes_max=10**6) == ENTRIES["a"][6:]
        assert [d.first_entry_id for d in store.damage.found] == [5]


def test_ids_of_damaged_entries_at_the_tail_are_not_reused(settings):
    """Creations and entries in the lost end may have been receipted, acknowledged and remembered."""
    disk = SimulatedDisk()
    store = open_store(disk, settings)
    store.keys.put("first", b"", succeeded)
    store.poll()
    start = len(disk.names[LOGS[0]].visible.rstrip(b"\0"))
    store.keys.put("second", b"")
    old = store.create_ledger("old")
    append_all(store, old, [b"entry"] * 5)
    new = ledger_with(store, "new", b"entry", succeeded)
    store.poll()
    disk.kill()
    content = disk.content(LOGS[0])
    content[start + 50 :] = bytes(len(content) - start - 50)
    with open_store(disk, settings) as store:
        assert store.damage.found
        assert store.ledgers("old") == store.ledgers("new") == []
        assert store.damage.lost_entries_max(old) >= 5, "the owner is not told how far it must step"
        assert store.damage.lost_entries_max(new) >= 1
        later = store.create_ledger("later")
        assert later > new
        assert store.damage.lost_entries_max(later) == 0
    with open_store(disk, settings) as store:
        assert store.damage.lost_entries_max(old) >= 5, "forgotten after a restart"
        assert store.damage.lost_entries_max(later) == 0


def test_damage_names_position_and_loss():
    damage = Damage("log-0000000007", 4096, "entry fails its checksum", 12, 3, 5)
    assert str(damage) == (
        "log-0000000007 at offset 4096: entry fails its checksum; ledger 12, entries 3 to 5"
    )
    assert str(dataclasses.replace(damage, last_entry_id=3)).endswith("ledger 12, entry 3")
    assert Damage.from_json(damage.to_json()) == damage
    error = pickle.loads(pickle.dumps(EntriesDamaged("message", damage)))
    assert (str(error), error.damage) == ("message", damage)
