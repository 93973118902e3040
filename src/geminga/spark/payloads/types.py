"""Spark's types for the nodes of a definition, and merging of the columns of several definitions.

All columns can be null, as those of Spark's file sources: a message of another version may lack any of them.
"""

from collections.abc import Mapping

from pyspark.sql import types as T

from geminga.errors import IncompatibleSchema
from geminga.spark.payloads.nodes import Definition, SchemaNode
from geminga.spark.schema import same_name

_KINDS: Mapping[str, T.DataType] = {
    "null": T.NullType(),
    "boolean": T.BooleanType(),
    "int8": T.ByteType(),
    "int16": T.ShortType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "bytes": T.BinaryType(),
    "fixed": T.BinaryType(),
    "string": T.StringType(),
    "text": T.StringType(),
    "enum": T.StringType(),
}
_DIGITS: Mapping[T.DataType, int] = {T.ByteType(): 3, T.ShortType(): 5, T.IntegerType(): 10, T.LongType(): 19}
_LOGICAL: Mapping[str, T.DataType] = {
    "date": T.DateType(),
    "timestamp-seconds": T.TimestampType(),
    "timestamp-millis": T.TimestampType(),
    "timestamp-micros": T.TimestampType(),
    "local-timestamp-millis": T.TimestampNTZType(),
    "local-timestamp-micros": T.TimestampNTZType(),
}


def spark_type(node: SchemaNode) -> T.DataType:
    """Return the type that Spark's own ``from_avro`` chooses: a union of several types is a struct of
    ``member0`` …, that of int and long is a long, that of float and double a double."""
    node = node.inner
    if node.logical == "decimal":
        return T.DecimalType(max(node.precision, 1), node.scale)
    if node.logical:
        return _LOGICAL[node.logical]
    if node.kind == "record":
        return T.StructType(
            [T.StructField(field.name, spark_type(field.node), True) for field in node.fields]
        )
    if node.kind == "array":
        return T.ArrayType(spark_type(node.branches[0]), True)
    if node.kind == "map":
        return T.MapType(T.StringType(), spark_type(node.branches[0]), True)
    if node.kind == "union":
        members = members_of(node)
        number = number_of(node)
        if number is not None:
            return number
        return T.StructType(
            [T.StructField(f"member{i}", spark_type(branch), True) for i, branch in enumerate(members)]
        )
    return _KINDS[node.kind]


def members_of(union: SchemaNode) -> list[SchemaNode]:
    """Return the branches besides null."""
    return [branch for branch in union.branches if branch.kind != "null"]


def number_of(union: SchemaNode) -> T.DataType | None:
    """Return the common number type of a union of numbers, if Spark has one."""
    kinds = {(branch.kind, branch.logical) for branch in members_of(union)}
    if kinds == {("int", ""), ("long", "")}:
        return T.LongType()
    if kinds == {("float", ""), ("double", "")}:
        return T.DoubleType()
    return None


def columns_of(definition: Definition) -> T.StructType:
    """Return the columns of a definition's values."""
    found = spark_type(definition.root)
    if definition.is_record:
        assert isinstance(found, T.StructType)
        return found
    return T.StructType([T.StructField("value", found, True)])


def merged(schemas: Mapping[str, T.StructType]) -> T.StructType:
    """Merge schemas into one; the keys of ``schemas`` name them in errors.

    Fields are ordered by their first occurrence; numbers are widened. Raises `IncompatibleSchema` naming the
    field and both of its types.
    """
    found: T.StructType | None = None
    first = ""
    for name, schema in schemas.items():
        if found is None:
            found, first = schema, name
            continue
        try:
            found = _merged_fields(found, schema, "")
        except IncompatibleSchema as error:
            raise IncompatibleSchema(f"{first} and {name} have no common columns: {error}") from None
    return T.StructType() if found is None else found


