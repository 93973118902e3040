"""Stand-ins for functions, to be patched over real ones or passed as callbacks."""

from collections.abc import Callable
from typing import Any, NoReturn

import pytest


def raising(error: BaseException | type[BaseException]) -> Callable[..., Any]:
    """Return a function of any arguments that raises the error."""

    def fail(*_arguments: Any, **_options: Any) -> NoReturn:
        raise error

    return fail


def calls_of(patch: pytest.MonkeyPatch, owner: object, name: str) -> list[tuple[Any, ...]]:
    """Patch a function to record the positional arguments of its calls; return the record."""
    real, calls = getattr(owner, name), list[tuple[Any, ...]]()

    def recorded(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return real(*arguments, **options)

    patch.setattr(owner, name, recorded)
    return calls
