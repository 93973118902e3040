"""Which of its copies a store is: the file ``identity`` in the store's folder.

A copy of a store, by whatever means, has all that the store has, its id included. What only one of them may
do (to delete files that both know of, in the place of offloaded ledgers) needs to tell them apart::

    {"version": 1, "instance": ..., "file": which file this is, "home": id of a place,
     "sessions": {id of a place: [...]}}

``instance`` is the copy's own. It holds for this very file alone, by what the file system says of it (inode
and generation), which no copying of files carries over: in a copy it does not match, in one that was brought
back from a backup the file is missing, and the copy takes an instance of its own. Copies of whole disks are
not told by that; ``sessions`` has, for each place, the last openings that the store knows to have claimed it
(`geminga.ledger.tier_claim`), and ``home`` is the place that it claimed last: what it offloaded is there.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field

from geminga.by_fields import ByFields
from geminga.ledger.filesystem import FileSystem, write_fully

IDENTITY_FILE = "identity"
VERSION = 1
_PLACES_MAX = 16
_BYTES_MAX = 64 * 1024


def new_id() -> str:
    return os.urandom(16).hex()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StoreIdentity(ByFields):
    """See the module. ``sessions``: the newest place last, and in each the newest session first."""

    instance: str
    sessions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    home: str = ""
    """Empty where a version before this one has claimed it."""

    def with_session(self, place: str, sessions: tuple[str, ...]) -> StoreIdentity:
        """The same, after an opening that is about to claim a place."""
        kept = {name: each for name, each in self.sessions.items() if name != place}
        kept[place] = sessions
        return StoreIdentity(self.instance, dict(list(kept.items())[-_PLACES_MAX:]), place)


def look(filesystem: FileSystem, folder: str) -> StoreIdentity | None:
    """The identity of the store in a folder; None where it has none of its own. Changes nothing.

    Raises `OSError` of a disk that does not answer.
    """
    path = f"{folder}/{IDENTITY_FILE}"
    try:
        file = filesystem.open_to_read(path)
        try:
            data = file.read(_BYTES_MAX, 0)
        finally:
            file.close()
        this = filesystem.identity_of(path)
    except FileNotFoundError:
        return None
    try:
        kept = json.loads(data)
        if kept["version"] != VERSION or not _is_same(kept["file"], this):
            return None
        sessions = {str(place): tuple(map(str, each)) for place, each in kept["sessions"].items()}
        return StoreIdentity(str(kept["instance"]), sessions, str(kept.get("home", "")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # damage: it is an instance that nobody knows from now on


def _is_same(kept: str, found: str) -> bool:
    """Whether both name one file; a part that the file system did not tell once says nothing."""
    parts, others = kept.split("."), found.split(".")
    return parts[0] == others[0] and all(a == b for a, b in zip(parts, others, strict=True) if a and b)


def save(filesystem: FileSystem, folder: str, identity: StoreIdentity) -> None:
    """Make it the store's, durably. Raises `OSError`; then it is what it was or this."""
    path = f"{folder}/{IDENTITY_FILE}"
    file = filesystem.open(path + ".new", create=True)
    try:
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
    finally:
        file.close()
    filesystem.rename(path + ".new", path)
    filesystem.sync_folder(folder)
