"""Masked fields: values of fields and properties that the console does not show, by topic."""

import json
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, Final

from geminga.broker.admin.payload_values import Budget, Decoder
from geminga.broker.admin.subscription_overview import base_of

MASK: Final = "•••"
NOT_SHOWN: Final = "not shown: of topics with masked fields the console shows JSON, Avro and Protobuf only"


class Masks:
    """Rules of the setting ``masked_fields``."""

    def __init__(self, rules: Iterable[str]) -> None:
        """``rules``: ``TENANT/NAMESPACE/TOPIC=NAME,...`` each, as `BrokerSettings` checks them."""
        parts = [rule.rpartition("=") for rule in rules]
        self._rules = [(pattern, frozenset(names.split(","))) for pattern, _, names in parts]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def of(self, topic: str) -> frozenset[str]:
        """Return the masked names of a topic or partition, given by its whole name."""
        name = base_of(topic).partition("://")[2]
        found = (names for pattern, names in self._rules if fnmatchcase(name, pattern))
        return frozenset().union(*found)


def masked_json(
    payload: bytes, names: frozenset[str], decode: Decoder | None, budget: Budget
) -> bytes | None:
    """Return a value as JSON, with its fields ``names`` masked at any depth.

    None for a value that ``decode`` cannot decode, and without ``decode`` for one that is no JSON object or
    array.
    """
    try:
        value = json.loads(payload) if decode is None else decode(payload, budget)
        if isinstance(value, dict | list):
            return json.dumps(_masked(value, names), ensure_ascii=False).encode(errors="replace")
    except (ValueError, RecursionError):
        pass
    return None


def _masked(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {name: MASK if name in names else _masked(each, names) for name, each in value.items()}
    return [_masked(each, names) for each in value] if isinstance(value, list) else value
