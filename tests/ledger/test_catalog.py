import sqlite3
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
from cases import cases

from geminga.ledger.api import PrefetchRequest
from geminga.ledger.catalog.catalog import CHUNK_ENTRIES_MAX, Catalog, EntryChunk, LedgerChange
from geminga.ledger.catalog.database import CatalogDamaged
from geminga.ledger.catalog.keys import KeyChange
from geminga.ledger.damage import Damage, DamageLoss
from geminga.ledger.files.filesystem import RealFileSystem
from geminga.ledger.files.format import RECORD_BYTES
from tests.ledger.conftest import STORE_ID, snapshot


def chunk(first: int, count: int, file: int = 1, size: int = 100) -> EntryChunk:
    return EntryChunk(
        first,
        array("Q", [(file << 32) + 1000 + n * size for n in range(count)]),
        array("I", [size] * count),
        array("I", range(count)),
    )


def test_long_chunks_are_split(catalog):
    count = 2 * CHUNK_ENTRIES_MAX + 7
    catalog.write(snapshot(1, ledgers=[LedgerChange(1, "o", count, 1, chunk(0, count, size=1))]))
    assert [len(part) for part in catalog.chunks(1)] == [CHUNK_ENTRIES_MAX, CHUNK_ENTRIES_MAX, 7]
    assert catalog.chunk(1, CHUNK_ENTRIES_MAX).first == CHUNK_ENTRIES_MAX


@pytest.mark.parametrize("files", [[1, 1, 1], [1, 2, 2], [2, 1, 2]])
def test_dropped_entries_are_taken_off_the_live_bytes_of_their_files(catalog, files):
    sizes = {1: 10_000, 2: 20_000}
    dropped = [
        EntryChunk(
            0, array("Q", [file << 32 | 50 for file in files]), array("I", [7] * 3), array("I", [0] * 3)
        )
    ]
    catalog.write(snapshot(1, file_sizes=sizes, live_bytes=sizes, dropped=[chunk(0, 0), *dropped]))
    assert catalog.live_bytes() == {
        file: size - files.count(file) * (7 + RECORD_BYTES) for file, size in sizes.items()
    }


@pytest.mark.parametrize("prefix", ["a", "a\ud7ff", "a\U0010ffff", "\U0010ffff", ""])
def test_a_prefix_finds_all_its_keys_and_no_others(catalog, prefix):
    keys = ["", "a", "a\ud7ff", "a\ud7ffz", "a\ue000", "a\U0010ffff", "a\U0010ffffz", "b", "\U0010ffff"]
    catalog.write(snapshot(1, keys={key: KeyChange(key.encode(), 0, b"v") for key in keys}))
    found = [key for key, _ in catalog.keys.values(prefix, None, 99, 100)]
    assert found == [key for key in keys if key.startswith(prefix)]


def test_damage_and_doubted_ledgers_are_read_back(catalog):
    damage = Damage("log-0000000001", 5, "what", 1, 2, 3, lost=DamageLoss.ENTRIES)
    catalog.write(snapshot(1, damage=[damage, damage], settled=["log-0000000001@9"], doubt=(5, 100)))
    assert catalog.damage() == [damage]
    assert catalog.settled() == ["log-0000000001@9"]
    assert (catalog.number("doubt_below"), catalog.number("doubt_entries")) == (5, 100)


def test_a_failed_checkpoint_changes_nothing(catalog):
    catalog.write(snapshot(1, keys={"k": KeyChange(b"k", 0, b"base")}))
    broken = snapshot(2, keys={"k": KeyChange(b"k", 0, b"other")}, damage=["no damage"])
    with pytest.raises(AttributeError):
        catalog.write(broken)
    assert catalog.keys.base("k") == b"base"
    assert catalog.number("number") == 1


@pytest.mark.parametrize(("table", "change"), cases("catalog_rows_changed"))
def test_changed_rows_are_detected(tmp_path, table, change):
    noted: list[int] = []
    connection = RealFileSystem().connect(str(tmp_path / "catalog.db"))
    catalog = Catalog(connection, lambda: noted.append(1))
    catalog.create(STORE_ID)
    keys = {"k": KeyChange(b"k", 0, b"base", deltas=[b"1"])}
    catalog.write(snapshot(1, ledgers=[LedgerChange(1, "o", 4, 400, chunk(0, 4))], keys=keys))
    connection.execute(change)
    reads: dict[str, Callable[[], object]] = {
        "meta": lambda: catalog.number("position"),
        "ledger": lambda: catalog.ledger(1),
        "chunk": lambda: catalog.chunk(1, 2),
        "item": lambda: catalog.keys.base("k"),
        "delta": lambda: catalog.keys.deltas("k", 99),
    }
    with pytest.raises(CatalogDamaged, match="rebuilt from the log"):
        reads[table]()
    assert noted


def test_a_file_that_is_no_database_is_detected(tmp_path):
    path = tmp_path / "catalog.db"
    path.write_bytes(b"no database at all, but long enough to be taken for one" * 50)
    with pytest.raises(sqlite3.DatabaseError):
        RealFileSystem().connect(str(path))


def bytes_read() -> int:
    """Return how many bytes this process has read from files so far."""
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counters["rchar"])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts what is read as Linux tells it")
def test_reading_ahead_reads_whole_values(catalog, tmp_path):
    large, delta = bytes(500_000), bytes(300_000)
    with_owner = [LedgerChange(n, "owner", 1, 100, chunk(0, 1)) for n in range(3)]
    keys = {"a": KeyChange(b"a", 1, base=large, deltas=[delta]), "b": KeyChange(b"b", 2, base=bytes(900_000))}
    catalog.write(snapshot(1, ledgers=with_owner, keys=keys))
    catalog.close()
    fresh = Catalog(RealFileSystem().connect(str(tmp_path / "catalog.db")))
    fresh.meta("number")
    before = bytes_read()
    fresh.read_ahead(PrefetchRequest((("a", "a"), ("nowhere", "nowhere")), (("owner", "owner"),)))
    assert bytes_read() - before > 800_000
