"""Claim on a storage location: the store that owns the files, and whether a broker has that store open.

It is the JSON file ``_claim.json`` at the location (Spark and Arrow skip names that start with ``_``), with
the ids of location (``place``), store, copy of the store (``instance``) and opening (``session``), and with
``{"version": 1, "beats": ..., "open": true, "since_ms": ..., "who": "host:/folder"}``.

A store and its copies have the same ``store``. ``instance`` distinguishes the copies, ``session`` the
openings of a store, also of two that continue from the same state (a disk that was cloned or rolled back).
``beats`` grows while the store is open.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, dataclass

from geminga.offload.storage import OffloadStorage

VERSION = 1
CLAIM = "_claim.json"
_PADDED_BYTES = 512
"""Size that most disks write atomically."""


class ClaimUnreadable(Exception):
    """The file is no claim, or has an unknown version."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Content of the claim file; the module describes the fields."""

    place: str
    store: str
    instance: str
    session: str
    beats: int
    open: bool
    who: str
    since_ms: int


def load(storage: OffloadStorage) -> Claim | None:
    """Return the claim on a storage location; None without one. Raises `OSError` or `ClaimUnreadable`."""
    data = storage.read(CLAIM)
    if data is None:
        return None
    where = f"{storage.location}/{CLAIM}"
    try:
        kept = json.loads(data)
        version = kept.pop("version")
        if version == VERSION:
            found = Claim(**kept)
            texts = (found.place, found.store, found.instance, found.session, found.who)
            if not all(isinstance(each, str) for each in texts):
                raise ValueError("a field that must be text is not")
            return found
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClaimUnreadable(f"{where} cannot be read: {error!r}") from error
    raise ClaimUnreadable(f"{where} is of version {version}; {VERSION} can be read")


def save(storage: OffloadStorage, claim: Claim) -> None:
    """Write the claim on the storage location. Raises `OSError`."""
    storage.replace(CLAIM, _encoded(claim))


def save_in_place(storage: OffloadStorage, claim: Claim) -> None:
    """Overwrite the existing claim within its size, for storage that is full. Raises `OSError`, also if the
    storage does not support that."""
    there = storage.read(CLAIM)
    data = _encoded(claim)
    if there is not None and len(data) > len(there):
        data = json.dumps(_fields(claim), separators=(",", ":")).encode().ljust(len(there))
    if there is None or len(data) > len(there):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{storage.location}/{CLAIM}")
    storage.overwrite(CLAIM, data.ljust(len(there)))


def _fields(claim: Claim) -> dict[str, object]:
    return {"version": VERSION, **asdict(claim)}


def _encoded(claim: Claim) -> bytes:
    """Encode a claim padded with spaces, so that changes need no more space. Fields that change while a store
    is open are in the first block: a crash during an overwrite leaves the old or the new claim."""
    fields = _fields(claim)
    who = json.dumps(fields.pop("who"))
    head, rest = json.dumps(fields, indent=1)[:-2] + ",", f'\n "who": {who}\n}}'
    if len(head) + len(rest) > _PADDED_BYTES:
        head = head.ljust(_PADDED_BYTES)
    data = (head + rest).encode()
    return data.ljust(-(-len(data) // _PADDED_BYTES) * _PADDED_BYTES)
