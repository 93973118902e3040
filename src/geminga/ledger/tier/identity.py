"""Identity of a copy of a store: the file ``identity`` in the store's folder.

A copy of a store has all data of the store, its id included. Actions that only one of the copies may do
(deleting offloaded files that both know of) need to distinguish the copies::

    {"version": 1, "instance": ..., "file": inode, "home": id of a storage location,
     "sessions": {id of a storage location: [...]}}

``instance`` is unique to the copy. It is valid only for this very file, identified by its inode, which
copying does not preserve: in a copy it does not match, in a restored backup the file is missing, and the copy
then creates an instance of its own. Copies of whole disks keep it; for these, ``sessions`` has,
per storage location, the last openings of the store that claimed it (`geminga.ledger.tier.claim`).
``home`` is the storage location claimed last, which holds the offloaded ledgers.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field

from geminga.ledger.files.filesystem import FileSystem, read_start, write_fully

IDENTITY_FILE = "identity"
VERSION = 1
_LOCATIONS_MAX = 16
_BYTES_MAX = 64 * 1024


def new_id() -> str:
    return os.urandom(16).hex()


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """Content of the file ``identity``. ``sessions``: newest storage location last, newest session first."""

    instance: str
    sessions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    home: str = ""
    """Empty if an earlier version of Geminga claimed the storage location."""

    def with_session(self, location_id: str, sessions: tuple[str, ...]) -> StoreIdentity:
        """Return the identity with the sessions of an opening that is about to claim a storage location."""
        kept = {name: each for name, each in self.sessions.items() if name != location_id}
        kept[location_id] = sessions
        return StoreIdentity(self.instance, dict(list(kept.items())[-_LOCATIONS_MAX:]), location_id)


def look(filesystem: FileSystem, folder: str) -> StoreIdentity | None:
    """Return the identity of the store in a folder; None if it has none of its own. Changes nothing.

    Raises `OSError` of a disk that does not answer.
    """
    path = f"{folder}/{IDENTITY_FILE}"
    try:
        data = read_start(filesystem, path, _BYTES_MAX)
        this = filesystem.identity_of(path)
    except FileNotFoundError:
        return None
    try:
        kept = json.loads(data)
        if kept["version"] != VERSION or kept["file"].partition(".")[0] != this.partition(".")[0]:
            return None
        sessions = {str(location_id): tuple(map(str, each)) for location_id, each in kept["sessions"].items()}
        return StoreIdentity(str(kept["instance"]), sessions, str(kept.get("home", "")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # damaged: the store is then treated as a new copy


def save(filesystem: FileSystem, folder: str, identity: StoreIdentity) -> None:
    """Write the identity durably. Raises `OSError`; the file then has the old or the new content."""
    path = f"{folder}/{IDENTITY_FILE}"
    with contextlib.closing(filesystem.open(path + ".new", create=True)) as file:
        kept = {
            "version": VERSION,
            "instance": identity.instance,
            "file": filesystem.identity_of(path + ".new"),
            "home": identity.home,
            "sessions": identity.sessions,
        }
        file.truncate(0)
        write_fully(file, [json.dumps(kept, indent=1).encode()], 0)
        file.sync()
    filesystem.rename(path + ".new", path)
    filesystem.sync_folder(folder)
