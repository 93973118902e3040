"""Avro's JSON, in which a value of a union names its branch, as values for fastavro's writer.

fastavro's own reader ignores fields that a record does not have, takes a text for any branch, and refuses
records that contain themselves twice.
"""

from collections.abc import Callable
from typing import Any

from geminga.schema.from_json import shown

_WITH_PARTS = frozenset(("record", "error", "enum", "fixed", "array", "map"))
_RECORDS = frozenset(("record", "error"))


def value_reader(definition: Any) -> Callable[[Any], Any]:
    """Return the function that converts a value, as from `json.loads`, by a definition.

    It raises `ValueError` for a field that a record does not have, a value of a union without the name of its
    branch, and another type than a record's, an array's or a map's. Numbers and texts are left to the writer.
    Raises fastavro's errors for a definition that is not valid.
    """
    import fastavro

    named: dict[str, Any] = {}
    parsed = fastavro.parse_schema(definition, named_schemas=named)
    return lambda value: _converted(value, parsed, named)


def _resolved(kind: Any, named: dict[str, Any]) -> Any:
    """Return a union, the definition of a type with parts or a name, or the name of a primitive type."""
    while not isinstance(kind, list):
        if isinstance(kind, str):
            if kind not in named:
                return kind
            kind = named[kind]
        elif kind["type"] in _WITH_PARTS:
            return kind
        else:
            kind = kind["type"]
    return kind


def _converted(value: Any, kind: Any, named: dict[str, Any]) -> Any:
    kind = _resolved(kind, named)
    if isinstance(kind, list):
        return _of_branch(value, kind, named)
    name = kind if isinstance(kind, str) else kind["type"]
    if name in _RECORDS:
        fields = {each["name"]: each["type"] for each in kind["fields"]}
        for unknown in _checked(value, dict, kind["name"]).keys() - fields.keys():
            raise ValueError(f"{unknown} is no field of {kind['name']}; allowed: {', '.join(fields)}")
        return {key: _converted(each, fields[key], named) for key, each in value.items()}
    if name == "map":
        items = _checked(value, dict, name).items()
        return {key: _converted(each, kind["values"], named) for key, each in items}
    if name == "array":
        return [_converted(each, kind["items"], named) for each in _checked(value, list, name)]
    if name in ("bytes", "fixed"):
        return _checked(value, str, name).encode("latin-1")  # a character is a byte
    return value


def _of_branch(value: Any, union: list[Any], named: dict[str, Any]) -> Any:
    branches = {_name(each): each for each in (_resolved(one, named) for one in union)}
    if value is None and "null" in branches:
        return None
    name = next(iter(value)) if isinstance(value, dict) and len(value) == 1 else None
    if name is None or name == "null" or name not in branches:
        allowed = ", ".join("null" if each == "null" else f'{{"{each}": ...}}' for each in branches)
        raise ValueError(f"{shown(value)} names no branch of its union; allowed: {allowed}")
    branch = branches[name]
    found = _converted(value[name], branch, named)
    is_clear = len(branches.keys() - {"null"}) == 1 or not (
        isinstance(branch, str) or branch["type"] in _RECORDS
    )
    return found if is_clear else (name, found)  # the writer's own way to name a branch


def _name(kind: Any) -> str:
    """Return the name of a branch."""
    return kind if isinstance(kind, str) else str(kind.get("name") or kind["type"])


def _checked(value: Any, kind: type, name: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{shown(value)} is not allowed; allowed: {name}")
    return value
