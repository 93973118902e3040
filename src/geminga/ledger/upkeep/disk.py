"""Disk space of a durable store: measured on its worker's thread, and freed by rewriting."""

import dataclasses
from collections.abc import Callable

from geminga.errors import StoreError
from geminga.ledger.api import FreeSpace
from geminga.ledger.damage import Damage
from geminga.ledger.files.format import file_name, file_number
from geminga.ledger.store_parts import StoreParts
from geminga.ledger.upkeep.checkpoints import Checkpoints
from geminga.ledger.upkeep.rewriting import LogRewriter


class FileStoreDisk:
    """Implements `geminga.ledger.api.StoreDisk`."""

    def __init__(
        self,
        parts: StoreParts,
        rewriter: LogRewriter,
        checkpoints: Checkpoints,
        check_files: Callable[[], None],
        note_damage: Callable[[Damage], None],
    ) -> None:
        """``check_files`` raises `StoreError` if a file that the store locks or writes to is no longer in its
        folder."""
        self._parts = parts
        self._rewriter = rewriter
        self._checkpoints = checkpoints
        self._check_files = check_files
        self._note_damage = note_damage
        self._measuring = False
        self.refuse_entries = parts.writes.refuse_entries

    @property
    def space(self) -> FreeSpace | None:
        space = self._parts.gauge.space
        is_full = self._parts.writes.journal.full is not None or self._checkpoints.lacks_room
        return dataclasses.replace(space, free_bytes=0) if is_full and space is not None else space

    def measure(self) -> None:
        if self._measuring or self._parts.writes.is_closed:
            return
        self._measuring = True
        # A file leaves ``sizes`` before the job that deletes it is submitted.
        parts, missing = self._parts, set(self._parts.sizes)

        def look() -> None:
            self._parts.gauge.measure()
            self._check_files()
            missing.difference_update(map(file_number, parts.filesystem.list_folder(parts.folder)))

        def looked(error: Exception | None) -> None:
            self._measuring = False
            if isinstance(error, StoreError):
                self._parts.writes.stop(error, None)
            elif error is None:
                for number in sorted(missing):
                    self._note_damage(Damage(file_name(number), 0, "the file is missing"))

        self._parts.worker.submit(look, looked)

    def give_back(self, *, eagerly: bool) -> None:
        self._rewriter.is_eager = eagerly
        self._checkpoints.deletions_wait = self._checkpoints.deletions_wait or eagerly

    @property
    def gives_back(self) -> bool:
        checkpoints = self._checkpoints
        return checkpoints.deletions_wait or checkpoints.is_running or self._rewriter.is_running
