"""Claim on a storage location: the store that owns the files, and whether a broker has that store open.

It is the JSON file ``_claim.json`` at the location (Spark and Arrow skip names that start with ``_``), with
the ids of location (``place``), store, copy of the store (``instance``) and opening (``session``), and with
``{"version": 1, "beats": ..., "open": true, "since_ms": ..., "who": "host:/folder"}``.

A store and its copies have the same ``store``. ``instance`` distinguishes the copies, ``session`` the
openings of a store, also of two that continue from the same state (a disk that was cloned or rolled back).
``beats`` grows while the store is open.
"""

import json
from dataclasses import asdict, dataclass

from geminga.ledger.files.space import is_no_space
from geminga.offload.storage import OffloadStorage

VERSION = 1
CLAIM = "_claim.json"
_ID_LENGTH_MAX, _TIME_MS_END = 64, 1 << 47
_BLOCK_BYTES = 512
"""Size of the file, which most disks write atomically."""


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
            ids = (found.place, found.store, found.instance, found.session)
            are_ids = all(isinstance(each, str) and len(each) <= _ID_LENGTH_MAX for each in ids)
            if not (are_ids and isinstance(found.who, str) and 0 <= found.since_ms < _TIME_MS_END):
                raise ValueError("a field has another type or range than brokers write")
            return found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ClaimUnreadable(f"{where} cannot be read: {error!r}") from error
    raise ClaimUnreadable(f"{where} is of version {version}; {VERSION} can be read")


def save(storage: OffloadStorage, claim: Claim) -> None:
    """Write the claim; overwrite the existing bytes if the storage is full: its holder must not seem
    dead, because its deletions free space. Raises `OSError`."""
    data = _encoded(claim)
    try:
        storage.replace(CLAIM, data)
    except OSError as error:
        there = storage.read(CLAIM) if is_no_space(error) else None
        if there is None or len(data) > len(there):
            raise
        try:
            storage.overwrite(CLAIM, data.ljust(len(there)))
        except OSError as refused:
            raise error from refused


def _encoded(claim: Claim) -> bytes:
    """Encode a claim in one block, so that a crash during an overwrite leaves the old or the new claim."""
    fields = {"version": VERSION, **asdict(claim)}
    while len(data := json.dumps(fields).encode()) > _BLOCK_BYTES:
        fields["who"] = f"...{fields['who'][8:]}"
    return data.ljust(_BLOCK_BYTES)
