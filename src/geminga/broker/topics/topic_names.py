"""Walks over the names of topics, a page at a time: each page is read ahead before it is asked for."""

from __future__ import annotations

from collections.abc import Iterator

from geminga.ledger.api import EntryStore, PrefetchRequest


class TopicNames:
    """Names in order, those of the keys that begin with ``kind`` and ``prefix``, without ``kind``.

    Whoever walks has `wanted` brought, takes a `page`, and goes on until it `is_over`. What is created or
    deleted meanwhile may be among them or not. A page may be empty.
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
        """What the next page reads."""
        return PrefetchRequest(pages=((self._prefix, self._after or ""),))

    @property
    def passed(self) -> str:
        """All names up to this one were walked over; empty when it is over."""
        return (self._after or "")[len(self._kind) :]

    def page(self) -> list[str]:
        """The next names."""
        assert self._after is not None
        names, self._after = self._store.names_page(self._prefix, after=self._after)
        cut = len(self._kind)
        return [name[cut:] for name in names]

    def __iter__(self) -> Iterator[str]:
        """All of them at once, wherever they are: for tests, and where they are known to be few."""
        while not self.is_over:
            yield from self.page()


class ListedTopicNames(TopicNames):
    """A walk over names that are in memory."""

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
