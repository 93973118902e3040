"""Messages as rows of a topic's own columns, each decoded with the schema version it was written with."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from geminga.errors import CorruptPayload, IncompatibleSchema
from geminga.schema_info import SchemaInfo, SchemaType
from geminga.spark.options import ReadOptions
from geminga.spark.payloads.arrays import Mask, booleans
from geminga.spark.payloads.avro import AvroReader
from geminga.spark.payloads.definitions import definition_of
from geminga.spark.payloads.fitting import fit
from geminga.spark.payloads.json_text import JsonReader
from geminga.spark.payloads.nodes import Definition, SchemaNode
from geminga.spark.payloads.plain import PlainReader, split_pairs
from geminga.spark.payloads.types import check_readable, columns_of, spark_type
from geminga.spark.payloads.writing import node_of_type
from geminga.spark.releases import arrow_schema
from geminga.spark.schema import COLUMNS, as_type, column_name
from geminga.spark.source.dead_letters import MESSAGE_COLUMNS, DeadLetters
from geminga.spark.source.reading import Again
from geminga.spark.tasks import session_zone
from geminga.wire.columnar import number_array

logger = logging.getLogger("geminga.spark")

VERSIONS_MAX = 256
"""Maximum prepared readers of schema versions, over all topics, in a worker."""

PERMISSIVE, DROPMALFORMED, FAILFAST = "PERMISSIVE", "DROPMALFORMED", "FAILFAST"
ANY_JSON = SchemaInfo(type=int(SchemaType.JSON), name="any")
"""Stands for the schema of JSON messages without one: they are read by the requested columns."""


def is_message_column(name: str) -> bool:
    """Return whether a column of a query over payloads is one of the message's own; ``value`` is not."""
    return name.startswith("__") and name.lower() in {known.lower() for known in COLUMNS}


PayloadReader = AvroReader | JsonReader | PlainReader
"""Reads the payloads of one format."""


def payload_reader(
    definition: Definition, wanted: pa.DataType | None, reader: SchemaNode | None, zone: str
) -> PayloadReader:
    """Return the reader of a definition's format; ``wanted`` and ``reader`` are for the whole value."""
    if definition.format == "avro":
        return AvroReader(definition.root, wanted, reader)
    if definition.format == "json":
        return JsonReader(definition.root, wanted, reader, zone)
    return PlainReader(definition.root)


class VersionReader:
    """Reads the messages of one version into the columns ``wanted``. Raises `IncompatibleSchema` if the
    version does not fit them. ``zone``: the default time zone of times in JSON without one."""

    def __init__(
        self, definition: Definition, wanted: pa.StructType, reader: SchemaNode | None, zone: str = "UTC"
    ) -> None:
        self.definition = definition
        self.wanted = wanted
        self.reader = reader
        if definition.format == "pair":
            self.parts = [
                payload_reader(part, _of(wanted, name), _child(reader, name), zone)
                for name, part in zip(("key", "value"), definition.parts, strict=True)
            ]
        else:
            value = wanted if definition.is_record else _of(wanted, "value")
            self.parts = [payload_reader(definition, value, reader, zone)]

    def read(self, payloads: pa.Array, keys: pa.Array | None) -> tuple[pa.StructArray, Mask]:
        """Return the columns as one struct, and the mask of damaged messages."""
        if self.definition.format == "pair":
            found, damaged = self._pairs(payloads, keys)
        else:
            found, damaged = self.parts[0].read(payloads)
            if not self.definition.is_record:
                found = pa.StructArray.from_arrays([found], names=["value"])
        return fit(found, self.wanted, self.reader), damaged

    def _pairs(self, payloads: pa.Array, keys: pa.Array | None) -> tuple[pa.Array, Mask]:
        if self.definition.separated:
            if keys is None:
                raise IncompatibleSchema("it is a key-value pair, and the topic's newest schema is not")
            key, value, damaged = keys, payloads, np.zeros(len(payloads), np.bool_)
        else:
            key, value, damaged = split_pairs(payloads)
        columns = []
        for reader, part in zip(self.parts, (key, value), strict=True):
            column, is_damaged = reader.read(part)
            damaged = damaged | is_damaged
            columns.append(column)
        return pa.StructArray.from_arrays(columns, names=["key", "value"]), damaged


def _of(wanted: pa.StructType, name: str) -> pa.DataType | None:
    number = wanted.get_field_index(name)
    return None if number < 0 else wanted.field(number).type


def _child(node: SchemaNode | None, name: str) -> SchemaNode | None:
    known = None if node is None else node.field(name)
    return None if known is None else known.node


