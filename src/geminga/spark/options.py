"""Every option of ``format("pulsar")``: names, kinds, defaults, and checks before anything runs.

Names are those of the Scala connector (``service.url``, ``startingOffsets``, ...) and those that users of
Spark's Kafka source expect (``minPartitions``, ``maxOffsetsPerTrigger``, ...). Spark hands option names
over in lower case; they are matched without regard to case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from geminga.client.settings_file import load_settings
from geminga.config import suggestion
from geminga.connection.addresses import ServiceUrl
from geminga.errors import InvalidConfiguration, InvalidTopicName, InvalidUrl
from geminga.ids import TopicName
from geminga.spark import offsets

READ = "read"
WRITE = "write"
BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: the dataclass field it fills, where it may be used, and how its text is read."""

    name: str
    field: str
    use: str
    parse: Callable[[str, str], Any]
    text: str
    aliases: tuple[str, ...] = ()


def _refuse(name: str, value: str, allowed: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"option {name}={value!r} is not allowed; allowed: {allowed}")


def _text(name: str, value: str) -> str:
    if not value.strip():
        raise _refuse(name, value, "a text that is not empty")
    return value.strip()


def _number(minimum: int) -> Callable[[str, str], int]:
    def parse(name: str, value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = minimum - 1
        if number < minimum:
            raise _refuse(name, value, f"a whole number >= {minimum}")
        return number

    return parse


_SIZE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _bytes(name: str, value: str) -> int:
    match = re.fullmatch(r"\s*(\d+)\s*([bkmgt]?)b?\s*", value.lower())
    if not match or int(match[1]) < 1:
        raise _refuse(name, value, "a number of bytes >= 1, optionally with k, m, g or t")
    return int(match[1]) * _SIZE_UNITS[match[2]]


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise _refuse(name, value, "true or false")
    return value.lower() == "true"


def _choice(*choices: str) -> Callable[[str, str], str]:
    def parse(name: str, value: str) -> str:
        for choice in choices:
            if choice.lower() == value.strip().lower():
                return choice
        raise _refuse(name, value, ", ".join(choices) + suggestion(value, choices))

    return parse


def _topic(name: str, value: str) -> tuple[str, ...]:
    return (_one_topic(name, value),)


def _one_topic(name: str, value: str) -> str:
    try:
        return str(TopicName.parse(value.strip()))
    except InvalidTopicName as error:
        raise InvalidConfiguration(f"option {name}: {error}") from None


def _topics(name: str, value: str) -> tuple[str, ...]:
    found = tuple(_one_topic(name, part) for part in value.split(",") if part.strip())
    if not found:
        raise _refuse(name, value, "topic names, separated by commas")
    if len(set(found)) < len(found):
        raise _refuse(name, value, "every topic once")
    return found


def _pattern(name: str, value: str) -> str:
    """``tenant/namespace/regular expression``, as `TopicName` completes it."""
    found = _one_topic(name, value)
    try:
        re.compile(TopicName.parse(found).local)
    except re.error as error:
        raise _refuse(name, value, f"a regular expression ({error})") from None
    return found


def _names(name: str, value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _starting(name: str, value: str) -> str | offsets.Offsets:
    return _offsets(name, value)


def _offsets(name: str, value: str) -> str | offsets.Offsets:
    if value.strip().lower() in ("earliest", "latest"):
        return value.strip().lower()
    if not value.lstrip().startswith("{"):
        near = suggestion(value, ("earliest", "latest"))
        raise _refuse(name, value, f'earliest, latest or JSON like {{"topic": {{"0": "5:12"}}}}{near}')
    try:
        return offsets.from_json(value)
    except (InvalidConfiguration, InvalidTopicName) as error:
        raise InvalidConfiguration(f"option {name}: {error}") from None


def _auth_class(name: str, value: str) -> str:
    if not value.strip().endswith("AuthenticationToken"):
        raise _refuse(name, value, "org.apache.pulsar.client.impl.auth.AuthenticationToken")
    return "token"


def _auth_params(name: str, value: str) -> str:
    token = value.strip().removeprefix("token:")
    if not token:
        raise InvalidConfiguration(f"option {name} holds no token; allowed: token:<JWT>")
    return token


COMPRESSIONS = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
HASHINGS = ("JavaStringHash", "Murmur3_32Hash", "BoostHash")

_TABLE = (
    Option(name="service.url", field="service_url", use=BOTH, parse=_text,
           text="``pulsar://host:port`` or ``pulsar+ssl://host:port`` of the cluster. Required."),
    Option(name="admin.url", field="admin_url", use=BOTH, parse=_text,
           text="``http://host:port`` of the admin REST; accepted, but not needed."),
    Option(name="auth.token", field="token", use=BOTH, parse=_auth_params,
           aliases=("pulsar.client.authParams",), text="JSON web token to authenticate with."),
    Option(name="pulsar.client.authPluginClassName", field="auth_class", use=BOTH, parse=_auth_class,
           text="The Java name of token authentication, beside ``pulsar.client.authParams``."),
    Option(name="tls.trustCertsFilePath", field="tls_trust_certs_file_path", use=BOTH, parse=_text,
           aliases=("pulsar.client.tlsTrustCertsFilePath",),
           text="PEM file of trusted certificates, present on every machine; default: the system's."),
    Option(name="tls.allowInsecureConnection", field="tls_allow_insecure_connection", use=BOTH, parse=_flag,
           aliases=("pulsar.client.tlsAllowInsecureConnection",),
           text="Trust any certificate: for tests only. Default false."),
    Option(name="tls.validateHostname", field="tls_validate_hostname", use=BOTH, parse=_flag,
           aliases=("pulsar.client.tlsHostnameVerificationEnable",),
           text="Check the host name in the certificate. Default true."),
    Option(name="operationTimeoutMs", field="operation_timeout_ms", use=BOTH, parse=_number(1),
           aliases=("pulsar.client.operationTimeoutMs",),
           text="The most that lookups, opening and closing take, and how long a broker that can't be "
                "reached is waited for. Default 30000."),
    Option(name="topic", field="topics", use=BOTH, parse=_topic, aliases=("path",),
           text="The topic to read or write."),
    Option(name="topics", field="topics", use=READ, parse=_topics, aliases=("subscribe",),
           text="Topics to read, separated by commas."),
    Option(name="topicsPattern", field="topics_pattern", use=READ, parse=_pattern,
           aliases=("subscribePattern",),
           text="Regular expression for the local names of the topics of one namespace."),
    Option(name="columns", field="columns", use=READ, parse=_names,
           text="Columns to deliver, separated by commas: Spark does no column pruning here, and each column "
                "that nobody needs costs time."),
    Option(name="startingOffsets", field="starting_offsets", use=READ, parse=_offsets,
           text="``earliest`` (default of batch queries), ``latest`` (default of streams) or JSON of the "
                "first message a partition. A restarted stream goes on from its checkpoint."),
    Option(name="endingOffsets", field="ending_offsets", use=READ, parse=_offsets,
           text="``latest`` (default) or JSON of the last message a partition. Batch queries only."),
    Option(name="startingTime", field="starting_time_ms", use=READ, parse=_number(0),
           aliases=("startingTimestamp",),
           text="Start at the first message published at or after this time, in milliseconds since 1970, not "
                "in the future."),
    Option(name="failOnDataLoss", field="fail_on_data_loss", use=READ, parse=_flag,
           text="Fail when messages that were to be read may have been removed by retention, or a topic was "
                "deleted. Default true."),
    Option(name="minPartitions", field="min_partitions", use=READ, parse=_number(1),
           text="Split partitions into at least this many tasks, as far as they have entries."),
    Option(name="maxEntriesPerSplit", field="max_entries_per_split", use=READ, parse=_number(1),
           text="Entries (batches) that one task reads at the most; more is split. Default 10000."),
    Option(name="maxRowsPerTrigger", field="max_rows_per_trigger", use=READ, parse=_number(1),
           aliases=("maxOffsetsPerTrigger",),
           text="Messages that one micro-batch takes at the most; one batch of a producer is never cut."),
    Option(name="maxBytesPerTrigger", field="max_bytes_per_trigger", use=READ, parse=_bytes,
           text="Stored bytes that one micro-batch takes at the most (``64m``)."),
    Option(name="maxEntriesPerTrigger", field="max_entries_per_trigger", use=READ, parse=_number(1),
           text="Entries (batches) that one micro-batch takes at the most: the cheapest of the limits, since "
                "nothing has to be read to keep it."),
    Option(name="pollTimeoutMs", field="poll_timeout_ms", use=READ, parse=_number(1),
           text="How long a task waits for the next message of its range. Default 120000."),
    Option(name="receiverQueueSize", field="receiver_queue_size", use=READ, parse=_number(1),
           aliases=("pulsar.reader.receiverQueueSize",),
           text="Messages that a task asks the broker for in advance. Default 20000."),
    Option(name="subscriptionPrefix", field="subscription_prefix", use=READ, parse=_text,
           aliases=("subscriptionNamePrefix", "pulsar.reader.subscriptionRolePrefix"),
           text="Prefix of the names of readers, which leave nothing behind, and of the durable "
                "subscription. Default ``spark``."),
    Option(name="predefinedSubscription", field="subscription", use=READ, parse=_text,
           text="Streams: a durable subscription of this query alone, which is kept at what Spark has "
                "committed. Without a starting option the query starts where it stands."),
    Option(name="durableSubscription", field="durable_subscription", use=READ, parse=_flag,
           text="Streams: such a subscription with a name made from ``subscriptionPrefix``, which the "
                "checkpoint remembers. Default false."),
    Option(name="waitingForNonExistedTopic", field="wait_for_topics", use=READ, parse=_flag,
           text="Go on with no data while a topic does not exist. Default false: the query fails."),
    Option(name="allowDifferentTopicSchemas", field="allow_different_schemas", use=READ, parse=_flag,
           text="Accepted for the Scala connector's sake: values are always handed over raw."),
    Option(name="compression", field="compression", use=WRITE, parse=_choice(*COMPRESSIONS),
           aliases=("pulsar.producer.compressionType",),
           text="``NONE`` (default), ``LZ4``, ``ZLIB``, ``ZSTD`` or ``SNAPPY``."),
    Option(name="hashingScheme", field="hashing", use=WRITE, parse=_choice(*HASHINGS),
           aliases=("pulsar.producer.hashingScheme",),
           text="How a key decides the partition: ``JavaStringHash`` (default, as the Scala connector), "
                "``Murmur3_32Hash``, or ``BoostHash`` (as ``pulsar-client``)."),
    Option(name="batchingMaxMessages", field="batching_max_messages", use=WRITE, parse=_number(1),
           aliases=("pulsar.producer.batchingMaxMessages",), text="Messages in a batch. Default 1000."),
    Option(name="batchingMaxBytes", field="batching_max_bytes", use=WRITE, parse=_bytes,
           aliases=("pulsar.producer.batchingMaxBytes",),
           text="Payload bytes in a batch. Default 131072."),
    Option(name="settingsFile", field="settings_file", use=WRITE, parse=_text,
           text="A settings file, as ``geminga tune advise --apply`` writes it, read where the query is "
                "started: compression, hashing, batch limits and send time-out, unless they are given."),
    Option(name="sendTimeoutMs", field="send_timeout_ms", use=WRITE, parse=_number(1),
           aliases=("pulsar.producer.sendTimeoutMs",),
           text="How long a receipt may take until the task fails. Default 30000."),
    Option(name="exactlyOnce", field="exactly_once", use=WRITE, parse=_flag,
           text="Stage the rows and publish them in the commit: of a stream's micro-batches with sequence "
                "ids that the broker's deduplication recognises, of a batch query when all tasks have "
                "succeeded. Default false."),
    Option(name="sinkName", field="sink_name", use=WRITE, parse=_text,
           text="Producer name of the exactly-once sink. Default: made from the query's id."),
    Option(name="stagingLocation", field="staging_location", use=WRITE, parse=_text,
           text="Folder, seen by all machines, where the exactly-once sink stages. Default: the "
                "checkpoint's; a batch query has none."),
    Option(name="checkpointLocation", field="checkpoint_location", use=BOTH, parse=_text,
           text="Spark's own option; the exactly-once sink stages below it."),
)  # fmt: skip

OPTIONS: dict[str, Option] = {option.name: option for option in _TABLE}
"""Every option by its name."""

_BY_LOWER_NAME = {
    name.lower(): option for option in _TABLE for name in (option.name, *option.aliases)
}  # fmt: skip

_REFUSED = {
    "assign": "name the topic of a partition ('...-partition-3') in 'topics'",
    "kafka.bootstrap.servers": "the option is 'service.url', like pulsar://localhost:6650",
    "includeheaders": "ask for the column __messageProperties",
    "endingtime": "use endingOffsets",
    "endingtimestamp": "use endingOffsets",
}

_SPARK_ITS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode", "path"})

_OF_A_TABLE = "option."
"""Spark's catalog gives each option of a table twice: by its name, and by its name behind this."""

_OF_THE_CATALOG = frozenset(
    {"provider", "owner", "comment", "collation", "location", "external", "is_managed_location"}
)
"""What the catalog notes about a table beside its options."""

SECRETS = frozenset({"auth.token", "pulsar.client.authparams"})
"""Options, in lower case, whose values show in no plan, log or catalog."""


def table_options(options: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a table that is being created in Spark's catalog; None for any other query."""
    if "provider" not in {name.lower() for name in options}:
        return None
    return {
        name: value
        for name, value in options.items()
        if name.lower() not in _OF_THE_CATALOG and not name.lower().startswith(_OF_A_TABLE)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """What a client is made from; the key of the cache of clients."""

    service_url: str
    token: str | None = field(default=None, repr=False)
    tls_trust_certs_file_path: str | None = None
    tls_allow_insecure_connection: bool = False
    tls_validate_hostname: bool = True
    operation_timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of ``spark.read`` and ``spark.readStream``."""

    connection: ConnectionOptions
    topics: tuple[str, ...] = ()
    topics_pattern: str | None = None
    columns: tuple[str, ...] | None = None
    starting_offsets: str | offsets.Offsets | None = None
    ending_offsets: str | offsets.Offsets = "latest"
    starting_time_ms: int | None = None
    fail_on_data_loss: bool = True
    min_partitions: int = 1
    max_entries_per_split: int = 10_000
    max_rows_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    max_entries_per_trigger: int | None = None
    poll_timeout_ms: int = 120_000
    receiver_queue_size: int = 20_000
    subscription_prefix: str = "spark"
    subscription: str | None = None
    durable_subscription: bool = False
    wait_for_topics: bool = False

    def __post_init__(self) -> None:
        if bool(self.topics) == bool(self.topics_pattern):
            raise InvalidConfiguration(
                "exactly one of the options topic, topics and topicsPattern must be given"
                + (" (two are)" if self.topics else "; for example .option('topic', 'my-topic')")
            )
        if self.starting_offsets is not None and self.starting_time_ms is not None:
            raise InvalidConfiguration("startingOffsets and startingTime exclude each other")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of ``df.write`` and ``df.writeStream``."""

    connection: ConnectionOptions
    topics: tuple[str, ...] = ()
    compression: str = "NONE"
    hashing: str = "JavaStringHash"
    batching_max_messages: int = 1000
    batching_max_bytes: int = 128 * 1024
    send_timeout_ms: int = 30_000
    exactly_once: bool = False
    sink_name: str | None = None
    staging_location: str | None = None
    checkpoint_location: str | None = None

    @property
    def topic(self) -> str | None:
        """The topic of all rows, None when each row names its own."""
        return self.topics[0] if self.topics else None


_CONNECTION_FIELDS = frozenset(ConnectionOptions.__dataclass_fields__)
_UNUSED_FIELDS = frozenset({"admin_url", "auth_class", "allow_different_schemas"})


def for_use(options: Mapping[str, str], use: str) -> dict[str, str]:
    """``options`` without those for the other use alone: a table is read and written with one set."""
    return {
        name: value
        for name, value in options.items()
        if (option := _BY_LOWER_NAME.get(name.lower())) is None or option.use in (use, BOTH)
    }


def _parsed(options: Mapping[str, str], use: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    given: dict[str, str] = {}
    for name, value in options.items():
        lower = name.lower()
        option = _BY_LOWER_NAME.get(lower)
        if option is None or option.use not in (use, BOTH):
            if lower in _SPARK_ITS_OWN:
                continue
            raise _unknown(name, option, use)
        if option.field in given:
            raise InvalidConfiguration(
                f"options {given[option.field]!r} and {name!r} both say {option.name!r}: give one of them"
            )
        given[option.field] = name
        found[option.field] = option.parse(option.name, str(value))
    return found


def _unknown(name: str, option: Option | None, use: str) -> InvalidConfiguration:
    if option is not None:
        other = "writing" if use == READ else "reading"
        return InvalidConfiguration(f"option {option.name!r} is for {other} only")
    reason = _REFUSED.get(name.lower())
    if reason:
        return InvalidConfiguration(f"option {name!r} is not supported: {reason}")
    known = [each.name for each in _TABLE if each.use in (use, BOTH)]
    near = suggestion(
        name, [*known, *(alias for each in _TABLE if each.use in (use, BOTH) for alias in each.aliases)]
    )
    return InvalidConfiguration(
        f"unknown option {name!r} of format 'pulsar'{near}; known options: {', '.join(sorted(known))}"
    )


def _connection(found: dict[str, Any]) -> ConnectionOptions:
    url = found.get("service_url")
    if url is None:
        raise InvalidConfiguration(
            "the option service.url is missing, like pulsar://localhost:6650 (a table of Spark's catalog "
            "keeps its options when it is created without columns: name them by the option 'columns')"
        )
    try:
        ServiceUrl.parse(url)
    except InvalidUrl as error:
        raise InvalidConfiguration(f"option service.url: {error}") from None
    return ConnectionOptions(**{name: found.pop(name) for name in list(found) if name in _CONNECTION_FIELDS})


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of a read. Raises `InvalidConfiguration` naming option, value and range."""
    found = {name: value for name, value in _parsed(options, READ).items() if name not in _UNUSED_FIELDS}
    found.pop("checkpoint_location", None)
    return ReadOptions(connection=_connection(found), **found)


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check the options of a write. Raises `InvalidConfiguration` naming option, value and range."""
    found = {name: value for name, value in _parsed(options, WRITE).items() if name not in _UNUSED_FIELDS}
    path = found.pop("settings_file", None)
    if path is not None:
        found = {**_from_file(path), **found}
    return WriteOptions(connection=_connection(found), **found)


_FIELD_OF_ARGUMENT = {
    "compression_type": "compression",
    "hashing_scheme": "hashing",
    "batching_max_messages": "batching_max_messages",
    "batching_max_allowed_size_in_bytes": "batching_max_bytes",
    "send_timeout_millis": "send_timeout_ms",
}
"""What of a settings file means something to a sink, which makes whole batches of what it is given."""


def _from_file(path: str) -> dict[str, Any]:
    producer = load_settings(path).producer
    found = {field: producer[name] for name, field in _FIELD_OF_ARGUMENT.items() if name in producer}
    if "compression" in found:
        found["compression"] = found["compression"].name.upper()
    if "hashing" in found:
        found["hashing"] = found["hashing"].value
    return found
