from __future__ import annotations

import errno

import pytest

from geminga.errors import StoreDamaged
from geminga.ledger.format import (
    CREATE,
    ENTRY,
    FILE_HEADER_BYTES,
    MANIFEST,
    OFFSET_BITS,
    GroupHeader,
    unpack_numbers,
)
from geminga.ledger.log import (
    Gap,
    LogEnd,
    LogFiles,
    LogWriter,
    Record,
    check_file_header,
    read_directory,
    read_payload,
    scan_headers,
)
from geminga.testing.faulty_filesystem import FaultyFile, FaultyFileSystem, SimulatedDisk
from geminga.wire.checksum import crc32c

STORE_ID = bytes(range(16))
SEED = crc32c(STORE_ID)


@pytest.fixture
def filesystem() -> FaultyFileSystem:
    filesystem = FaultyFileSystem(SimulatedDisk())
    filesystem.make_folder("/store")
    return filesystem


def make_writer(filesystem: FaultyFileSystem, *, preallocate_bytes: int = 0) -> LogWriter:
    return LogWriter(
        filesystem,
        "/store",
        STORE_ID,
        end=LogEnd(next_ledger_id=5),
        file_bytes_max=4096,
        preallocate_bytes=preallocate_bytes,
    )


def record(number: int, size: int = 500) -> Record:
    return ENTRY, 1, number, bytes([number]) * size, None


def test_groups_are_found_where_they_were_written(filesystem: FaultyFileSystem) -> None:
    writer = make_writer(filesystem)
    groups = [writer.write([record(n), record(n + 1)]) for n in range(0, 20, 2)]
    writer.sync()
    files = LogFiles(filesystem, "/store")
    found = []
    for number in sorted({group.position >> OFFSET_BITS for group in groups}):
        file = files.get(number)
        assert check_file_header(file, number, STORE_ID) is None
        headers = list(scan_headers(file, number, FILE_HEADER_BYTES, SEED))
        assert all(isinstance(header, GroupHeader) for header in headers)
        for header in headers:
            assert isinstance(header, GroupHeader)
            directory = read_directory(file, header)
            assert directory is not None
            if directory.kinds[0] == MANIFEST:
                assert set(unpack_numbers("Q", read_payload(file, header))) == set(range(1, number + 1))
                assert directory.firsts[0] == 5
                continue
            found.append((header.position, header.end, header.sequence))
            for position, group_position in zip(
                directory.positions(header.payload_position), groups[len(found) - 1].positions, strict=True
            ):
                assert position == group_position
    assert found == [(group.position, group.end, group.sequence) for group in groups]
    assert len({group.position >> OFFSET_BITS for group in groups}) > 1
    sealed = [group.sealed for group in groups if group.sealed is not None]
    assert [number for number, _ in sealed] == list(range(1, len(sealed) + 1))


def test_a_group_larger_than_a_file_gets_a_file_of_its_own(filesystem: FaultyFileSystem) -> None:
    writer = make_writer(filesystem)
    first, big, after = (writer.write([record(n, size)]) for n, size in ((1, 10), (2, 9000), (3, 10)))
    numbers = [group.position >> OFFSET_BITS for group in (first, big, after)]
    assert numbers == [1, 2, 3]


def test_a_creation_that_is_written_again_does_not_lower_the_next_ledger_id(
    filesystem: FaultyFileSystem,
) -> None:
    """Rewriting and adoption repeat creations of old ledgers; the ids of newer ones must not be reused."""
    writer = make_writer(filesystem)
    writer.write([(CREATE, 9, 0, b"new", None)])
    writer.write([(CREATE, 2, 0, b"old", None)])
    assert writer.next_ledger_id == 10


def test_preallocated_space_is_freed(filesystem: FaultyFileSystem) -> None:
    writer = make_writer(filesystem, preallocate_bytes=2048)
    group = writer.write([record(1)])
    inode = filesystem.disk.names["/store/log-0000000001"]
    assert len(inode.visible) > group.end & 0xFFFFFFFF
    writer.sync()
    writer.close(clean=True)
    assert len(inode.durable) == group.end & 0xFFFFFFFF


def test_without_support_for_preallocation_groups_are_written(
    filesystem: FaultyFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: FaultyFile, offset: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(FaultyFile, "allocate", refuse)
    writer = make_writer(filesystem, preallocate_bytes=2048)
    groups = [writer.write([record(number)]) for number in range(6)]
    writer.sync()
    assert groups[5].end == writer.position
    assert len(filesystem.disk.names["/store/log-0000000001"].durable) == writer.offset


def test_gaps_between_groups_are_found(filesystem: FaultyFileSystem) -> None:
    writer = make_writer(filesystem)
    groups = [writer.write([record(n)]) for n in range(3)]
    writer.sync()
    content = filesystem.disk.content("/store/log-0000000001")
    content[groups[1].position & 0xFFFFFFFF] ^= 3
    content.extend(bytes(700))
    file = LogFiles(filesystem, "/store").get(1)
    items = list(scan_headers(file, 1, FILE_HEADER_BYTES, SEED))[1:]
    assert [type(item) for item in items] == [GroupHeader, Gap, GroupHeader, Gap]
    damaged, tail = items[1], items[3]
    assert isinstance(damaged, Gap)
    assert (damaged.position, damaged.end, damaged.is_zero) == (groups[1].position, groups[2].position, False)
    assert isinstance(tail, Gap)
    assert tail.is_zero
    assert tail.position == groups[2].end


def test_open_files_are_bounded(filesystem: FaultyFileSystem) -> None:
    for number in range(1, 200):
        filesystem.open(f"/store/log-{number:010d}", create=True)
    files = LogFiles(filesystem, "/store")
    for number in range(1, 200):
        files.get(number)
    assert len(files._open) <= 64
    with pytest.raises(StoreDamaged, match="log-0000000500 is missing"):
        files.get(500)
    files.close()


def test_entries_of_wider_items_are_refused(filesystem: FaultyFileSystem) -> None:
    writer = make_writer(filesystem)
    wide = memoryview(bytes(80)).cast("Q")
    with pytest.raises(ValueError, match="single bytes"):
        writer.write([(ENTRY, 1, 0, wide, None), record(1, 20_000)])


@pytest.mark.parametrize("short_of_boundary", [*range(-60, 130, 9), 4096])
def test_a_group_behind_a_long_gap_is_found_at_every_offset(
    filesystem: FaultyFileSystem, short_of_boundary: int
) -> None:
    writer = LogWriter(
        filesystem,
        "/store",
        STORE_ID,
        end=LogEnd(),
        file_bytes_max=8 << 20,
        preallocate_bytes=0,
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
