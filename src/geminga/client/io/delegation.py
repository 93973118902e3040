"""Methods that the classes of the public API share: delegation to asyncio objects, and ``with`` statements.

A class for threads keeps its asyncio object in an attribute. `called` and `waited` make its methods, with the
arguments, the result and the docstring of the asyncio object's method.
"""

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def called(attribute: str, method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return a method that calls ``method``, a plain function, of the asyncio object in ``attribute``: with
    ``topic = called("_reader", AsyncReader.topic)``, ``reader.topic()`` is ``reader._reader.topic()``."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(getattr(self, attribute), *args, **kwargs)

    return call


def waited(
    attribute: str, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]
) -> Callable[Concatenate[Any, P], R]:
    """Return a method that runs ``method``, a coroutine function, of the asyncio object in ``attribute`` on
    the client's loop, and waits for its result."""

    @functools.wraps(method)
    def wait(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self._runtime.call(method(getattr(self, attribute), *args, **kwargs))
        return result

    return wait


class Closing:
    """Base of objects that a ``with`` statement closes at its end."""

    def close(self) -> None:
        """Close the object."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class AsyncClosing:
    """Base of objects that an ``async with`` statement closes at its end."""

    async def close(self) -> None:
        """Close the object."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()
