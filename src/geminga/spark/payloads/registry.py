"""Columns of a query over payloads, read from the topics' schema registry at planning time."""

from dataclasses import dataclass
from functools import partial

from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from geminga.config import suggestion
from geminga.errors import IncompatibleSchema, InvalidConfiguration
from geminga.schema_info import SchemaInfo
from geminga.spark.cluster.clients import Cluster, discover
from geminga.spark.offsets import Partition
from geminga.spark.options import ReadOptions
from geminga.spark.payloads.definitions import definition_of
from geminga.spark.payloads.rows import PERMISSIVE, is_message_column
from geminga.spark.payloads.types import check_readable, columns_of, merged
from geminga.spark.payloads.writing import node_of_type
from geminga.spark.schema import COLUMNS, DEFAULT_COLUMNS, chosen, message_columns, same_name

VERSIONS_MAX = 1000
"""Maximum versions of one topic whose columns are merged."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The schemas of a query's topics. ``newest`` lacks topics without one."""

    newest: dict[str, SchemaInfo]
    without: tuple[str, ...]
    partitions: dict[str, Partition]
    counts: dict[str, int]
    """Number of versions that each topic has had."""


def registered(options: ReadOptions, cluster: Cluster) -> Registered:
    """Request the newest schema of each topic."""
    retry_policy = options.connection.retry_policy
    cluster.reach((*options.topics, str(options.topics_pattern))[0])
    found = retry_policy.call(
        "looking up the topics",
        lambda: discover(
            cluster, options.topics, options.topics_pattern, missing_is_empty=options.wait_for_topics
        ),
    )
    partitions: dict[str, Partition] = {}
    for partition in found:
        partitions.setdefault(partition[0], partition)
    asked = list(partitions.values())
    answers = retry_policy.call("asking for schemas", lambda: cluster.newest_schemas(asked))
    newest, counts, without = {}, {}, []
    for topic, answer in zip(partitions, answers, strict=True):
        if answer is None:
            without.append(topic)
        else:
            newest[topic], version = answer
            counts[topic] = int.from_bytes(version, "big") + 1
    return Registered(newest, tuple(without), partitions, counts)


def payload_columns(options: ReadOptions, cluster: Cluster) -> StructType:
    """Return the columns of a query without a given schema: those of the payload, then the message's own.

    Raises `IncompatibleSchema` for topics without a schema, or whose schemas have no common columns, and
    `InvalidConfiguration` for requested columns that do not exist.
    """
    known = registered(options, cluster)
    _check_all_have(options, known)
    payload = _payload(options, cluster, known)
    corrupt = options.corrupt_column
    fields = {field.name: field.dataType for field in payload.fields}
    taken = [name for name in fields if is_message_column(name) or name == corrupt]
    if taken:
        raise IncompatibleSchema(
            f"the field {taken[0]!r} of the topic's schema has the name of another column: give a schema "
            "without it" + (" or another columnNameOfCorruptRecord" if taken[0] == corrupt else "")
        )
    if options.columns is None:
        fields.update({name: COLUMNS[name].kind for name in DEFAULT_COLUMNS[1:]})
        if options.payload_mode == PERMISSIVE:
            fields[corrupt] = BinaryType()
        return StructType([StructField(name, kind, True) for name, kind in fields.items()])
    own: dict[str, DataType] = {name: COLUMNS[name].kind for name in COLUMNS if name != "value"}
    return chosen(options.columns, {**own, corrupt: BinaryType(), **fields})


def _check_all_have(options: ReadOptions, known: Registered) -> None:
    if not known.newest and not known.without:
        raise IncompatibleSchema(
            "no topic with a schema exists yet, so the columns are unknown: give them with .schema()"
        )
    if known.without:
        raise IncompatibleSchema(
            f"{known.without[0]} has no schema: valueSchema={options.value_schema} can't determine its "
            "columns. Without that option payloads are the column 'value'; with valueSchema=JSON and "
            ".schema() they are read as JSON"
        )


def _payload(options: ReadOptions, cluster: Cluster, known: Registered) -> StructType:
    schemas = {}
    for topic, info in known.newest.items():
        schemas[topic] = columns_of(definition_of(info))
        if options.merge_schema:
            for number, old in _older(options, cluster, known, topic):
                schemas[f"{topic} (schema version {number})"] = columns_of(definition_of(old))
    return merged(schemas)


def _older(
    options: ReadOptions, cluster: Cluster, known: Registered, topic: str
) -> list[tuple[int, SchemaInfo]]:
    """Return the versions before the newest, newest first, without the deleted ones."""
    retry_policy = options.connection.retry_policy
    partition = known.partitions[topic]
    found = []
    last = known.counts[topic] - 1
    for number in range(last - 1, max(-1, last - 1 - VERSIONS_MAX), -1):
        version = number.to_bytes(8, "big")
        info = retry_policy.call("asking for schemas", partial(cluster.schema, partition, version))
        if info is not None:
            found.append((number, info))
    return found


def newest_schemas(options: ReadOptions, cluster: Cluster, schema: StructType) -> dict[str, SchemaInfo]:
    """Return the newest schema of each topic that has one, for tasks that deliver ``schema``.

    Raises `IncompatibleSchema` or `InvalidConfiguration` for columns that no version of the topics' schemas
    has, or has as another type.
    """
    known = registered(options, cluster)
    is_json = options.value_schema == "JSON"
    if not is_json and known.without:
        _check_all_have(options, known)
    message_columns(StructType([field for field in schema.fields if is_message_column(field.name)]))
    wanted = StructType()
    for field in schema.fields:
        if field.name == options.corrupt_column:
            if field.dataType not in (BinaryType(), StringType()):
                raise InvalidConfiguration(
                    f"column {field.name!r} can be read as binary or string, not as "
                    f"{field.dataType.simpleString()}"
                )
        elif not is_message_column(field.name):
            wanted.add(field)
    if is_json:
        node_of_type(wanted)
    names: set[str] = set()
    for topic, info in known.newest.items():
        columns = columns_of(definition_of(info))
        try:
            check_readable(columns, wanted, "")
        except IncompatibleSchema as error:
            raise IncompatibleSchema(f"{topic}: {error}") from None
        names.update(columns.names)
    if not is_json and known.newest:
        _check_known(options, cluster, known, wanted, names)
    return known.newest


def _check_known(
    options: ReadOptions, cluster: Cluster, known: Registered, wanted: StructType, names: set[str]
) -> None:
    missing = [name for name in wanted.names if same_name(list(names), name) is None]
    for topic in known.newest if missing else ():
        for _, old in _older(options, cluster, known, topic):
            names.update(columns_of(definition_of(old)).names)
            missing = [name for name in missing if same_name(list(names), name) is None]
            if not missing:
                return
    if missing:
        raise InvalidConfiguration(
            f"no version of the topic's schema has a field {missing[0]!r}{suggestion(missing[0], names)}; it "
            f"has {', '.join(sorted(names))}"
        )
