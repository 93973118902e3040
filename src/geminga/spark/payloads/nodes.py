"""Schema tree, independent of the registered format: the input of all payload readers and writers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from geminga.schema_info import SchemaInfo

DEPTH_MAX = 64
"""Maximum nesting depth of records, arrays, maps and unions."""
NODES_MAX = 20_000
"""Maximum nodes of one definition."""


class NoDefault(Enum):
    """Marks a field without default (None is a valid default)."""

    NO_DEFAULT = "no default"


NO_DEFAULT = NoDefault.NO_DEFAULT


@dataclass(frozen=True, slots=True)
class SchemaField:
    """A field of a record. ``aliases``: former names, which writers may have used."""

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
    """Fields of a record."""
    branches: tuple[SchemaNode, ...] = ()
    """Branches of a union; the items of an array, the values of a map."""
    symbols: tuple[str, ...] = ()
    size: int = 0
    """Size of a fixed, in bytes."""
    precision: int = 0
    scale: int = 0

    @property
    def inner(self) -> SchemaNode:
        """The non-null type of a union with null, or of a single branch; otherwise the node itself."""
        if self.kind == "union":
            rest = [branch for branch in self.branches if branch.kind != "null"]
            if len(rest) == 1:
                return rest[0]
        return self

    def field(self, name: str) -> SchemaField | None:
        return next((field for field in self.fields if field.name == name), None)


@dataclass(frozen=True, slots=True)
class Definition:
    """Payload format of one schema, its tree, and further data that the format needs.

    ``format``: ``avro``, ``json``, ``pair``, or ``plain`` for primitives and bytes.
    """

    format: str
    root: SchemaNode
    info: SchemaInfo
    parts: tuple[Definition, ...] = ()
    """Key and value of a pair."""
    separated: bool = False
    """Whether the key of a pair is the message's key."""

    @property
    def is_record(self) -> bool:
        """Whether its fields are columns; any other value is the column ``value``."""
        return self.root.inner.kind == "record"


def check_size(root: SchemaNode) -> None:
    """Raise `ValueError` for a tree that is too deep or too large.

    Named types are defined once and may be used many times, so a small definition may have a large tree.
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
