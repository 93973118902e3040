"""Columns of the source and the sink: names, Spark types, and conversion from and to Arrow."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from geminga.config import suggestion
from geminga.errors import InvalidConfiguration
from geminga.spark.releases import arrow_schema


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of the source: its Spark type, its message column, and other types it can be read as."""

    kind: T.DataType
    message_column: str
    also: tuple[T.DataType, ...] = ()


_TEXT_MAP = T.MapType(T.StringType(), T.StringType(), True)

COLUMNS: dict[str, SourceColumn] = {
    "value": SourceColumn(T.BinaryType(), "value", (T.StringType(),)),
    "__key": SourceColumn(T.BinaryType(), "key_bytes", (T.StringType(),)),
    "__topic": SourceColumn(T.StringType(), "topic"),
    "__messageId": SourceColumn(T.BinaryType(), "message_id"),
    "__publishTime": SourceColumn(T.TimestampType(), "publish_time"),
    "__eventTime": SourceColumn(T.TimestampType(), "event_time"),
    "__messageProperties": SourceColumn(_TEXT_MAP, "properties"),
    "__orderingKey": SourceColumn(T.BinaryType(), "ordering_key"),
    "__sequenceId": SourceColumn(T.LongType(), "sequence_id"),
    "__producerName": SourceColumn(T.StringType(), "producer_name"),
    "__partition": SourceColumn(T.IntegerType(), "partition"),
    "__ledgerId": SourceColumn(T.LongType(), "ledger_id"),
    "__entryId": SourceColumn(T.LongType(), "entry_id"),
    "__batchIndex": SourceColumn(T.IntegerType(), "batch_index"),
    "__redeliveryCount": SourceColumn(T.IntegerType(), "redelivery_count"),
}
"""All columns of the source. The first seven, those of the Scala connector, are the default."""

DEFAULT_COLUMNS = tuple(COLUMNS)[:7]


def column_name(name: str) -> str:
    """Return the column's own spelling; Spark's names are case-insensitive by default."""
    for known in COLUMNS:
        if known.lower() == name.lower():
            return known
    allowed = ", ".join(COLUMNS)
    raise InvalidConfiguration(f"no column {name!r}{suggestion(name, COLUMNS)}; the source has {allowed}")


def source_schema(columns: Sequence[str] | None) -> T.StructType:
    """Return the schema for the option ``columns``, or the default one."""
    known = {name: column.kind for name, column in COLUMNS.items()}
    return chosen(DEFAULT_COLUMNS if columns is None else columns, known)


def chosen(names: Sequence[str], known: Mapping[str, T.DataType]) -> T.StructType:
    """Return the columns that the option ``columns`` names. Raises `InvalidConfiguration`."""
    found: dict[str, T.DataType] = {}
    for name in names:
        spelled = same_name(list(known), name)
        if spelled is None:
            raise InvalidConfiguration(
                f"no column {name!r}{suggestion(name, known)}; the query has {', '.join(known)}"
            )
        if spelled in found:
            raise InvalidConfiguration(f"option columns names a column twice: {spelled!r}")
        found[spelled] = known[spelled]
    if not found:
        raise InvalidConfiguration("option columns names no column")
    return T.StructType([T.StructField(name, kind, True) for name, kind in found.items()])


def without_collations(kind: Any) -> Any:
    """Return a Spark type with plain strings: their bytes are those of strings with a collation."""
    if isinstance(kind, T.StringType):
        return T.StringType()
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(without_collations(kind.elementType), kind.containsNull)
    if isinstance(kind, T.MapType):
        key, value = without_collations(kind.keyType), without_collations(kind.valueType)
        return T.MapType(key, value, kind.valueContainsNull)
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(f.name, without_collations(f.dataType), f.nullable) for f in kind])
    return kind


