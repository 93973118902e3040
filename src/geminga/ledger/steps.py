"""Long work in steps, between which the owner's thread can do other work.

A step is one iteration. `geminga.ledger.store.FileStore.poll` runs as many steps as there is time for, and
continues with the rest before it processes the next group, so that the order is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

from geminga.errors import StoreError

AT_ONCE: Final = 512
"""Keys or ledgers per step, which takes at most a millisecond."""

T = TypeVar("T")
Begin = Callable[[Callable[[Exception | None], None]], object]
"""Begins a step that ends later; calls its argument then, on the owner's thread, with the error or None."""


def follow(steps: Generator[Begin, None, None]) -> None:
    """Run the yielded steps one after the other; the error of a step is raised at its ``yield``."""

    def resume(error: Exception | None) -> None:
        try:
            begin = next(steps) if error is None else steps.throw(error)
        except StopIteration:
            return
        try:
            begin(resume)
        except StoreError as refused:
            resume(refused)

    resume(None)


def parts(items: Iterable[T]) -> Iterator[list[T]]:
    """Split items into lists of a step's length."""
    rest = iter(items)
    while part := list(islice(rest, AT_ONCE)):
        yield part


def taken(items: list[T]) -> Iterator[list[T]]:
    """Remove items from the end and yield them, in lists of a step's length that only the caller holds."""
    while items:
        part = items[-AT_ONCE:]
        del items[-AT_ONCE:]
        yield part


def emptied(items: list[Any] | set[Any] | dict[Any, Any]) -> Iterator[None]:
    """Remove all items, the last first, in steps: dropping 100,000 objects at once takes 50 ms."""
    while items:
        take = items.popitem if isinstance(items, dict) else items.pop
        for _ in range(min(AT_ONCE, len(items))):
            take()
        yield None
