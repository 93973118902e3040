"""Manifest of a topic's offloaded ledgers: their files and statistics.

It is the file ``manifest.json`` in the topic's folder, for readers of the ledgers without a broker::

    {"version": 2, "store": id of the store that offloaded the ledgers, "topic": ...,
     "pages": [{"file": "_manifest-...json", "first": 17, "last": 80, "count": 64, "digest": ...}, ...],
     "ledgers": [
        {"ledger": 81, "offset": ..., "file": "ledger-...parquet", "file_bytes": ..., "crc32c": ...,
         "uuid": ..., "entries": ..., "messages": ..., "closed": ..., "entry_bytes": ...,
         "publish": [first, last], "event": [first, last], "offloaded_ms": ..., "plain": ...,
         "tail": [size, crc32c]}, ...]}

The newest ledgers are in the manifest, the others in pages, which contain only ``ledgers``: so an offload
writes at most about a page, however many ledgers there are. A page is never changed. Its name depends on its
content, and one write of the manifest replaces pages by others.

Ledgers are in order. ``offset`` is the number of entries before the ledger in the topic's whole history: if a
ledger ends at the offset at which the next begins, no ledger is missing in between. ``file_bytes`` and
``crc32c`` are the file's; ``entry_bytes`` is the size of the entries in the store; ``closed`` counts entries
without rows, such as encrypted ones; ``plain`` is true if the rows are all that a reader needs
(`geminga.offload.file`; false if missing); ``tail`` is the Parquet footer with its size and magic. Times are
milliseconds since 1970; a span is null if no message has the time. ``digest`` is a digest of the uuids of a
page's ledgers.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

from geminga.offload.storage import MANIFEST, OffloadStorage, folder_of

logger = logging.getLogger("geminga.offload")

VERSION = 2
PAGE_LEDGERS = 64
PAGE_PREFIX = "_manifest-"
"""File name prefix of pages; Spark and Arrow skip names that start with ``_``."""
_TIDY_MAX = 10_000


class ManifestUnreadable(Exception):
    """The file is no manifest, or has an unknown version."""


class ManifestNewer(ManifestUnreadable):
    """The manifest has a later version, and must not be replaced."""


@dataclass(frozen=True, slots=True)
class OffloadedLedger:
    """Record of one offloaded ledger, in the manifest and in the store; the module describes the fields."""

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
    plain: bool = False
    tail: tuple[int, int] | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, kept: dict[str, Any]) -> OffloadedLedger:
        """Decode a record. Raises `ManifestUnreadable`."""
        try:
            known = {name: value for name, value in kept.items() if name in cls.__slots__}
            pairs: dict[str, Any] = {
                name: None if known[name] is None else tuple(known[name])
                for name in ("publish", "event", "tail")
                if name in known
            }
            return cls(**{**known, **pairs})
        except (TypeError, KeyError) as error:
            raise ManifestUnreadable(f"an offloaded ledger is named as {kept!r}") from error


@dataclass(frozen=True, slots=True)
class ManifestPage:
    """Reference to a page in the manifest; the module describes the fields."""

    file: str
    first: int
    last: int
    count: int
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Offloaded ledgers of a topic: all, or those in ``manifest.json`` itself, with references to pages."""

    store: str
    topic: str
    ledgers: tuple[OffloadedLedger, ...]
    pages: tuple[ManifestPage, ...] = ()


def _digest(ledgers: Sequence[OffloadedLedger]) -> str:
    return blake2b("".join(each.uuid for each in ledgers).encode(), digest_size=12).hexdigest()


def _page_of(ledgers: Sequence[OffloadedLedger]) -> ManifestPage:
    first, digest = ledgers[0].ledger, _digest(ledgers)
    return ManifestPage(
        f"{PAGE_PREFIX}{first:019d}-{digest}.json", first, ledgers[-1].ledger, len(ledgers), digest
    )


def _encode(kept: dict[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, **kept}, separators=(",", ":")).encode()


def _decode(data: bytes, where: str) -> dict[str, Any]:
    try:
        kept = json.loads(data)
        version = kept["version"]
        if version == VERSION:
            kept["ledgers"] = tuple(OffloadedLedger.of_json(each) for each in kept["ledgers"])
            kept["pages"] = tuple(ManifestPage(**each) for each in kept.get("pages", ()))
            return dict(kept)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ManifestUnreadable(f"{where} cannot be read: {error!r}") from error
    unreadable = ManifestNewer if isinstance(version, int) and version > VERSION else ManifestUnreadable
    raise unreadable(f"{where} is of version {version}; {VERSION} can be read")


def path_of(topic: str) -> str:
    return f"{folder_of(topic)}/{MANIFEST}"


def load_head(storage: OffloadStorage, topic: str) -> Manifest | None:
    """Return the manifest without its pages; None if no ledger is offloaded. Raises as `load` does."""
    path = path_of(topic)
    data = storage.read(path)
    if data is None:
        return None
    where = f"{storage.location}: {path}"
    kept = _decode(data, where)
    try:
        return Manifest(kept["store"], kept["topic"], kept["ledgers"], kept["pages"])
    except KeyError as error:
        raise ManifestUnreadable(f"{where} cannot be read: {error!r}") from error


