"""Records of admin REST: frozen dataclasses and their conversion from and to JSON.

A field's JSON name is its name in camel case, unless `named` gives another. The whole JSON is kept in
``raw``, if a record has that field: brokers differ, and further fields stay readable.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

from geminga.errors import ProtocolError

R = TypeVar("R")
RAW = "raw"


def named(json_name: str, default: Any, **limits: Any) -> Any:
    """Return a field with a JSON name. ``limits``: ``minimum``, ``maximum`` or ``choices`` that a broker
    allows."""
    return dataclasses.field(default=default, metadata={"json": json_name, "limits": limits})


def nothing() -> Any:
    """Return a field whose default is an empty mapping."""
    return dataclasses.field(default_factory=dict)


def raw() -> Any:
    """Return the field for the JSON itself, which reprs and comparisons leave out."""
    return dataclasses.field(default_factory=dict, repr=False, compare=False)


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


@lru_cache(maxsize=256)
def plan(kind: type) -> tuple[tuple[str, str, Any], ...]:
    """Return (field, JSON name, type) of each field of a record."""
    hints = typing.get_type_hints(kind)
    return tuple(
        (field.name, field.metadata.get("json", camel(field.name)), hints[field.name])
        for field in dataclasses.fields(kind)
        if field.name != RAW
    )


def decode(kind: Any, value: Any, what: str = "the answer") -> Any:
    """Decode JSON as ``kind``: a record, a tuple or mapping of records, a plain type, or one of these or
    None. Raises `ProtocolError` for JSON of another shape."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return decode(next(one for one in typing.get_args(kind) if one is not type(None)), value, what)
    if kind is Any:
        return value
    if origin is tuple:
        return tuple(decode(typing.get_args(kind)[0], one, what) for one in _checked(value, list, what))
    if origin is dict or origin is Mapping:
        inner = typing.get_args(kind)[1]
        return {key: decode(inner, one, f"{what}.{key}") for key, one in _checked(value, dict, what).items()}
    if dataclasses.is_dataclass(kind):
        return _record(kind, _checked(value, dict, what), what)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind is float and value in ("NaN", "Infinity", "-Infinity"):  # as Java writes them
        return float(value)
    return _checked(value, kind, what)


def _record(kind: Any, value: Mapping[str, Any], what: str) -> Any:
    given = {
        name: decode(inner, value[json_name], f"{what}.{json_name}")
        for name, json_name, inner in plan(kind)
        if value.get(json_name) is not None
    }
    if RAW in kind.__dataclass_fields__:
        given[RAW] = value
    try:
        return kind(**given)
    except TypeError:
        raise ProtocolError(f"{what} lacks fields of {kind.__name__}: {sorted(value)[:20]}") from None


def _checked(value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ProtocolError(f"{what} is {str(value)[:80]!r}; expected: {kind.__name__}")
    return value


def encode(value: Any) -> Any:
    """Encode a record, or a structure of records, for JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            json_name: encode(getattr(value, name))
            for name, json_name, _ in plan(type(value))
            if getattr(value, name) is not None
        }
    if isinstance(value, Mapping):
        return {str(key): encode(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [encode(one) for one in value]
    return value
