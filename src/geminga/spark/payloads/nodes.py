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
class SchemaField:
    """A field of a record. ``aliases``: names that writers may have used for it."""

    name: str
    node: SchemaNode
    default: Any = NO_DEFAULT
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SchemaNode:
    """One type of a definition. ``kind`` is Avro's name, ``logical`` that of its logical type, if known."""

    kind: str
    logical: str = ""
    fields: tuple[SchemaField, ...] = ()
    """Of a record."""
    branches: tuple[SchemaNode, ...] = ()
    """Of a union; the items of an array, the values of a map."""
    symbols: tuple[str, ...] = ()
    size: int = 0
    """Of a fixed."""
    precision: int = 0
    scale: int = 0

    @property
    def inner(self) -> SchemaNode:
        """The type besides null of a union with null, or of one branch alone; otherwise itself."""
        if self.kind == "union":
            rest = [branch for branch in self.branches if branch.kind != "null"]
            if len(rest) == 1:
                return rest[0]
        return self

    def field(self, name: str) -> SchemaField | None:
        return next((field for field in self.fields if field.name == name), None)


@dataclass(frozen=True, slots=True)
class Definition:
    """How payloads of one schema are read: the format, the tree, and what the format needs besides.

    ``format``: ``avro``, ``json``, ``protobuf``, ``pair``, or ``plain`` for primitives and bytes.
    """

    format: str
    root: SchemaNode
    info: SchemaInfo
    parts: tuple[Definition, ...] = ()
    """Key and value of a pair."""
    separated: bool = False
    """The key of a pair is the message's."""

    @property
    def is_record(self) -> bool:
        """Its fields are columns; any other value is the column ``value``."""
        return self.root.inner.kind == "record"


def check_size(root: SchemaNode) -> None:
    """Raises `ValueError` for a tree that is too deep or too large to be walked.

    Named types are written once and used again and again: what is small as a definition may not be as a tree.
    """
    measured: dict[int, tuple[int, int]] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        below = [*(field.node for field in node.fields), *node.branches]
        waiting = [child for child in below if id(child) not in measured]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        sizes, depths = zip(*((0, 0), *(measured[id(child)] for child in below)), strict=True)
        size, depth = 1 + sum(sizes), 1 + max(depths)
        if depth > DEPTH_MAX or size > NODES_MAX:
            raise ValueError(f"it is deeper than {DEPTH_MAX} or has more than {NODES_MAX} types")
        measured[id(node)] = size, depth
