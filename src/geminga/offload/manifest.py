"""The manifest of a topic's offloaded ledgers: which there are, in which files, and what is in them.

It lies in the topic's folder as ``manifest.json`` and is for whoever reads the ledgers without the broker::

    {"version": 1, "store": id of the store that they are from, "topic": ..., "ledgers": [
        {"ledger": 17, "offset": ..., "file": "ledger-...parquet", "file_bytes": ..., "crc32c": ...,
         "uuid": ..., "entries": ..., "messages": ..., "closed": ..., "entry_bytes": ...,
         "publish": [first, last], "event": [first, last], "offloaded_ms": ...}, ...]}

Ledgers are in order. ``offset`` is the place of a ledger's first entry in all of the topic's history: where
one ends at the offset at which another begins, nothing lies between. ``file_bytes`` and ``crc32c`` are the
file's; ``entry_bytes`` is what the entries took in the ledger; ``closed`` counts entries without rows, as
encrypted ones are. Times are milliseconds since 1970; a span is null where no message has one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from geminga.offload.places import MANIFEST, Place, folder_of

VERSION = 1


class ManifestUnreadable(Exception):
    """A manifest that is not one, or of a version that is not known."""


@dataclass(frozen=True, slots=True)
class OffloadedLedger:
    """One ledger, as the manifest and the store's catalog name it; see the module."""

    ledger: int
    offset: int
    file: str
    file_bytes: int
    crc32c: int
    uuid: str
    entries: int
    messages: int
    closed: int
    entry_bytes: int
    publish: tuple[int, int] | None
    event: tuple[int, int] | None
    offloaded_ms: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, kept: dict[str, Any]) -> OffloadedLedger:
        """Raises `ManifestUnreadable`."""
        try:
            spans = {name: None if kept[name] is None else tuple(kept[name]) for name in ("publish", "event")}
            return cls(**{**kept, **spans})
        except (TypeError, KeyError) as error:
            raise ManifestUnreadable(f"an offloaded ledger is named as {kept!r}") from error


@dataclass(frozen=True, slots=True)
class Manifest:
    """See the module."""

    store: str
    topic: str
    ledgers: tuple[OffloadedLedger, ...]


def encode(manifest: Manifest) -> bytes:
    kept = {
        "version": VERSION,
        "store": manifest.store,
        "topic": manifest.topic,
        "ledgers": [each.as_json() for each in manifest.ledgers],
    }
    return json.dumps(kept, indent=1).encode()


def decode(data: bytes, where: str) -> Manifest:
    """Raises `ManifestUnreadable`."""
    try:
        kept = json.loads(data)
        version = kept["version"]
        if version == VERSION:
            ledgers = tuple(OffloadedLedger.of_json(each) for each in kept["ledgers"])
            return Manifest(kept["store"], kept["topic"], ledgers)
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestUnreadable(f"{where} cannot be read: {error!r}") from error
    raise ManifestUnreadable(f"{where} is of version {version}; {VERSION} can be read")


def path_of(topic: str) -> str:
    return f"{folder_of(topic)}/{MANIFEST}"


def load(place: Place, topic: str) -> Manifest | None:
    """What is offloaded of a topic; None when nothing is. Raises `OSError` or `ManifestUnreadable`."""
    path = path_of(topic)
    data = place.read(path)
    return None if data is None else decode(data, f"{place.location}: {path}")


def save(place: Place, store: str, topic: str, ledgers: Sequence[OffloadedLedger]) -> None:
    """Write down what is offloaded of a topic; without ledgers there is no manifest. Raises `OSError`."""
    path = path_of(topic)
    if ledgers:
        ordered = tuple(sorted(ledgers, key=lambda each: each.ledger))
        place.replace(path, encode(Manifest(store, topic, ordered)))
    else:
        place.delete(path)
