"""Methods of classes for threads that only call the same method of their asyncio object.

``attribute`` is the attribute that holds the asyncio object. Arguments, result and docstring are those of the
asyncio method.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def called(attribute: str, method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return a method that calls ``method``, a plain function."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(getattr(self, attribute), *args, **kwargs)

    return call


def waited(
    attribute: str, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]
) -> Callable[Concatenate[Any, P], R]:
    """Return a method that runs ``method``, a coroutine function, on the client's loop and waits for it."""

    @functools.wraps(method)
    def wait(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self._runtime.call(method(getattr(self, attribute), *args, **kwargs))
        return result

    return wait
