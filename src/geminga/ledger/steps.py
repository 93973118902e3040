"""Work in steps: what the owner's thread does for very many things is left now and then for its other work.

A step is an iteration. `geminga.ledger.store.FileStore.poll` takes as many as there is time for, and goes on
with the rest before it takes in anything else: so what is done in steps is done in its order all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from geminga.errors import StoreError
from geminga.ledger.api import Done
from geminga.ledger.callbacks import run_callbacks

AT_ONCE: Final = 512
"""So many keys or ledgers are looked after in a step, which takes a millisecond at most."""
REPORTED_AT_ONCE: Final = 32
"""So many callbacks are run in one: what follows of each, such as making a topic, may take 50 µs."""

T = TypeVar("T")


def reported(dones: Sequence[Done | None], error: StoreError | None) -> Iterator[int]:
    """Run callbacks in order, as `run_callbacks` does; a step says how many it ran."""
    for start in range(0, len(dones), REPORTED_AT_ONCE):
        yield run_callbacks(dones[start : start + REPORTED_AT_ONCE], error)


def parts(things: Iterable[T]) -> Iterator[list[T]]:
    """The things, in lists of a step's length."""
    part: list[T] = []
    for thing in things:
        part.append(thing)
        if len(part) == AT_ONCE:
            yield part
            part = []
    if part:
        yield part


def taken(things: list[T]) -> Iterator[list[T]]:
    """The same from the end, taken out of the list: nobody but who is given them holds them then."""
    while things:
        part = things[-AT_ONCE:]
        del things[-AT_ONCE:]
        yield part


def emptied(things: list[Any] | set[Any] | dict[Any, Any]) -> Iterator[None]:
    """Let go of what is in there, the last first: to drop 100,000 objects at once takes 50 ms."""
    while things:
        take = things.popitem if isinstance(things, dict) else things.pop
        for _ in range(min(AT_ONCE, len(things))):
            take()
        yield None
