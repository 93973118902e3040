"""The claim on a place: which store's the files there are, and whether a broker has that store open.

It lies in the place's own folder as ``_claim.json`` (names with ``_`` in front are no data to Spark and
Arrow)::

    {"version": 1, "place": id of the place, "store": id of the store, "instance": which copy of the store,
     "session": which opening of it, "beats": ..., "open": true, "since_ms": ..., "who": "host:/folder"}

A store and its copies have the same id. ``instance`` tells them apart, ``session`` one life of a store from
another that goes on from the same moment (a disk that was cloned or rolled back). ``beats`` grows for as long
as the store is open.
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
"""Most disks write so much as a whole."""


class ClaimUnreadable(Exception):
    """A claim that is not one, or of a version that is not known."""


@dataclass(frozen=True, slots=True)
class Claim:
    """See the module."""

    place: str
    store: str
    instance: str
    session: str
    beats: int
    open: bool
    who: str
    since_ms: int


def load(place: OffloadStorage) -> Claim | None:
    """The claim on a place; None where nobody has claimed it. Raises `OSError` or `ClaimUnreadable`."""
    data = place.read(CLAIM)
    if data is None:
        return None
    where = f"{place.location}/{CLAIM}"
    try:
        kept = json.loads(data)
        version = kept.pop("version")
        if version == VERSION:
            found = Claim(**kept)
            texts = (found.place, found.store, found.instance, found.session, found.who)
            if not all(isinstance(each, str) for each in texts):
                raise ValueError("a name that is none")
            return found
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClaimUnreadable(f"{where} cannot be read: {error!r}") from error
    raise ClaimUnreadable(f"{where} is of version {version}; {VERSION} can be read")


def save(place: OffloadStorage, claim: Claim) -> None:
    """Make it the claim on the place. Raises `OSError`."""
    place.replace(CLAIM, _encoded(claim))


def save_in_place(place: OffloadStorage, claim: Claim) -> None:
    """The same over the claim that is there, in the room that it takes: for a place that has no other. Raises
    `OSError`, also where that cannot be."""
    there = place.read(CLAIM)
    data = _encoded(claim)
    if there is not None and len(data) > len(there):
        data = json.dumps(_fields(claim), separators=(",", ":")).encode().ljust(len(there))
    if there is None or len(data) > len(there):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{place.location}/{CLAIM}")
    place.overwrite(CLAIM, data.ljust(len(there)))


def _fields(claim: Claim) -> dict[str, object]:
    return {"version": VERSION, **asdict(claim)}


def _encoded(claim: Claim) -> bytes:
    """With spaces, so that whatever becomes of it later takes no more room, and what changes while a store is
    open lies in the first block: a crash in the midst of writing it over leaves the one or the other."""
    fields = _fields(claim)
    who = json.dumps(fields.pop("who"))
    head, rest = json.dumps(fields, indent=1)[:-2] + ",", f'\n "who": {who}\n}}'
    if len(head) + len(rest) > _PADDED_BYTES:
        head = head.ljust(_PADDED_BYTES)
    data = (head + rest).encode()
    return data.ljust(-(-len(data) // _PADDED_BYTES) * _PADDED_BYTES)
