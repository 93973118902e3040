"""Stand-ins for functions, to be patched over real ones or passed as callbacks."""

from collections.abc import Callable
from typing import Any, NoReturn


def raising(error: BaseException | type[BaseException]) -> Callable[..., Any]:
    """Return a function of any arguments that raises the error."""

    def fail(*_arguments: Any, **_options: Any) -> NoReturn:
        raise error

    return fail
