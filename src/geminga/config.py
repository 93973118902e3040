"""Checks shared by all settings classes.

Settings are frozen, keyword-only dataclasses next to the code that reads them. Each checks its fields in
``__post_init__`` with these functions, so that an error always names the field, the value and the allowed
values.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from enum import Enum
from functools import cache
from typing import Any, NoReturn

from geminga.errors import InvalidConfiguration

Check = Callable[[str, Any], object]
"""Check of a field with this name and value; raises `InvalidConfiguration`."""


def refuse(field: str, value: object, allowed: str) -> NoReturn:
    """Raise `InvalidConfiguration` naming field, value and the allowed values."""
    raise InvalidConfiguration(f"{field}={value!r} is not allowed; allowed: {allowed}")


def check_ports(ports: Mapping[str, int | None]) -> None:
    """Raise `InvalidConfiguration` for two settings with the same port; 0 takes a free one."""
    taken: dict[int, str] = {}
    for name, port in ports.items():
        if port and taken.setdefault(port, name) != name:
            refuse(name, port, f"a port other than `{taken[port]}`")


def names_file(text: str) -> bool:
    """Return whether a text that may be a path or a value is a path.

    It is if it exists, and by its form: it has a slash and does not end with ``=`` as base64 does. So a
    mistyped or unreadable path is an error and never used as the value.
    """
    return ("/" in text and not text.endswith("=")) or os.path.lexists(text)


SECONDS_MAX = 1_000_000_000
"""31 years: a longer duration is a mistake, and the platform's clocks overflow not far above."""
MILLISECONDS_MAX = 1000 * SECONDS_MAX


INT_MAX = (1 << 63) - 1
"""Range of Apache Pulsar's numbers. Arithmetic with times and rates overflows far above it."""


def check_int(field: str, value: Any, minimum: int | None = None, maximum: int | None = None) -> int:
    """Return a whole number within the closed range, of 64 bits at most; a bool is refused."""
    least, most = value if minimum is None else minimum, INT_MAX if maximum is None else maximum
    if isinstance(value, int) and type(value) is not bool and least <= value <= most:
        return value
    if maximum is None and isinstance(value, int) and value > INT_MAX:
        maximum = INT_MAX
    low = "" if minimum is None else f" >= {minimum}"
    high = "" if maximum is None else f" <= {maximum}"
    refuse(field, value, f"a whole number{low}{' and' if low and high else ''}{high}")


def check_seconds(field: str, value: Any, minimum: float = 0.0, maximum: float = SECONDS_MAX) -> float:
    """Return a number of seconds within the closed range."""
    return check_number(field, value, minimum, maximum, "a number of seconds")


def check_milliseconds(
    field: str, value: Any, minimum: float = 0.0, maximum: float = MILLISECONDS_MAX
) -> float:
    """Return, in seconds, a number of milliseconds within the closed range."""
    return check_number(field, value, minimum, maximum, "a number of milliseconds") / 1000


def check_number(field: str, value: Any, minimum: float, maximum: float, what: str = "a number") -> float:
    """Return a number within the closed range, where NaN never is; ``what`` names it in the error."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not minimum <= value <= maximum:
        refuse(field, value, f"{what} >= {minimum} and <= {maximum}")
    return float(value)


def check_type(field: str, value: Any, *types: type, optional: bool = False) -> Any:
    """Return an instance of one of ``types``, or None if ``optional``."""
    if type(value) in types or (value is None and optional):
        return value
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        names = " or ".join(t.__name__ for t in types)
        refuse(field, value, names + (" or None" if optional else ""))
    return value


def check_fields(settings: Any, checks: Mapping[str, Check]) -> None:
    """Check the fields that differ from their defaults: each by its check, a flag or an enum without one
    by the type of its default."""
    for name, default in defaults_of(type(settings)).items():  # type: ignore[arg-type]
        value = getattr(settings, name)
        differs = value is not default and (type(value) is not type(default) or value != default)
        if differs and (name in checks or isinstance(default, (bool, Enum))):
            checks.get(name, instance_of(type(default)))(name, value)


@cache
def defaults_of(settings: Any) -> dict[str, Any]:
    """Return the defaults of a settings class, by field."""
    return {each.name: each.default for each in fields(settings)}


def instance_of(kind: type, *, optional: bool = False) -> Check:
    """Return the check for an instance of ``kind``, or None if ``optional``."""
    return lambda field, value: check_type(field, value, kind, optional=optional)


def check_texts(field: str, value: Any) -> None:
    """Check for a mapping of texts to texts."""
    check_type(field, value, Mapping)
    for key, text in value.items():
        check_type(f"{field} key", key, str)
        check_type(f"{field}[{key!r}]", text, str)


def utf8(value: Any) -> Any:
    """Return the text that bytes encode; any other value, and bytes that are not UTF-8, unchanged."""
    if isinstance(value, (bytes, bytearray)):
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
    return value


def check_choice(field: str, value: Any, choices: Collection[Any] | type[Enum]) -> Any:
    """Return a value out of ``choices``; the error suggests the nearest for a misspelt text."""
    if type(value) is not choices and value not in tuple(choices):
        refuse(field, value, ", ".join(repr(c) for c in choices) + suggestion(value, choices))
    return value


def suggestion(word: object, known: Iterable[object]) -> str:
    """Return `` (did you mean 'x'?)`` for the nearest known word, empty without a near one."""
    import difflib  # imported only after a mistake

    near = difflib.get_close_matches(str(word).lower(), {str(k).lower(): k for k in known}, n=1)
    original = {str(k).lower(): k for k in known}
    return f" (did you mean {str(original[near[0]])!r}?)" if near else ""