def message_columns(schema: T.StructType) -> list[str]:
    """Return the message columns for ``schema``; check a schema that the user gave."""
    found = []
    for field in schema.fields:
        column = COLUMNS[column_name(field.name)]
        allowed = (column.kind, *column.also)
        if field.dataType not in allowed:
            kinds = " or ".join(kind.simpleString() for kind in allowed)
            raise InvalidConfiguration(
                f"column {field.name!r} can be read as {kinds}, not as {field.dataType.simpleString()}"
            )
        found.append(column.message_column)
    return found


class ArrowBatchConverter:
    """Converts decoded messages to record batches of exactly the Arrow schema that Spark expects."""

    def __init__(self, schema: T.StructType) -> None:
        self.columns = message_columns(schema)
        self.schema: pa.Schema = arrow_schema(schema)

    def shape(self, messages: pa.RecordBatch, again: object = None) -> pa.RecordBatch:
        """Convert ``messages``, which has the columns `columns`."""
        arrays = [as_type(messages.column(number), field.type) for number, field in enumerate(self.schema)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a message column as the Arrow type that Spark expects."""
    if array.type == kind:
        return array
    is_coded = pa.types.is_dictionary(array.type) and array.type.value_type == kind
    is_constant = is_coded and len(array.dictionary) == 1 and array.null_count == 0
    if is_constant and len(array) <= KEPT_ROWS_MAX:
        return _repeated(array.dictionary[0], 1 << len(array).bit_length()).slice(0, len(array))
    if pa.types.is_map(kind):
        # Only names and nullability inside the type differ: the buffers are reused.
        words = pa.StructArray.from_arrays(
            [array.keys, array.items], fields=[kind.key_field, kind.item_field]
        )
        return pa.Array.from_buffers(
            kind, len(array), array.buffers()[:2], array.null_count, children=[words]
        )
    if pa.types.is_timestamp(kind):
        # Unchecked: an out-of-range event time must not stop the query.
        return array.cast(kind, safe=False)
    return as_text(array) if pa.types.is_string(kind) else array.cast(kind)


KEPT_ROWS_MAX = 1 << 16
"""Maximum rows of a batch whose constant columns are kept for the next one: an entry may have millions."""


@lru_cache(maxsize=4)
def _repeated(value: pa.Scalar, count: int) -> pa.Array:
    """Return a constant column, such as the topic of a task's rows, for all of the task's batches."""
    return pa.repeat(value, count)


def as_text(array: pa.Array) -> pa.Array:
    """Return binary values as text, with replacement characters for invalid UTF-8."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        words = [None if value is None else value.decode("utf-8", "replace") for value in array.to_pylist()]
        return pa.array(words, pa.string())


def same_name(names: list[str], wanted: str) -> str | None:
    """Return the name that equals ``wanted``, or the only one that does so ignoring case."""
    if wanted in names:
        return wanted
    near = [name for name in names if name.lower() == wanted.lower()]
    return near[0] if len(near) == 1 else None


# --- writing --------------------------------------------------------------------------------------

_WRITTEN = {
    "value": "value",
    "__key": "key",
    "key": "key",
    "__orderingkey": "ordering_key",
    "__eventtime": "event_time",
    "__messageproperties": "properties",
    "__topic": "topic",
    "topic": "topic",
    "__deliverat": "deliver_at",
    "__deliverafter": "deliver_after",
}
"""Message columns of a written frame's columns, by lower-case name."""

_IGNORED = frozenset(
    name.lower() for name in COLUMNS if name.lower() not in _WRITTEN
)  # columns of the source that the broker sets when a message is written

_WRITTEN_KINDS = {
    "value": (T.BinaryType(), T.StringType()),
    "key": (T.BinaryType(), T.StringType()),
    "ordering_key": (T.BinaryType(), T.StringType()),
    "event_time": (T.TimestampType(), T.LongType()),
    "properties": (
        T.MapType(T.StringType(), T.StringType(), True),
        T.MapType(T.StringType(), T.StringType(), False),
    ),
    "topic": (T.StringType(),),
    "deliver_at": (T.TimestampType(), T.LongType()),
    "deliver_after": (T.DayTimeIntervalType(), T.LongType()),
}


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """Columns of a written frame: indices by message column, and of the payload in order."""

    columns: dict[str, int]
    payload: T.StructType
    payload_columns: tuple[int, ...] = ()


def _is_one_of(kind: T.DataType, allowed: Iterable[T.DataType]) -> bool:
    # INTERVAL '15' MINUTES has its own type beside DAY TO SECOND; Arrow has one duration for all of them.
    return any(
        isinstance(kind, T.DayTimeIntervalType) if isinstance(each, T.DayTimeIntervalType) else kind == each
        for each in allowed
    )


def written_columns(schema: T.StructType, topic: str | None, *, by_schema: bool = False) -> FrameLayout:
    """Return the layout of a frame. Raises `InvalidConfiguration` if the frame can't be written.

    ``by_schema``: all columns but those of the message (such as ``__key``) make up the payload.
    """
    found: dict[str, int] = {}
    payload, places = T.StructType(), []
    for number, field in enumerate(schema.fields):
        lower = field.name.lower()
        if lower in _IGNORED:
            continue
        name = _WRITTEN.get(lower)
        if by_schema and not (name is not None and lower.startswith("__")):
            payload.add(field)
            places.append(number)
            continue
        if name is None:
            raise InvalidConfiguration(
                f"column {field.name!r} can't be written{suggestion(field.name, _WRITTEN)}: a message "
                "has the columns value, __key, __orderingKey, __eventTime, __messageProperties, __topic, "
                "__deliverAt and __deliverAfter; pack others into the value, for example with "
                "to_json(struct('*')) AS value, or register them with valueSchema=JSON or AVRO"
            )
        if name in found:
            raise InvalidConfiguration(f"two columns of the frame give the message's {name}")
        if not _is_one_of(field.dataType, _WRITTEN_KINDS[name]):
            kinds = " or ".join(kind.simpleString() for kind in _WRITTEN_KINDS[name])
            raise InvalidConfiguration(
                f"column {field.name!r} must be {kinds}, not {field.dataType.simpleString()}"
            )
        found[name] = number
    if by_schema and not places:
        raise InvalidConfiguration("the frame has no column that could be the payload")
    if not by_schema and "value" not in found:
        raise InvalidConfiguration("the frame has no column 'value' (binary or string)")
    if topic is None and "topic" not in found:
        raise InvalidConfiguration(
            "neither the option topic nor a column __topic names the topic to write to"
        )
    if "deliver_at" in found and "deliver_after" in found:
        raise InvalidConfiguration("the frame has both __deliverAt and __deliverAfter: give one of them")
    return FrameLayout(found, payload, tuple(places))


def to_messages(batch: pa.RecordBatch, layout: FrameLayout, now_ms: int) -> dict[str, pa.Array]:
    """Return the message columns of a record batch of the frame, including ``topic``.

    ``now_ms``, since 1970: start of ``__deliverAfter``. Properties whose value is null are left out.
    """
    arrays = {name: batch.column(number) for name, number in layout.columns.items()}
    properties = arrays.get("properties")
    if properties is not None and properties.items.null_count:
        arrays["properties"] = _without_null_values(properties)
    after = arrays.pop("deliver_after", None)
    if after is not None:
        if pa.types.is_duration(after.type):
            after = after.cast(pa.duration("ms"), safe=False)
        arrays["deliver_at"] = pc.add(after.cast(pa.int64()), now_ms)
    return arrays


def _without_null_values(maps: pa.MapArray) -> pa.MapArray:
    present = maps.items.is_valid()
    kept = np.append(0, np.cumsum(present.to_numpy(zero_copy_only=False)))
    offsets = pa.array(kept[maps.offsets.to_numpy()], pa.int32())
    keys, items = maps.keys.filter(present), maps.items.filter(present)
    return pa.MapArray.from_arrays(offsets, keys, items, mask=maps.is_null())
