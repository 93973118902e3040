"""Iteration over the names of topics, a page at a time, each page read ahead."""

from collections.abc import Iterator

from geminga.ledger.api import EntryStore, PrefetchRequest


class TopicNames:
    """Names in order, those of the keys that begin with ``kind`` and ``prefix``, without ``kind``.

    The caller prefetches `wanted`, takes a `page`, and continues until it `is_over`. Names created or deleted
    meanwhile may be included or not. A page may be empty.
    """

    __slots__ = ("_after", "_kind", "_prefix", "_store")

    def __init__(self, store: EntryStore, kind: str, prefix: str, after: str = "") -> None:
        self._store = store
        self._kind = kind
        self._prefix = kind + prefix
        self._after: str | None = kind + after

    @property
    def is_over(self) -> bool:
        return self._after is None

    @property
    def wanted(self) -> PrefetchRequest:
        """Keys of the next page."""
        return PrefetchRequest(pages=((self._prefix, self._after or ""),))

    @property
    def passed(self) -> str:
        """The last name that was returned; empty after the end."""
        return (self._after or "")[len(self._kind) :]

    def page(self) -> list[str]:
        """Return the next names."""
        assert self._after is not None
        names, self._after = self._store.keys.names_page(self._prefix, after=self._after)
        cut = len(self._kind)
        return [name[cut:] for name in names]

    def __iter__(self) -> Iterator[str]:
        """Yield all names at once, reading the disk if needed: for tests, and for few names."""
        while not self.is_over:
            yield from self.page()


class ListedTopicNames(TopicNames):
    """Iteration over names that are in memory."""

    __slots__ = ("_names",)

    def __init__(self, names: list[str]) -> None:
        self._names: list[str] | None = names

    @property
    def is_over(self) -> bool:
        return self._names is None

    @property
    def wanted(self) -> PrefetchRequest:
        return PrefetchRequest()

    def page(self) -> list[str]:
        names, self._names = self._names, None
        return names or []
