"""Flips of every bit of every key record, of every group's head and of sampled entry bytes: a third of the
bytes in each run, and all in `make long`.

The store opens, the damaged record is reported with its loss, and all other records are unchanged. The
content after a flip follows from the list of writes alone: it is their result without the damaged one.
Opening a store takes long, and independent flips do not affect each other: most of those in heads and entries
are tested together, one of each group, and one of each ledger.
"""

import dataclasses
import os
import random
from collections.abc import Iterator
from functools import cache
from itertools import count
from typing import NamedTuple

import pytest

from geminga.ledger.api import LostWrites, StoredValue
from geminga.ledger.damage import Damage, DamageLoss, EntriesDamaged
from geminga.ledger.files.format import (
    FILE_HEADER_BYTES,
    GROUP_HEADER_BYTES,
    OFFSET_MASK,
    RECORD_BYTES,
    RecordKind,
)
from geminga.ledger.log.log import LogFiles, read_directory, scan_headers
from geminga.ledger.settings import StoreSettings
from geminga.ledger.state.ledger_table import NOBODY
from geminga.ledger.store import FileStore
from geminga.wire.checksum import crc32c
from tests.support.faulty_filesystem import FaultyFileSystem, SimulatedDisk

FOLDER = "/s"
LOG = f"{FOLDER}/log-0000000001"
SETTINGS = StoreSettings(
    preallocate_bytes=0, cache_bytes=0, rewrite_live_fraction=0.0, deletion_delay_seconds=3600.0
)
ENTRIES_SAMPLED = int(os.environ.get("GEMINGA_BIT_FLIPS", "200"))
ALONE_EACH = 8
"""One in this many flips in heads and entries is tested alone on its disk."""
CLOSED_EACH = 16
"""To close a store writes a checkpoint; that the flip does not hinder that is looked at now and then."""
CHECKED = count()
CHANCE = random.Random(5)

Operation = tuple[str, str, bytes]
"""(what, key or owner, bytes). Ledgers are named by their owners, of which each has one."""

OPERATIONS: list[Operation] = [
    ("put", "broker/starts", b"1"),
    ("put", "policies/public/default", b'{"retention":7}'),
    ("put", "topic/a", b"{}"),
    ("create", "a", b""),
    ("merge", "ledgers/a", b"\0\0\7"),
    ("append", "a", CHANCE.randbytes(900)),
    ("put", "cursor/a/s", b"base"),
    ("merge", "cursor/a/s", b"+1"),
    ("put", "topic/b", b"{}"),
    ("create", "b", b""),
    ("append", "b", CHANCE.randbytes(700)),
    ("append", "a", b""),
    ("merge", "cursor/a/s", b"+2"),
    ("append", "a", CHANCE.randbytes(60)),
    ("put", "cursor/b/s", b"old"),
    ("merge", "cursor/b/s", b"+1"),
    ("same", "cursor/b/s", b"all"),
    ("merge", "cursor/b/s", b"+2"),
    ("append", "b", CHANCE.randbytes(3000)),
    ("put", "schema/b", b"\1\2"),
    ("delete", "schema/b", b""),
    ("put", "topic/c", b"{}"),
    ("create", "c", b""),
    ("append", "c", CHANCE.randbytes(400)),
    ("delete_ledger", "c", b""),
    ("delete", "topic/c", b""),
    ("put", "policies/public/default", b'{"retention":9}'),
    ("merge", "cursor/a/s", b"+3"),
    ("append", "a", CHANCE.randbytes(1500)),
]
POLLED_AFTER = {3, 7, 8, 13, 18, 20, 24}
OWNERS = ["a", "b", "c"]
LEDGERS = {"a": 0, "b": 1, "c": 2}
KEYS = sorted({name for what, name, _ in OPERATIONS if what in ("put", "merge", "same", "delete")})


def open_store(disk: SimulatedDisk, *, verify: bool = False) -> FileStore:
    settings = dataclasses.replace(SETTINGS, verify_on_open=verify)
    return FileStore.open(FOLDER, settings=settings, filesystem=FaultyFileSystem(disk), threads=False)


def perform(store: FileStore, operation: Operation) -> None:
    what, name, data = operation
    if what == "create":
        assert store.create_ledger(name) == LEDGERS[name]
    elif what == "append":
        store.append(LEDGERS[name], data, lambda error: None)
    elif what == "delete_ledger":
        store.delete_ledgers([LEDGERS[name]])
    elif what == "delete":
        store.keys.delete(name)
    elif what == "merge":
        store.keys.merge(name, data)
    else:
        store.keys.put(name, data, same=what == "same")


def make_disk(*, clean: bool) -> SimulatedDisk:
    disk = SimulatedDisk()
    store = open_store(disk)
    for number, operation in enumerate(OPERATIONS):
        perform(store, operation)
        if number in POLLED_AFTER:
            store.poll()
    store.poll()
    if clean:
        store.close()
    return disk.kill()