def replaceable_head(storage: OffloadStorage, topic: str) -> Manifest | None:
    """Return the manifest that is to be replaced; None without one, or if it is damaged. Raises `OSError` or
    `ManifestNewer`."""
    try:
        return load_head(storage, topic)
    except ManifestNewer:
        raise
    except ManifestUnreadable as error:
        logger.warning("%s; it is written again", error)
        return None


def load(storage: OffloadStorage, topic: str) -> Manifest | None:
    """Return the offloaded ledgers of a topic; None without any. Raises `OSError` or `ManifestUnreadable`."""
    head = load_head(storage, topic)
    while head is not None:
        ledgers: list[OffloadedLedger] = []
        for page in head.pages:
            found = _load_page(storage, topic, page)
            if found is None:
                break
            ledgers += found
        else:
            ledgers += head.ledgers
            ledgers.sort(key=lambda each: each.ledger)
            return Manifest(head.store, head.topic, tuple(ledgers))
        # The page may have been replaced, together with the manifest.
        before, head = head, load_head(storage, topic)
        if head == before:
            raise ManifestUnreadable(f"{storage.location}: {folder_of(topic)}/{page.file} is not there")
    return None


def _load_page(storage: OffloadStorage, topic: str, page: ManifestPage) -> tuple[OffloadedLedger, ...] | None:
    path = f"{folder_of(topic)}/{page.file}"
    data = storage.read(path)
    if data is None:
        return None
    found: tuple[OffloadedLedger, ...] = _decode(data, f"{storage.location}: {path}")["ledgers"]
    if (len(found), _digest(found)) != (page.count, page.digest):
        raise ManifestUnreadable(f"{storage.location}: {path} is not what the manifest names")
    return found


def files_of(storage: OffloadStorage, topic: str) -> set[str]:
    """Return the names of the manifest's own files. Raises as `load` does."""
    head = load_head(storage, topic)
    return set() if head is None else {MANIFEST, *(page.file for page in head.pages)}


class ManifestWriter:
    """Writes the manifests of a storage location; on one thread."""

    def __init__(self, storage: OffloadStorage, store: str) -> None:
        self._storage = storage
        self._store = store
        self._tidy: set[str] = set()
        """Topics without leftover pages of a crash or of storage that did not answer."""

    def save(self, topic: str, ledgers: Sequence[OffloadedLedger]) -> None:
        """Write the manifest of a topic's offloaded ledgers; without ledgers the manifest is deleted.

        Raises `OSError` or `ManifestNewer`.
        """
        is_tidy = topic in self._tidy
        self._tidy.discard(topic)
        storage, folder = self._storage, folder_of(topic)
        head = replaceable_head(storage, topic)
        before = () if head is None else head.pages
        is_tidy = is_tidy and head is not None
        if not is_tidy:
            # Pages may have been deleted or damaged before: those are written again.
            before = tuple(page for page in before if self._is_whole(topic, page))
        ordered = sorted(ledgers, key=lambda each: each.ledger)
        pages, tail = _paged(ordered, before)
        for page, held in pages:
            if page not in before:
                storage.replace(
                    f"{folder}/{page.file}", _encode({"ledgers": [each.as_json() for each in held]})
                )
        if ordered:
            kept = {
                "store": self._store, "topic": topic, "pages": [asdict(page) for page, _ in pages],
                "ledgers": [each.as_json() for each in tail],
            }  # fmt: skip
            storage.replace(path_of(topic), _encode(kept))
        else:
            storage.delete(path_of(topic))
        there = {page.file for page in before} if is_tidy else set(storage.names(folder))
        for name in sorted(there - {page.file for page, _ in pages}):
            if name.startswith(PAGE_PREFIX):
                storage.delete(f"{folder}/{name}")
        if len(self._tidy) >= _TIDY_MAX:
            self._tidy.clear()
        self._tidy.add(topic)

    def _is_whole(self, topic: str, page: ManifestPage) -> bool:
        """Whether a page exists and matches the manifest. Raises `OSError`."""
        try:
            return _load_page(self._storage, topic, page) is not None
        except ManifestUnreadable as error:
            logger.warning("%s; it is written again", error)
            return False


def _paged(
    ordered: Sequence[OffloadedLedger], before: Sequence[ManifestPage]
) -> tuple[list[tuple[ManifestPage, Sequence[OffloadedLedger]]], Sequence[OffloadedLedger]]:
    """Split off pages from the ledgers, reusing existing pages that still match; returns (pages, newest)."""
    pages: list[tuple[ManifestPage, Sequence[OffloadedLedger]]] = []
    at = 0
    for page in before:
        start = bisect_left(ordered, page.first, lo=at, key=lambda each: each.ledger)
        stop = bisect_right(ordered, page.last, lo=start, key=lambda each: each.ledger)
        held = ordered[start:stop]
        if len(held) == page.count and _digest(held) == page.digest:
            pages += _cut(ordered[at:start])
            pages.append((page, held))
            at = stop
    rest = ordered[at:]
    full = len(rest) // PAGE_LEDGERS * PAGE_LEDGERS
    return pages + _cut(rest[:full]), rest[full:]


def _cut(ledgers: Sequence[OffloadedLedger]) -> list[tuple[ManifestPage, Sequence[OffloadedLedger]]]:
    parts = [ledgers[at : at + PAGE_LEDGERS] for at in range(0, len(ledgers), PAGE_LEDGERS)]
    return [(_page_of(part), part) for part in parts]
