"""Spark's types for the nodes of a definition, and merging of the columns of several definitions.

All columns can be null, as those of Spark's file sources: a message of another version may lack any of them.
"""

from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from geminga.errors import IncompatibleSchema
from geminga.spark.payloads.nodes import Definition, SchemaNode
from geminga.spark.schema import same_name

_KINDS: Mapping[str, DataType] = {
    "null": NullType(),
    "boolean": BooleanType(),
    "int8": ByteType(),
    "int16": ShortType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "fixed": BinaryType(),
    "string": StringType(),
    "text": StringType(),
    "enum": StringType(),
}
_DIGITS: Mapping[DataType, int] = {ByteType(): 3, ShortType(): 5, IntegerType(): 10, LongType(): 19}
_LOGICAL: Mapping[str, DataType] = {
    "date": DateType(),
    "timestamp-seconds": TimestampType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "local-timestamp-millis": TimestampNTZType(),
    "local-timestamp-micros": TimestampNTZType(),
}


def spark_type(node: SchemaNode) -> DataType:
    """Return the type that Spark's own ``from_avro`` chooses: a union of several types is a struct of
    ``member0`` …, that of int and long is a long, that of float and double a double."""
    node = node.inner
    if node.logical == "decimal":
        return DecimalType(max(node.precision, 1), node.scale)
    if node.logical:
        return _LOGICAL[node.logical]
    if node.kind == "record":
        return StructType([StructField(field.name, spark_type(field.node), True) for field in node.fields])
    if node.kind == "array":
        return ArrayType(spark_type(node.branches[0]), True)
    if node.kind == "map":
        return MapType(StringType(), spark_type(node.branches[0]), True)
    if node.kind == "union":
        members = members_of(node)
        number = number_of(node)
        if number is not None:
            return number
        return StructType(
            [StructField(f"member{i}", spark_type(branch), True) for i, branch in enumerate(members)]
        )
    return _KINDS[node.kind]


def members_of(union: SchemaNode) -> list[SchemaNode]:
    """Return the branches besides null."""
    return [branch for branch in union.branches if branch.kind != "null"]


def number_of(union: SchemaNode) -> DataType | None:
    """Return the common number type of a union of numbers, if Spark has one."""
    kinds = {(branch.kind, branch.logical) for branch in members_of(union)}
    if kinds == {("int", ""), ("long", "")}:
        return LongType()
    if kinds == {("float", ""), ("double", "")}:
        return DoubleType()
    return None


def columns_of(definition: Definition) -> StructType:
    """Return the columns of a definition's values."""
    found = spark_type(definition.root)
    if definition.is_record:
        assert isinstance(found, StructType)
        return found
    return StructType([StructField("value", found, True)])


def merged(schemas: Mapping[str, StructType]) -> StructType:
    """Merge schemas into one; the keys of ``schemas`` name them in errors.

    Fields are ordered by their first occurrence; numbers are widened. Raises `IncompatibleSchema` naming the
    field and both of its types.
    """
    found: StructType | None = None
    first = ""
    for name, schema in schemas.items():
        if found is None:
            found, first = schema, name
            continue
        try:
            found = _merged_fields(found, schema, "")
        except IncompatibleSchema as error:
            raise IncompatibleSchema(f"{first} and {name} have no common columns: {error}") from None
    return StructType() if found is None else found


def _merged_fields(one: StructType, other: StructType, path: str) -> StructType:
    fields = {field.name: field.dataType for field in one.fields}
    for field in other.fields:
        known = fields.get(field.name)
        place = f"{path}{field.name}"
        fields[field.name] = field.dataType if known is None else _merged(known, field.dataType, place)
    return StructType([StructField(name, kind, True) for name, kind in fields.items()])


def _merged(one: DataType, other: DataType, path: str) -> DataType:
    if isinstance(one, StructType) and isinstance(other, StructType):
        return _merged_fields(one, other, f"{path}.")
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return ArrayType(_merged(one.elementType, other.elementType, f"{path}[]"), True)
    if isinstance(one, MapType) and isinstance(other, MapType):
        return MapType(StringType(), _merged(one.valueType, other.valueType, f"{path}{{}}"), True)
    for narrow, wide in ((one, other), (other, one)):
        if narrow == wide or wide in widened(narrow):
            return wide
    if isinstance(one, DecimalType) and isinstance(other, DecimalType):
        scale = max(one.scale, other.scale)
        precision = max(one.precision - one.scale, other.precision - other.scale) + scale
        if precision <= 38:
            return DecimalType(precision, scale)
    raise IncompatibleSchema(
        f"field {path} is {one.simpleString()} in one and {other.simpleString()} in the other"
    )


_WIDER: Mapping[DataType, tuple[DataType, ...]] = {
    ByteType(): (ShortType(), IntegerType(), LongType(), FloatType(), DoubleType()),
    ShortType(): (IntegerType(), LongType(), FloatType(), DoubleType()),
    IntegerType(): (LongType(), DoubleType(), FloatType()),
    LongType(): (DoubleType(), FloatType()),
    FloatType(): (DoubleType(),),
    BinaryType(): (StringType(),),
    StringType(): (BinaryType(),),
}


def widened(kind: DataType) -> tuple[DataType, ...]:
    """Return the types that values of ``kind`` may be read as: Avro's own promotions."""
    return _WIDER.get(kind, ())


def check_readable(written: DataType, wanted: DataType, path: str) -> None:
    """Raise `IncompatibleSchema` naming ``path`` where ``written`` cannot be read as ``wanted``.

    Fields that exist in one of the two alone are accepted.
    """
    if isinstance(written, StructType) and isinstance(wanted, StructType):
        for field in wanted.fields:
            source = same_name(written.names, field.name)
            if source is not None:
                place = f"{path}.{field.name}" if path else field.name
                check_readable(written[source].dataType, field.dataType, place)
        return
    if isinstance(written, ArrayType) and isinstance(wanted, ArrayType):
        return check_readable(written.elementType, wanted.elementType, f"{path}[]")
    if isinstance(written, MapType) and isinstance(wanted, MapType):
        check_readable(written.keyType, wanted.keyType, f"{path} (keys)")
        return check_readable(written.valueType, wanted.valueType, f"{path}{{}}")
    if written == wanted or wanted in widened(written) or isinstance(written, NullType):
        return None
    if isinstance(written, DecimalType) and isinstance(wanted, DecimalType):
        digits = written.precision - written.scale
        if written.scale <= wanted.scale and digits <= wanted.precision - wanted.scale:
            return None
    if isinstance(wanted, DecimalType) and _DIGITS.get(written, 39) <= wanted.precision - wanted.scale:
        return None
    raise IncompatibleSchema(
        f"field {path or 'value'} is written as {written.simpleString()} and can't be read as "
        f"{wanted.simpleString()}"
    )