@functools.lru_cache(maxsize=VERSIONS_MAX)
def version_reader(
    writer: SchemaInfo, newest: SchemaInfo | None, wanted: Columns, zone: str = "UTC"
) -> VersionReader:
    """Return a cached reader. Raises `IncompatibleSchema`."""
    reader = None if newest is None else definition_of(newest).root
    if writer == ANY_JSON:
        node = node_of_type(wanted.spark)
        return VersionReader(Definition("json", node, writer), wanted.arrow, reader, zone)
    definition = definition_of(writer)
    check_readable(columns_of(definition), wanted.spark, "")
    return VersionReader(definition, wanted.arrow, reader, zone)


@dataclass(frozen=True, slots=True)
class Columns:
    """Requested columns of the payload."""

    spark: StructType
    arrow: pa.StructType

    def __hash__(self) -> int:
        return hash(self.arrow)


Lookup = Callable[[bytes], "SchemaInfo | None"]
"""Returns the schema of a version of the topic that is read; None when there is no such version."""


class PayloadBatchConverter:
    """Converts decoded messages of one topic to record batches of the requested columns."""

    def __init__(
        self,
        schema: StructType,
        options: ReadOptions,
        topic: str,
        newest: SchemaInfo | None,
        lookup: Lookup,
        letters: DeadLetters | None,
    ) -> None:
        """``newest``: the topic's schema when the query began."""
        self.options = options
        self.mode = options.payload_mode
        self.topic = topic
        self.newest = newest
        self.lookup = lookup
        self.letters = letters
        self.zone = session_zone()
        self.schema: pa.Schema = arrow_schema(schema)
        asked = {field.name: field for field in schema.fields}
        self.of_message = {
            name: COLUMNS[column_name(name)].message_column for name in asked if is_message_column(name)
        }
        self.of_payload = [
            name for name in asked if name not in self.of_message and name != options.corrupt_column
        ]
        self.wanted = Columns(
            StructType([asked[name] for name in self.of_payload]),
            pa.struct([self.schema.field(name).with_nullable(True) for name in self.of_payload]),
        )
        needed = ["value", "schema_version", "ledger_id", "entry_id", "batch_index"]
        if self.newest is not None and self.newest.type == SchemaType.KEY_VALUE:
            needed.append("key_bytes")
        self.columns = [*dict.fromkeys([*self.of_message.values(), *needed])]
        self._told: set[bytes] = set()

    def shape(self, messages: pa.RecordBatch, again: Again | None = None) -> pa.RecordBatch:
        """Convert ``messages``, which has the columns `columns`, perhaps followed by others. ``again`` is
        required if there are dead letters to keep."""
        found = dict(zip(self.columns, messages.columns, strict=False))
        rows, damaged, reasons = self._read(found)
        if damaged.any():
            self._tell(found, damaged, reasons)
            if self.letters is not None:
                assert again is not None
                errors = [self._reason(found, int(row), reasons) for row in np.flatnonzero(damaged)]
                self.letters.add(again(MESSAGE_COLUMNS).filter(booleans(damaged)), errors)
        payload = dict(zip(self.of_payload, rows.flatten(), strict=True))
        arrays = []
        for field_ in self.schema:
            if field_.name in self.of_message:
                array = as_type(found[self.of_message[field_.name]], field_.type)
            elif field_.name in payload:
                array = payload[field_.name]
            else:
                value = found["value"]
                array = as_type(
                    pc.if_else(booleans(damaged), value, pa.scalar(None, value.type)), field_.type
                )
            if array.null_count and not field_.nullable:
                raise CorruptPayload(
                    f"{self.topic}: the column {field_.name!r} is NOT NULL in the requested schema, "
                    f"and {array.null_count} messages have no value for it"
                )
            arrays.append(array)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if self.mode == DROPMALFORMED and damaged.any():
            batch = batch.filter(booleans(~damaged))
        return batch

    # --- versions ---------------------------------------------------------------------------------

    def _read(self, found: dict[str, pa.Array]) -> tuple[pa.StructArray, Mask, dict[bytes, str]]:
        """Return the payload's columns, the mask of damaged rows, and an error by undecodable version."""
        versions = found["schema_version"]
        names: list[bytes] = versions.dictionary.to_pylist()
        codes = versions.indices.to_numpy()
        keys = found.get("key_bytes")
        present = np.unique(codes).tolist()
        reasons: dict[bytes, str] = {}
        if len(present) == 1:
            rows, damaged = self._of_version(names[present[0]], found["value"], keys, reasons)
            return rows, damaged, reasons
        parts, order, masks = [], [], []
        for code in present:
            places = np.flatnonzero(codes == code)
            chosen = number_array(places, pa.int64())
            rows, damaged = self._of_version(
                names[code], found["value"].take(chosen), None if keys is None else keys.take(chosen), reasons
            )
            parts.append(rows)
            masks.append(damaged)
            order.append(places)
        if not parts:
            return pa.nulls(0, self.wanted.arrow), np.zeros(0, np.bool_), reasons
        back = np.argsort(np.concatenate(order), kind="stable")
        rows = pa.concat_arrays(parts).take(number_array(back, pa.int64()))
        return rows, np.concatenate(masks)[back], reasons

    def _of_version(
        self, version: bytes, payloads: pa.Array, keys: pa.Array | None, reasons: dict[bytes, str]
    ) -> tuple[pa.StructArray, Mask]:
        try:
            return self._reader(version).read(payloads, keys)
        except IncompatibleSchema as error:
            reasons[version] = str(error)
            damaged = np.asarray(payloads.is_valid().to_numpy(zero_copy_only=False))
            return pa.nulls(len(payloads), self.wanted.arrow), damaged

    def _reader(self, version: bytes) -> VersionReader:
        if not version:
            return version_reader(self._unversioned(), self.newest, self.wanted, self.zone)
        writer = self.lookup(version)
        if writer is None:
            raise IncompatibleSchema(f"the topic has no schema version {number_of_version(version)}")
        if version not in self._told:
            self._told.add(version)
            self._check_new(version, writer)
        return version_reader(writer, self.newest, self.wanted, self.zone)

    def _unversioned(self) -> SchemaInfo:
        """Return the schema for messages without a version: only self-describing formats, never a guess."""
        if self.options.value_schema == "JSON":
            return ANY_JSON
        if self.newest is not None and self.newest.type in (SchemaType.JSON, SchemaType.STRING):
            return self.newest
        raise IncompatibleSchema("its producer named no schema")

    def _check_new(self, version: bytes, writer: SchemaInfo) -> None:
        """Log fields of a version that are new to the query, or fail on them."""
        if self.newest is None or writer == self.newest:
            return
        known = {*_paths(definition_of(self.newest).root), *_paths_of(self.wanted.spark)}
        new = [path for path in _paths(definition_of(writer).root) if path not in known]
        if not new:
            return
        what = (
            f"{self.topic}: schema version {number_of_version(version)} has {', '.join(new)}, which the "
            "topic did not have when this query began"
        )
        if self.options.schema_evolution == "failOnNewColumns":
            raise CorruptPayload(f"{what}: start the query again to read it (schemaEvolutionMode)")
        logger.warning("%s: not read until the query is started again", what)

    # --- unreadable messages ----------------------------------------------------------------------

    def _reason(self, found: dict[str, pa.Array], row: int, reasons: dict[bytes, str]) -> str:
        """Return the reason why a row can't be decoded."""
        version = found["schema_version"][row].as_py()
        what = "value of the topic's schema"
        if version:
            what = f"value of schema version {number_of_version(version)}"
        elif self.options.value_schema == "JSON":
            what = "JSON object that the requested columns hold exactly"
        size = len(found["value"][row].as_py() or b"")
        return reasons.get(version) or f"its {size} bytes are no {what}"

    def _tell(self, found: dict[str, pa.Array], damaged: Mask, reasons: dict[bytes, str]) -> None:
        first = int(np.argmax(damaged))
        place = ":".join(str(found[name][first]) for name in ("ledger_id", "entry_id", "batch_index"))
        reason = self._reason(found, first, reasons)
        what = f"{self.topic}: the message {place} can't be read: {reason}"
        if self.mode == FAILFAST:
            raise CorruptPayload(
                f"{what}. The option mode=PERMISSIVE keeps such messages in the column "
                f"{self.options.corrupt_column!r}, DROPMALFORMED leaves them out, deadLetterPath "
                "keeps them elsewhere"
            )
        verb = "left out" if self.mode == DROPMALFORMED else "delivered without values"
        logger.warning("%s (%d of %d messages are %s)", what, damaged.sum(), len(damaged), verb)


def number_of_version(version: bytes) -> int:
    return int.from_bytes(version, "big")


def _paths(node: SchemaNode) -> list[str]:
    kind = spark_type(node)
    return _paths_of(kind) if isinstance(kind, StructType) else []


def _paths_of(kind: StructType, prefix: str = "") -> list[str]:
    found = []
    for each in kind.fields:
        found.append(f"{prefix}{each.name}")
        if isinstance(each.dataType, StructType):
            found += _paths_of(each.dataType, f"{prefix}{each.name}.")
    return found