class Seen(NamedTuple):
    """Visible content of a store: entries (None: damaged) by owner, and keys."""

    entries: dict[str, list[bytes | None]]
    keys: dict[str, StoredValue | None]


@cache
def expected_of(lost: frozenset[int] = frozenset()) -> Seen:
    """Return the result of the operations, without those lost to damage."""
    entries: dict[str, list[bytes | None]] = {}
    keys: dict[str, StoredValue | None] = dict.fromkeys(KEYS)
    for number, (what, name, data) in enumerate(OPERATIONS):
        if what == "create":
            entries[NOBODY if number in lost else name] = []
        elif what == "append":
            entries[name if name in entries else NOBODY].append(None if number in lost else data)
        elif what == "delete_ledger":
            entries.pop(name if name in entries else NOBODY)
        else:
            keys[name] = with_write(keys[name], what, data, is_lost=number in lost)
    return Seen(entries, keys)


def with_write(before: StoredValue | None, what: str, data: bytes, *, is_lost: bool) -> StoredValue | None:
    if is_lost:
        lost = LostWrites(deltas=1) if what == "merge" else LostWrites(values=1)
        before = before or StoredValue(b"", ())
        deltas = (*before.deltas, b"") if what == "merge" else before.deltas
        return StoredValue(before.base, deltas, lost)
    if what == "delete":
        return None
    if what != "merge":
        return StoredValue(data, ())
    before = before or StoredValue(b"", ())
    return dataclasses.replace(before, deltas=(*before.deltas, data))


def observe(store: FileStore) -> Seen:
    entries: dict[str, list[bytes | None]] = {}
    for owner in (*OWNERS, NOBODY):
        for info in store.ledgers(owner):
            entries[owner] = [read(store, info.ledger_id, entry_id) for entry_id in range(info.entries)]
    keys = {key: store.keys.get(key) for key in KEYS}
    assert dict(store.keys.scan("")) == {key: value for key, value in keys.items() if value is not None}
    return Seen(entries, keys)


def read(store: FileStore, ledger_id: int, entry_id: int) -> bytes | None:
    try:
        (entry,) = store.read(ledger_id, entry_id, entries_max=1, bytes_max=1)
    except EntriesDamaged as error:
        check_names_entry(store, error, ledger_id, entry_id)
        return None
    return entry


def check_names_entry(store: FileStore, error: EntriesDamaged, ledger_id: int, entry_id: int) -> None:
    assert (error.damage.ledger_id, error.damage.first_entry_id) == (ledger_id, entry_id)
    assert error.damage in store.damage.found


class LogByte(NamedTuple):
    """Byte of the log: the operation it belongs to (-1: the head of a group), and its index in there."""

    offset: int
    operation: int
    index: int


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Discard log messages of damage, of which there are thousands."""
    caplog.set_level("CRITICAL", "geminga.ledger")


@pytest.fixture(scope="module")
def log_bytes():
    return list(find_log_bytes(make_disk(clean=False)))


def find_log_bytes(disk: SimulatedDisk) -> Iterator[LogByte]:
    filesystem = FaultyFileSystem(disk)
    file = LogFiles(filesystem, FOLDER).get(1)
    seed = crc32c(superblock_id(disk))
    operation = -1  # the list of log files comes first
    for header in scan_headers(file, 1, FILE_HEADER_BYTES, seed):
        directory = read_directory(file, header)
        assert directory is not None
        start = header.position & OFFSET_MASK
        for index in range(GROUP_HEADER_BYTES + len(directory.kinds) * RECORD_BYTES):
            yield LogByte(start + index, -1, index)
        start += GROUP_HEADER_BYTES + len(directory.kinds) * RECORD_BYTES
        for kind, size in zip(directory.kinds, directory.sizes, strict=True):
            if operation >= 0 and kind != RecordKind.CHECKPOINT:
                for index in range(size):
                    yield LogByte(start + index, operation, index)
            start += size
            operation += kind != RecordKind.CHECKPOINT
    assert operation == len(OPERATIONS)


def superblock_id(disk: SimulatedDisk) -> bytes:
    return bytes(disk.names[f"{FOLDER}/superblock"].visible[20:36])


def check(
    disk: SimulatedDisk, *harmed: int, heads: int = 0, verify: bool = False, closes: bool = False
) -> None:
    """Check the content and damage of a store with flipped bits, and settle the damage. The bits are in
    operations, one in each, or in ``heads``, which harm nothing."""
    store = open_store(disk, verify=verify)
    found = observe(store)
    assert found == expected_of(frozenset(harmed))
    if not harmed:
        assert [thing.lost for thing in store.damage.found] == [DamageLoss.NOTHING] * max(heads, 1)
    elif found != expected_of():
        check_names(store.damage.found, [OPERATIONS[each] for each in harmed])
    for thing in store.damage.found:
        assert store.damage.settle(thing.name)
    assert not store.damage.found
    if closes or not next(CHECKED) % CLOSED_EACH:
        store.close()
    else:
        store.abandon()


def check_names(damage: list[Damage], operations: list[Operation]) -> None:
    named = [
        (thing.lost, thing.key if thing.lost in (DamageLoss.DELTA, DamageLoss.VALUE) else thing.ledger_id)
        for thing in damage
    ]
    wanted: list[tuple[DamageLoss, str | int]] = []
    for what, name, _ in operations:
        if what in ("create", "append"):
            wanted.append((DamageLoss.OWNER if what == "create" else DamageLoss.ENTRIES, LEDGERS[name]))
        else:
            wanted.append((DamageLoss.DELTA if what == "merge" else DamageLoss.VALUE, name))
    assert sorted(named, key=str) == sorted(wanted, key=str)


def flip(disk: SimulatedDisk, *flips: tuple[int, int]) -> SimulatedDisk:
    """Copy the disk with these bits of these bytes flipped."""
    flipped = disk.copy()
    content = flipped.content(LOG)
    for offset, bit in flips:
        content[offset] ^= 1 << bit
    return flipped


def test_flipped_bits_of_key_records_are_detected(log_bytes, record_property, part):
    """Flips all bits of key records: of a topic, a policy, a cursor's snapshot or an acknowledgement."""
    disk = make_disk(clean=False)
    flips = 0
    for log_byte in part(log_bytes, 3):
        if log_byte.operation >= 0 and OPERATIONS[log_byte.operation][0] != "append":
            what, name, _ = OPERATIONS[log_byte.operation]
            # A flip in the name of a key is corrected: the name has a checksum of its own.
            harmed = [log_byte.operation] if what == "create" or log_byte.index >= len(name) else []
            for bit in range(8):
                check(flip(disk, (log_byte.offset, bit)), *harmed)
                flips += 1
    assert flips > 500
    record_property("bit_flips", flips)