def _merged_fields(one: T.StructType, other: T.StructType, path: str) -> T.StructType:
    fields = {field.name: field.dataType for field in one.fields}
    for field in other.fields:
        known = fields.get(field.name)
        place = f"{path}{field.name}"
        fields[field.name] = field.dataType if known is None else _merged(known, field.dataType, place)
    return T.StructType([T.StructField(name, kind, True) for name, kind in fields.items()])


def _merged(one: T.DataType, other: T.DataType, path: str) -> T.DataType:
    if isinstance(one, T.StructType) and isinstance(other, T.StructType):
        return _merged_fields(one, other, f"{path}.")
    if isinstance(one, T.ArrayType) and isinstance(other, T.ArrayType):
        return T.ArrayType(_merged(one.elementType, other.elementType, f"{path}[]"), True)
    if isinstance(one, T.MapType) and isinstance(other, T.MapType):
        return T.MapType(T.StringType(), _merged(one.valueType, other.valueType, f"{path}{{}}"), True)
    for narrow, wide in ((one, other), (other, one)):
        if narrow == wide or wide in widened(narrow):
            return wide
    if isinstance(one, T.DecimalType) and isinstance(other, T.DecimalType):
        scale = max(one.scale, other.scale)
        precision = max(one.precision - one.scale, other.precision - other.scale) + scale
        if precision <= 38:
            return T.DecimalType(precision, scale)
    raise IncompatibleSchema(
        f"field {path} is {one.simpleString()} in one and {other.simpleString()} in the other"
    )


_WIDER: Mapping[T.DataType, tuple[T.DataType, ...]] = {
    T.ByteType(): (T.ShortType(), T.IntegerType(), T.LongType(), T.FloatType(), T.DoubleType()),
    T.ShortType(): (T.IntegerType(), T.LongType(), T.FloatType(), T.DoubleType()),
    T.IntegerType(): (T.LongType(), T.DoubleType(), T.FloatType()),
    T.LongType(): (T.DoubleType(), T.FloatType()),
    T.FloatType(): (T.DoubleType(),),
    T.BinaryType(): (T.StringType(),),
    T.StringType(): (T.BinaryType(),),
}


def widened(kind: T.DataType) -> tuple[T.DataType, ...]:
    """Return the types that values of ``kind`` may be read as: Avro's own promotions."""
    return _WIDER.get(kind, ())


def check_readable(written: T.DataType, wanted: T.DataType, path: str) -> None:
    """Raise `IncompatibleSchema` naming ``path`` where ``written`` cannot be read as ``wanted``.

    Fields that exist in one of the two alone are accepted.
    """
    if isinstance(written, T.StructType) and isinstance(wanted, T.StructType):
        for field in wanted.fields:
            source = same_name(written.names, field.name)
            if source is not None:
                place = f"{path}.{field.name}" if path else field.name
                check_readable(written[source].dataType, field.dataType, place)
        return
    if isinstance(written, T.ArrayType) and isinstance(wanted, T.ArrayType):
        return check_readable(written.elementType, wanted.elementType, f"{path}[]")
    if isinstance(written, T.MapType) and isinstance(wanted, T.MapType):
        check_readable(written.keyType, wanted.keyType, f"{path} (keys)")
        return check_readable(written.valueType, wanted.valueType, f"{path}{{}}")
    if written == wanted or wanted in widened(written) or isinstance(written, T.NullType):
        return None
    if isinstance(written, T.DecimalType) and isinstance(wanted, T.DecimalType):
        digits = written.precision - written.scale
        if written.scale <= wanted.scale and digits <= wanted.precision - wanted.scale:
            return None
    if isinstance(wanted, T.DecimalType) and _DIGITS.get(written, 39) <= wanted.precision - wanted.scale:
        return None
    raise IncompatibleSchema(
        f"field {path or 'value'} is written as {written.simpleString()} and can't be read as "
        f"{wanted.simpleString()}"
    )
