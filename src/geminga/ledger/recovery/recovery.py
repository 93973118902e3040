"""Recovery of a store's state from the log after a restart.

Records are accepted by their checksums alone, never because the catalog lists them. The log is read from the
catalog's position (or from its beginning when the catalog is lost), group by group:

* An intact group is replayed.
* A damaged group behind the synced-through mark is a torn tail: nothing in it was confirmed. It is cut off,
  with a message in the broker's log.
* A damaged group before the mark is damage: it is listed in the quarantine, with file, offset, and loss, and
  intact groups around it are replayed.

The mark is the furthest of the positions that the mark file, the catalog and the groups record as synced.
Recovery changes nothing on disk but the tail (cut, or written again to be sure of it), so it can be
interrupted anywhere and repeated.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from geminga.errors import StoreDamaged
from geminga.ledger.damage import Damage, DamageLoss
from geminga.ledger.files.filesystem import FileSystem, write_fully
from geminga.ledger.files.format import (
    FILE_HEADER_BYTES,
    GROUP_HEADER_BYTES,
    MARK_BYTES,
    OFFSET_BITS,
    OFFSET_MASK,
    RECORD_BYTES,
    Directory,
    GroupHeader,
    RecordKind,
    decode_file_header,
    decode_group_header,
    decode_mark,
    describe,
    file_name,
    file_number,
    unpack_numbers,
)
from geminga.ledger.log.log import (
    MARK_FILE,
    Gap,
    LogFiles,
    ReadableFile,
    SequentialReader,
    bad_records,
    check_file_header,
    read_directory,
    read_payload,
    scan_headers,
)
from geminga.ledger.recovery.damage import RecoveryDamage
from geminga.ledger.recovery.replay import LogReplay
from geminga.ledger.state.state import StoreState
from geminga.wire.checksum import crc32c

logger = logging.getLogger("geminga.ledger")

_COPY_BYTES = 1024 * 1024


class CatalogOutdatedError(Exception):
    """The catalog is too old: files that it needs are deleted, so the whole log must be read."""


@dataclass(slots=True, eq=False, repr=False)
class Recovered:
    """End of the recovered log, and the sizes of its files."""

    position: int = 0
    sequence: int = 0
    replayed_groups: int = 0
    file_sizes: dict[int, int] = field(default_factory=dict)


class Recovery:
    """Recovery of one store."""

    def __init__(
        self,
        filesystem: FileSystem,
        folder: str,
        store_id: bytes,
        files: LogFiles,
        state: StoreState,
        file_bytes_max: int,
    ) -> None:
        self._filesystem = filesystem
        self._file_bytes_max = file_bytes_max
        self._folder = folder
        self._store_id = store_id
        self._seed = crc32c(store_id)
        self._files = files
        self._state = state
        self._result = Recovered()
        self._replay = LogReplay(state)
        self.damage = RecoveryDamage(folder, state, self._replay)
        self._foreign: set[int] = set()
        self._discarded: set[int] = set()

    def run(self, position: int, sequence: int, sizes: Mapping[int, int]) -> Recovered:
        """Replay the log from ``position`` on (0: all of it) into the state.

        ``sizes`` are the sizes of the files before it, as far as the catalog has them.
        """
        began = time.monotonic()
        self.damage.from_beginning = not position
        present = self._present()
        self._report_short_files(present, {**sizes, position >> OFFSET_BITS: position & OFFSET_MASK})
        start = position >> OFFSET_BITS
        numbers = [number for number in present if number >= start and number not in self._foreign]
        found = {number: list(self._headers(number, position)) for number in numbers}
        synced = max(
            [position, self._read_mark()]
            + [
                item.synced_through
                for items in found.values()
                for item in items
                if isinstance(item, GroupHeader)
            ]
        )
        numbers = self._discard_unborn(numbers, found, synced)
        result = self._result
        result.position, result.sequence = position, sequence
        for index, number in enumerate(numbers):
            after = found[numbers[index + 1]] if index + 1 < len(numbers) else None
            if not self._replay_file(number, found[number], synced, after):
                self._discard(numbers[index + 1 :])
                break
        present = [number for number in present if number not in self._discarded]
        if start:
            self._check_catalog_is_recent(start, present)
        self._finish(present, synced)
        if result.replayed_groups:
            why = "the store was not closed" if position else "the catalog is new"
            line = f"{why}: recovered in %.2f s, %d groups of the log replayed"
            logger.info(line, time.monotonic() - began, result.replayed_groups)
        return result

    def _check_catalog_is_recent(self, start: int, present: list[int]) -> None:
        """Refuse a catalog that needs files dropped since, such as one restored from a backup."""
        holder, listed = self._listed(present)
        for number in range(start, max(present, default=0)):
            dropped = number in self._state.dropped_files or (number < holder and number not in listed)
            if dropped and number not in present:
                raise CatalogOutdatedError(
                    f"the catalog is from before {file_name(number)} was rewritten and deleted"
                )

    def verify(self, position: int) -> None:
        """Read and check the log before ``position``, which `run` skips; report the damage."""
        for number in sorted(self._state.files):
            if number > position >> OFFSET_BITS:
                continue
            try:
                file = self._files.get(number)
            except StoreDamaged:
                continue  # `run` reports missing files
            reader = SequentialReader(file)
            for item in scan_headers(reader, number, FILE_HEADER_BYTES, self._seed):
                if item.position >= position:
                    break
                if isinstance(item, Gap):
                    if not item.is_zero:
                        what = "synced bytes that are no group of records"
                        self.damage.report(self.damage.at(item.position, what))
                    continue
                self._verify_group(reader, item)
        self.damage.resolve_names()

    def _verify_group(self, file: ReadableFile, header: GroupHeader) -> None:
        directory = read_directory(file, header)
        if directory is None:
            self.damage.report(self.damage.at(header.position, f"the directory of {header.records} records"))
            return
        self.damage.report_corrected_bits(header, directory)
        positions = directory.positions(header.payload_position)
        payload = read_payload(file, header)
        for index in sorted(bad_records(directory, payload)):
            self.damage.report_record(directory, index, positions[index], payload, is_cataloged=True)

    # --- files ---
    def _present(self) -> list[int]:
        """Return the numbers of the log files in the folder. Files of another name or store are set apart."""
        numbers = sorted(
            number
            for name in self._filesystem.list_folder(self._folder)
            if (number := file_number(name)) is not None
        )
        for number in numbers:
            header = decode_file_header(self._files.get(number).read(FILE_HEADER_BYTES, 0))
            if header is not None and header != (number, self._store_id):
                wrong = check_file_header(self._files.get(number), number, self._store_id)
                self.damage.report(Damage(file_name(number), 0, wrong or "the file's header is wrong"))
                self._foreign.add(number)
        return numbers

    def _report_short_files(self, present: list[int], sizes: Mapping[int, int]) -> None:
        """Report the files that are shorter than their synced size, without reading them."""
        for number in present:
            found = self._files.get(number).size()
            lacking = sizes.get(number, 0) - found
            if lacking > 0 and number not in self._foreign:
                self.damage.report(
                    Damage(file_name(number), found, f"the file ends here, {lacking} bytes too early")
                )

    def _listed(self, present: list[int]) -> tuple[int, set[int]]:
        """Return the newest readable list of log files: (the file that holds it, the files it lists)."""
        for number in reversed(present):
            file = self._files.get(number)
            data = file.read(GROUP_HEADER_BYTES, FILE_HEADER_BYTES)
            header = decode_group_header(data, number << OFFSET_BITS | FILE_HEADER_BYTES, self._seed)
            directory = read_directory(file, header) if header is not None else None
            if header is None or directory is None or directory.kinds[:1] != bytes((RecordKind.MANIFEST,)):
                continue
            payload = read_payload(file, header)[: directory.sizes[0]]
            if crc32c(payload) == directory.crcs[0]:
                return number, set(unpack_numbers("Q", payload))
        return 0, set()

    def _headers(self, number: int, position: int) -> Iterator[GroupHeader | Gap]:
        offset = position & OFFSET_MASK if number == position >> OFFSET_BITS else FILE_HEADER_BYTES
        return scan_headers(SequentialReader(self._files.get(number)), number, offset, self._seed)

    def _read_mark(self) -> int:
        with closing(self._filesystem.open(f"{self._folder}/{MARK_FILE}", create=True)) as file:
            mark = decode_mark(file.read(MARK_BYTES, 0), self._seed)
        return mark[0] if mark is not None else 0

    def _discard_unborn(
        self, numbers: list[int], found: dict[int, list[GroupHeader | Gap]], synced: int
    ) -> list[int]:
        """Discard last files whose creation was interrupted: nothing in them was ever confirmed.

        Header and list of files are synced before the first records are written.
        """
        while numbers:
            number = numbers[-1]
            groups = sum(isinstance(item, GroupHeader) for item in found[number])
            is_begun = groups == 1 and check_file_header(self._files.get(number), number, self._store_id)
            if (groups and not is_begun) or synced >> OFFSET_BITS >= number:
                break
            logger.info("removing %s, whose creation was interrupted", file_name(number))
            self._discard([number])
            numbers = numbers[:-1]
        return numbers

    def _discard(self, numbers: list[int]) -> None:
        for number in numbers:
            self._files.forget(number)
            self._filesystem.unlink(self._files.path(number))
            self._discarded.add(number)
        if numbers:
            self._filesystem.sync_folder(self._folder)

    # --- replay ---
    def _replay_file(
        self,
        number: int,
        items: list[GroupHeader | Gap],
        synced: int,
        following: list[GroupHeader | Gap] | None,
    ) -> bool:
        """Replay a file's groups; False if the log ends before the file's last byte."""
        file = self._files.get(number)
        if self._result.position >> OFFSET_BITS != number:
            wrong = check_file_header(file, number, self._store_id)
            if wrong is not None:
                self.damage.report(Damage(file_name(number), 0, wrong))
            self._result.position = number << OFFSET_BITS | FILE_HEADER_BYTES
        reader = SequentialReader(file)
        sealed_at = next((h.synced_through for h in following or () if isinstance(h, GroupHeader)), None)
        for item in items:
            if isinstance(item, Gap):
                if following is not None and sealed_at is not None and item.position >= sealed_at:
                    continue  # preallocated, never written
                if item.position >= synced:
                    return self._cut(item.position, is_zero=item.is_zero)
                self.damage.report_gap(item, synced)
                self._result.position = max(self._result.position, min(item.end, max(item.position, synced)))
                continue
            if not self._replay_group(reader, item, synced):
                return self._cut(item.position, is_zero=False)
        self._result.file_sizes[number] = self._result.position & OFFSET_MASK
        if sealed_at is not None and sealed_at >> OFFSET_BITS == number and sealed_at > self._result.position:
            lacking = sealed_at - self._result.position
            self.damage.lost_records += lacking // RECORD_BYTES + 1
            what = f"the file ends here, {lacking} bytes too early"
            self.damage.report(self.damage.at(self._result.position, what))
        return True

    def _replay_group(self, file: ReadableFile, header: GroupHeader, synced: int) -> bool:
        """Replay the intact records of a group; False if it belongs to a torn tail."""
        if header.sequence <= self._result.sequence:
            return False  # left over from before an earlier cut
        directory = read_directory(file, header)
        if header.end > synced and (header.was_mended or directory is None or directory.was_mended):
            return False
        if directory is None:
            self.damage.lost_records += header.records
            self.damage.report(self.damage.at(header.position, f"the directory of {header.records} records"))
        else:
            payload = read_payload(file, header)
            bad = bad_records(directory, payload)
            if bad and header.end > synced:
                return False
            self.damage.report_corrected_bits(header, directory)
            self._replay_records(header, directory, payload, bad)
        self._result.position = header.end
        self._result.sequence = header.sequence
        self._result.replayed_groups += 1
        return True

    def _replay_records(
        self, header: GroupHeader, directory: Directory, payload: memoryview, bad: set[int]
    ) -> None:
        positions = directory.positions(header.payload_position)

        def report(index: int) -> None:
            self.damage.report_record(directory, index, positions[index], payload, is_cataloged=False)

        self._replay.group(directory, positions, payload, bad, report)

    def _cut(self, position: int, *, is_zero: bool) -> bool:
        """End the log at this position; always returns False."""
        number, offset = position >> OFFSET_BITS, position & OFFSET_MASK
        file = self._files.get(number)
        size = file.size()
        if not is_zero:
            logger.info(
                "%s: cutting off a torn write (%d bytes that were never confirmed)",
                describe(position),
                size - offset,
            )
        if size > offset:
            file.truncate(offset)
            file.sync()
        self._result.file_sizes[number] = offset
        return False

    # --- end ---
    def _finish(self, present: list[int], synced: int) -> None:
        state, result = self._state, self._result
        for number in sorted(state.files - set(present)):
            self.damage.report(Damage(file_name(number), 0, "the file is missing"))
        holder, listed = self._listed(present)
        dropped = state.dropped_files.union(n for n in present if n < holder and n not in listed)
        leftovers = sorted(dropped.intersection(present) - state.files - self._foreign)
        if leftovers:
            logger.info("removing dropped log files: %s", ", ".join(map(file_name, leftovers)))
            self._discard(leftovers)
        if synced > result.position:
            # The end of the confirmed log is lost; continue behind it, so that no position is reused.
            number = synced >> OFFSET_BITS
            lost = synced - max(result.position, number << OFFSET_BITS)
            for each in range(result.position >> OFFSET_BITS, number):  # of these the sizes are lost, too
                offset = max(0, result.position - (each << OFFSET_BITS))
                lost += max(0, self._file_bytes_max - offset)
            self.damage.lost_records += lost // RECORD_BYTES + 1
            if number in present:
                self.damage.report(self.damage.at(result.position, "synced bytes up to the mark are missing"))
            else:
                self.damage.report(Damage(file_name(number), 0, "the file is missing"))
            if number in present and number == result.position >> OFFSET_BITS:
                self._files.get(number).truncate(synced & OFFSET_MASK)
                result.position = synced
            else:
                # The file itself is missing: offset 0 of its number makes the writer begin the next one.
                result.position = number << OFFSET_BITS
            result.sequence += self.damage.lost_records
        last = max(present, default=0)
        number = result.position >> OFFSET_BITS
        if number not in present or number in self._foreign or last > number:
            # Never write into or over another file: the writer begins the next one.
            result.position = max(last, number) << OFFSET_BITS
        for ledger in self._replay.end():
            name = file_name(ledger.tail.positions[0] >> OFFSET_BITS) if len(ledger.tail) else "log"
            self.damage.report(
                Damage(name, 0, "the ledger's creation is lost", ledger.ledger_id, lost=DamageLoss.OWNER)
            )
        self.damage.resolve_names()
        self.damage.forget_moved()
        self.damage.report_missing_entries()
        state.ledgers.cast_doubt(self.damage.lost_records)
        self._write_tail_again(synced)

    def _write_tail_again(self, synced: int) -> None:
        """Write and sync the bytes behind the mark again.

        After a failed sync the system may show bytes, and names in the folder, that never reached the disk;
        from here on they count as written, so they must be on the disk.
        """
        self._filesystem.sync_folder(self._folder)
        end = self._result.position
        first_file, last_file = synced >> OFFSET_BITS, end >> OFFSET_BITS
        for number in range(max(first_file, 1), last_file + 1):
            start = synced & OFFSET_MASK if number == first_file else 0
            stop = end & OFFSET_MASK if number == last_file else self._result.file_sizes.get(number, 0)
            if start >= stop or number not in self._result.file_sizes:
                continue
            file = self._files.get(number)
            while start < stop:
                data = file.read(min(_COPY_BYTES, stop - start), start)
                if not data:
                    break
                write_fully(file, [data], start)
                start += len(data)
            file.sync()
