"""The tree of a schema, whatever it was registered as: what everything else here works on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from geminga.schema_info import SchemaInfo

DEPTH_MAX = 64
"""So deep records, arrays, maps and unions may lie in each other."""
NODES_MAX = 20_000
"""Nodes of one definition."""


class NoDefault(Enum):
    """A field that readers cannot make up; None is a default."""

    NO_DEFAULT = "no default"


NO_DEFAULT = NoDefault.NO_DEFAULT


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record. ``aliases``: names that writers may have used for it."""

    name: str
    node: Node
    default: Any = NO_DEFAULT
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One type of a definition. ``kind`` is Avro's name, ``logical`` that of its logical type, if known."""

    kind: str
    logical: str = ""
    fields: tuple[Field, ...] = ()
    """Of a record."""
    branches: tuple[Node, ...] = ()
    """Of a union; the items of an array, the values of a map."""
    symbols: tuple[str, ...] = ()
    size: int = 0
    """Of a fixed."""
    precision: int = 0
    scale: int = 0

    @property
    def inner(self) -> Node:
        """The type besides null of a union with null, or of one branch alone; otherwise itself."""
        if self.kind == "union":
            rest = [branch for branch in self.branches if branch.kind != "null"]
            if len(rest) == 1:
                return rest[0]
        return self

    def field(self, name: str) -> Field | None:
        return next((field for field in self.fields if field.name == name), None)


@dataclass(frozen=True, slots=True)
class Definition:
    """How payloads of one schema are read: the format, the tree, and what the format needs besides.

    ``format``: ``avro``, ``json``, ``protobuf``, ``pair``, or ``plain`` for primitives and bytes.
    """

    format: str
    root: Node
    info: SchemaInfo
    parts: tuple[Definition, ...] = ()
    """Key and value of a pair."""
    separated: bool = False
    """The key of a pair is the message's."""

    @property
    def is_record(self) -> bool:
        """Its fields are columns; any other value is the column ``value``."""
        return self.root.inner.kind == "record"
