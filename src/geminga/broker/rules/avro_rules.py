"""Avro's rules of schema resolution: whether data of one schema can be read with another.

The rules are those of Avro's Java library, which Apache Pulsar uses; `tests/vectors/compatibility.json` holds
its answers. In short: a field that only the reader has needs a default, one that only the writer has is
skipped; numbers widen; text and bytes are interchangeable; every branch of a writer's union must be readable,
one branch of a reader's union must fit; enums and fixed types must have the same unqualified name, records
need not; aliases of the reader rename the writer's types and fields. Symbols that an enum has lost do not
matter: only a value that uses one cannot be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

DEPTH_MAX = 100
NAME_LENGTH_MAX = 1024
"""Longest name with its namespace, which each type inside repeats."""
COMPARISONS_MAX = 50_000
"""Limit of compared pairs of types, fields and branches per check: a schema of a thousand fields needs a
thousand, and the broker does nothing else meanwhile."""

_PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_WIDENS_TO = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_NAMED = frozenset(("record", "enum", "fixed"))
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class NotAvro(ValueError):
    """The definition is not an Avro schema; the message says where and why."""


@dataclass(slots=True, eq=False, repr=False)
class AvroType:
    """Type of a schema. References share the object of a named type."""

    kind: str
    name: str = ""
    """Full name, with the namespace."""
    aliases: tuple[str, ...] = ()
    branches: Sequence[AvroType] = ()
    fields: Sequence[AvroField] = ()
    inner: AvroType | None = None
    """Type of an array's items or of a map's values."""
    size: int = 0
    symbols: Sequence[str] = ()

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else self.kind


@dataclass(slots=True, eq=False, repr=False)
class AvroField:
    """Field of a record."""

    name: str
    type: AvroType
    has_default: bool
    aliases: tuple[str, ...]


def parse(data: bytes) -> AvroType:
    """Parse a schema definition. Raises `NotAvro`."""
    try:
        definition = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotAvro(f"no JSON: {error}") from None
    return _Parser().type(definition, "", 0)


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def type(self, definition: Any, namespace: str, depth: int) -> AvroType:
        if depth > DEPTH_MAX:
            raise NotAvro(f"nested more than {DEPTH_MAX} deep")
        if isinstance(definition, str):
            return self._referred(definition, namespace)
        if isinstance(definition, list):
            union = AvroType("union")
            union.branches = [self.type(branch, namespace, depth + 1) for branch in definition]
            if any(branch.kind == "union" for branch in union.branches):
                raise NotAvro("a union inside a union")
            return union
        if not isinstance(definition, dict):
            raise NotAvro(f"{definition!r:.50} is no type")
        kind = definition.get("type")
        if not isinstance(kind, str):
            if isinstance(kind, (dict, list)):
                return self.type(kind, namespace, depth + 1)
            raise NotAvro("a type without a kind")
        if kind == "error":
            kind = "record"
        if kind in _NAMED:
            return self._named_type(definition, kind, namespace, depth)
        if kind in ("array", "map"):
            container = AvroType(kind)
            key = "items" if kind == "array" else "values"
            if key not in definition:
                raise NotAvro(f"{kind} without {key}")
            container.inner = self.type(definition[key], namespace, depth + 1)
            return container
        return self._referred(kind, namespace)

    def _referred(self, name: str, namespace: str) -> AvroType:
        if name in _PRIMITIVES:
            return AvroType(name)
        found = self._named.get(_full(name, namespace)) or self._named.get(name)
        if found is None:
            raise NotAvro(f"{name[:100]!r} is no type")
        return found

    def _named_type(self, definition: dict[str, Any], kind: str, namespace: str, depth: int) -> AvroType:
        name = definition.get("name")
        if not isinstance(name, str) or not all(_IDENTIFIER.fullmatch(part) for part in name.split(".")):
            raise NotAvro(f"{name!r:.100} is no name")
        own = definition.get("namespace")
        full = _full(name, own if isinstance(own, str) else namespace)
        if len(full) > NAME_LENGTH_MAX:
            raise NotAvro(f"the name {full[:100]}… is longer than {NAME_LENGTH_MAX} characters")
        if full in self._named:
            raise NotAvro(f"{full} is defined twice")
        named = self._named[full] = AvroType(kind, full)
        inner_namespace = full.rpartition(".")[0]
        named.aliases = tuple(_full(alias, inner_namespace) for alias in _texts(definition.get("aliases")))
        if kind == "enum":
            if not isinstance(definition.get("symbols"), list):
                raise NotAvro(f"{named} has no symbols")
            named.symbols = _texts(definition["symbols"])
        if kind == "fixed":
            size = definition.get("size")
            if not isinstance(size, int):
                raise NotAvro(f"{named} has no size")
            named.size = size
        if kind == "record":
            fields = definition.get("fields")
            if not isinstance(fields, list):
                raise NotAvro(f"{named} has no fields")
            named.fields = [self._field(field, named, inner_namespace, depth) for field in fields]
            if len({field.name for field in named.fields}) != len(named.fields):
                raise NotAvro(f"{named} has a field twice")
        return named

    def _field(self, definition: Any, record: AvroType, namespace: str, depth: int) -> AvroField:
        if not isinstance(definition, dict):
            raise NotAvro(f"{record} has a field that is no object")
        name = definition.get("name")
        if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
            raise NotAvro(f"{record}: {name!r:.100} is no name of a field")
        if "type" not in definition:
            raise NotAvro(f"{record}: the field {name} has no type")
        kind = self.type(definition["type"], namespace, depth + 1)
        return AvroField(name, kind, "default" in definition, tuple(_texts(definition.get("aliases"))))


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


# --- reading --------------------------------------------------------------------------------------


def unreadable(*, reader: AvroType, writer: AvroType, budget: ComparisonBudget | None = None) -> str:
    """Return why data of ``writer`` cannot be read as ``reader``; empty if it can.

    A pair whose comparison takes more than ``budget`` counts as unreadable, with that reason.
    """
    try:
        return _Resolution(reader, budget or ComparisonBudget()).problem(reader, writer, "", 0)
    except _BudgetExceeded as limit:
        return str(limit)


class _BudgetExceeded(Exception):
    """The comparison reached a limit: its result is unknown."""


class ComparisonBudget:
    """Remaining number of comparisons. One budget may serve several checks that belong together."""

    __slots__ = ("_comparisons_max", "_left")

    def __init__(self, comparisons_max: int = COMPARISONS_MAX) -> None:
        self._comparisons_max = comparisons_max
        self._left = comparisons_max

    def spend(self, comparisons: int = 1) -> None:
        self._left -= comparisons
        if self._left < 0:
            raise _BudgetExceeded(
                f"comparing the schemas takes more than {self._comparisons_max} steps: "
                "give them fewer unions of records"
            )


class _Resolution:
    """Comparison of two schemas. The reader's aliases are looked up under their new names.

    Each pair of records is compared once. A pair inside its own comparison counts as readable. The result
    *unreadable* is final in spite of such assumptions; results *readable* that may depend on a disproved
    assumption are discarded.
    """

    def __init__(self, reader: AvroType, budget: ComparisonBudget) -> None:
        self._spend = budget.spend
        self._type_aliases: dict[str, str] = {}
        self._field_aliases: dict[str, dict[str, str]] = {}
        self._readable: dict[tuple[AvroType, AvroType], None] = {}
        self._unreadable: dict[tuple[AvroType, AvroType], str] = {}
        self._equivalent: set[tuple[AvroType, AvroType]] = set()
        self._different: set[tuple[AvroType, AvroType]] = set()
        self._collect(reader, set())

    def _collect(self, reader: AvroType, seen: set[AvroType]) -> None:
        if reader in seen:
            return
        seen.add(reader)
        for alias in reader.aliases:
            self._type_aliases[alias] = reader.name
        for field in reader.fields:
            for alias in field.aliases:
                self._field_aliases.setdefault(reader.name, {})[alias] = field.name
            self._collect(field.type, seen)
        for branch in reader.branches:
            self._collect(branch, seen)
        if reader.inner is not None:
            self._collect(reader.inner, seen)

    def _name(self, writer: AvroType) -> str:
        """Return the writer's full name after the reader's aliases are applied."""
        return self._type_aliases.get(writer.name, writer.name)

    def problem(self, reader: AvroType, writer: AvroType, where: str, depth: int) -> str:
        if depth > DEPTH_MAX:
            raise _BudgetExceeded(f"{where} is nested more than {DEPTH_MAX} deep")
        self._spend()
        if writer.kind == "union":
            if self._are_equivalent(reader, writer):
                return ""
            for branch in writer.branches:
                found = self.problem(reader, branch, where, depth + 1)
                if found:
                    return found
            return ""
        if reader.kind == "union":
            chosen = self._branch(reader, writer, where, depth)
            if chosen is None:
                return f"{where or 'the union'} takes no {writer}"
            return self.problem(chosen, writer, where, depth + 1)
        if reader.kind != writer.kind:
            if reader.kind in _WIDENS_TO.get(writer.kind, ()):
                return ""
            return f"{where or 'the schema'} was {writer} and is read as {reader}"
        if reader.kind in ("enum", "fixed"):
            if self._name(writer).rpartition(".")[2] != reader.short_name:
                return f"{where or 'the schema'} was {writer} and is read as {reader}"
            if reader.size != writer.size:
                return f"{where or 'the schema'} was {writer.size} bytes long and is read with {reader.size}"
        if reader.kind == "record":
            return self._record_problem(reader, writer, where, depth)
        if reader.inner is not None and writer.inner is not None:
            mark = "[]" if reader.kind == "array" else "{}"
            return self.problem(reader.inner, writer.inner, where + mark, depth + 1)
        return ""

    def _record_problem(self, reader: AvroType, writer: AvroType, where: str, depth: int) -> str:
        pair = (reader, writer)
        if pair in self._readable:
            return ""
        known = self._unreadable.get(pair)
        if known is not None:
            return known
        assumed = len(self._readable)
        self._readable[pair] = None
        found = self._field_problem(reader, writer, where, depth)
        if found:
            self._unreadable[pair] = found
            while len(self._readable) > assumed:
                self._readable.popitem()
        return found

    def _field_problem(self, reader: AvroType, writer: AvroType, where: str, depth: int) -> str:
        self._spend(len(writer.fields))
        renamed = self._field_aliases.get(self._name(writer), {})
        written = {renamed.get(field.name, field.name): field for field in writer.fields}
        for field in reader.fields:
            self._spend()
            path = f"{where}.{field.name}" if where else field.name
            match = written.get(field.name)
            if match is None:
                if not field.has_default:
                    return f"the field {path} is missing in what was written and has no default"
                continue
            found = self.problem(field.type, match.type, path, depth + 1)
            if found:
                return found
        return ""

    def _branch(self, reader: AvroType, writer: AvroType, where: str, depth: int) -> AvroType | None:
        """Return the branch of a reader's union that reads a value; None if none fits."""
        fitting: AvroType | None = None
        name = self._name(writer)
        for branch in reader.branches:
            self._spend()
            if branch.kind != writer.kind:
                continue
            if branch.kind not in _NAMED or branch.name == name:
                return branch
            # A record of the same shape will do; one of the same short name is better.
            better = fitting is None or branch.short_name == name.rpartition(".")[2]
            if branch.kind == "record" and better:
                fits = not self._record_problem(branch, writer, where, depth + 1)
                fitting = branch if fits else fitting
        if fitting is not None:
            return fitting
        wider = _WIDENS_TO.get(writer.kind, ())
        return next((branch for branch in reader.branches if branch.kind in wider), None)

    def _are_equivalent(self, left: AvroType, right: AvroType) -> bool:
        """Return whether two types have the same structure, namespaces aside; unions branch by branch."""
        if (left, right) in self._different:
            return False
        seen: set[tuple[AvroType, AvroType]] = set()
        if self._same(left, right, seen, 0):
            self._equivalent |= seen
            return True
        self._different.add((left, right))
        return False

    def _same(
        self, left: AvroType, right: AvroType, seen: set[tuple[AvroType, AvroType]], depth: int
    ) -> bool:
        if left.kind != right.kind or (left.name and left.short_name != right.short_name):
            return False
        if (left, right) in seen or (left, right) in self._equivalent:
            return True
        if depth > DEPTH_MAX:
            raise _BudgetExceeded(f"the schemas are nested more than {DEPTH_MAX} deep")
        self._spend(1 + len(left.fields) + len(left.symbols) // 10)
        seen.add((left, right))
        if (left.size, left.symbols) != (right.size, right.symbols):
            return False
        if len(left.fields) != len(right.fields) or len(left.branches) != len(right.branches):
            return False
        if any(a.name != b.name for a, b in zip(left.fields, right.fields, strict=True)):
            return False
        pairs = [(a.type, b.type) for a, b in zip(left.fields, right.fields, strict=True)]
        pairs += zip(left.branches, right.branches, strict=True)
        if left.inner is not None and right.inner is not None:
            pairs.append((left.inner, right.inner))
        return all(self._same(a, b, seen, depth + 1) for a, b in pairs)
