import errno

import pytest
from doubles import raising

from geminga.errors import StoreDamaged
from geminga.ledger.files.format import FILE_HEADER_BYTES, OFFSET_BITS, GroupHeader, RecordKind
from geminga.ledger.log.log import Gap, LogEnd, LogFiles, LogWriter, Record, scan_headers
from geminga.wire.checksum import crc32c
from tests.support.faulty_filesystem import FaultyFile, FaultyFileSystem

STORE_ID = bytes(range(16))
SEED = crc32c(STORE_ID)


def make_writer(filesystem: FaultyFileSystem, *, preallocate_bytes: int = 0) -> LogWriter:
    end = LogEnd(next_ledger_id=5)
    return LogWriter(
        filesystem, "/store", STORE_ID, end=end, file_bytes_max=4096, preallocate_bytes=preallocate_bytes
    )


def record(number: int, size: int = 500) -> Record:
    return RecordKind.ENTRY, 1, number, bytes([number]) * size, None


def test_a_group_larger_than_a_file_gets_a_file_of_its_own(filesystem):
    writer = make_writer(filesystem)
    first, big, after = (writer.write([record(n, size)]) for n, size in ((1, 10), (2, 9000), (3, 10)))
    assert [group.position >> OFFSET_BITS for group in (first, big, after)] == [1, 2, 3]


def test_a_creation_that_is_written_again_does_not_lower_the_next_ledger_id(filesystem):
    """Rewriting and adoption repeat creations of old ledgers; the ids of newer ones must not be reused."""
    writer = make_writer(filesystem)
    writer.write([(RecordKind.CREATE, 9, 0, b"new", None)])
    writer.write([(RecordKind.CREATE, 2, 0, b"old", None)])
    assert writer.next_ledger_id == 10


def test_preallocated_space_is_freed(filesystem):
    writer = make_writer(filesystem, preallocate_bytes=2048)
    group = writer.write([record(1)])
    inode = filesystem.disk.names["/store/log-0000000001"]
    assert len(inode.visible) > group.end & 0xFFFFFFFF
    writer.sync()
    writer.close(clean=True)
    assert len(inode.durable) == group.end & 0xFFFFFFFF


def test_without_support_for_preallocation_groups_are_written(filesystem, monkeypatch):
    monkeypatch.setattr(FaultyFile, "allocate", raising(OSError(errno.EOPNOTSUPP, "not supported")))
    writer = make_writer(filesystem, preallocate_bytes=2048)
    groups = [writer.write([record(number)]) for number in range(6)]
    writer.sync()
    assert groups[5].end == writer.position
    assert len(filesystem.disk.names["/store/log-0000000001"].durable) == writer.offset


def test_open_files_are_bounded(filesystem):
    for number in range(1, 200):
        filesystem.open(f"/store/log-{number:010d}", create=True)
    files = LogFiles(filesystem, "/store")
    for number in range(1, 200):
        files.get(number)
    assert len(files._open) <= 64
    with pytest.raises(StoreDamaged, match="log-0000000500 is missing"):
        files.get(500)
    files.close()


def test_entries_of_wider_items_are_refused(filesystem):
    writer = make_writer(filesystem)
    wide = memoryview(bytes(80)).cast("Q")
    with pytest.raises(ValueError, match="single bytes"):
        writer.write([(RecordKind.ENTRY, 1, 0, wide, None), record(1, 20_000)])


@pytest.mark.parametrize("short_of_boundary", [*range(-60, 130, 9), 4096])
def test_a_group_behind_a_long_gap_is_found_at_every_offset(filesystem, short_of_boundary):
    writer = LogWriter(
        filesystem, "/store", STORE_ID, end=LogEnd(), file_bytes_max=8 << 20, preallocate_bytes=0
    )
    damaged = writer.write([record(1, (1 << 20) - short_of_boundary)])
    following = writer.write([record(2)])
    content = filesystem.disk.content("/store/log-0000000001")
    content[damaged.position & 0xFFFFFFFF] ^= 3
    items = list(scan_headers(LogFiles(filesystem, "/store").get(1), 1, FILE_HEADER_BYTES, SEED))
    gap, found = items[1:]
    assert isinstance(gap, Gap)
    assert (gap.position, gap.end, gap.is_zero) == (damaged.position, following.position, False)
    assert isinstance(found, GroupHeader)
    assert found.position == following.position