@pytest.mark.slow
def test_flipped_bits_of_headers_are_corrected(log_bytes, record_property, part):
    """A group's head separates the records of many topics; a flipped bit in it harms none of them."""
    disk = make_disk(clean=False)
    groups: list[list[tuple[int, int]]] = []
    flips = 0
    chosen = set(part(log_bytes, 3))
    for log_byte in log_bytes:
        if log_byte.operation < 0:
            if not log_byte.index:
                groups.append([])
            for bit in range(8 if log_byte in chosen else 0):
                flips += 1
                if bit == log_byte.index % ALONE_EACH:
                    check(flip(disk, (log_byte.offset, bit)))
                else:
                    groups[-1].append((log_byte.offset, bit))
    assert flips > 2000
    for each in groups:
        CHANCE.shuffle(each)
    while any(groups):
        together = [each.pop() for each in groups if each]
        check(flip(disk, *together), heads=len(together))
    record_property("bit_flips", flips)


@pytest.mark.slow
def test_flipped_bits_of_entries_are_detected(log_bytes, record_property):
    disk = make_disk(clean=False)
    check_entries(disk, log_bytes, ENTRIES_SAMPLED)
    record_property("bit_flips", ENTRIES_SAMPLED)


@pytest.mark.parametrize("catalog", ["kept", "lost"])
def test_flipped_bits_of_entries_after_closing_are_detected(log_bytes, catalog):
    disk = make_disk(clean=True)
    if catalog == "lost":
        disk.databases.clear()
    check_entries(disk, log_bytes, min(500, ENTRIES_SAMPLED), verify=catalog == "kept")


def check_entries(disk: SimulatedDisk, log_bytes: list[LogByte], count: int, *, verify: bool = False) -> None:
    entries: dict[str, list[LogByte]] = {"a": [], "b": []}
    for log_byte in log_bytes:
        what, name, _ = OPERATIONS[log_byte.operation] if log_byte.operation >= 0 else ("", "", b"")
        if what == "append" and name in entries:
            entries[name].append(log_byte)
    done = looks = 0
    while done < count:
        looks += 1
        owners = [*entries] if looks % ALONE_EACH else [CHANCE.choice([*entries])]
        together = [CHANCE.choice(entries[each]) for each in owners]
        flips = [(log_byte.offset, CHANCE.randrange(8)) for log_byte in together]
        check(flip(disk, *flips), *(log_byte.operation for log_byte in together), verify=verify)
        done += len(together)


def test_damage_before_a_checkpoint_harms_no_key(log_bytes):
    """The catalog has these records; opening the store writes them to the log again."""
    disk = make_disk(clean=True)
    keys = [p for p in log_bytes if p.operation >= 0 and OPERATIONS[p.operation][0] != "append"]
    for log_byte in CHANCE.sample(keys, 200):
        flipped = flip(disk, (log_byte.offset, CHANCE.randrange(8)))
        check(flipped, verify=True, closes=True)
        flipped.databases.clear()
        store = open_store(flipped)
        assert observe(store) == expected_of()
        store.close()
