"""Every option of ``format("pulsar")``: names, kinds, defaults, and checks before anything runs.

Names are those of the Scala connector (``service.url``, ``startingOffsets``, ...) and those that users of
Spark's Kafka source expect (``minPartitions``, ``maxOffsetsPerTrigger``, ...). Spark hands option names
over in lower case; they are matched without regard to case.
"""

import logging
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from geminga.client.api.settings_file import load_settings
from geminga.client.options.settings import ClientSettings
from geminga.config import suggestion
from geminga.connection.addresses import ServiceUrl
from geminga.errors import InvalidConfiguration, InvalidUrl
from geminga.ids import TopicName
from geminga.producer.settings import CompressionType, ProducerSettings, check_compression_level
from geminga.spark import offsets
from geminga.spark import option_values as values
from geminga.spark.option_names import NO_EFFECT, refusal
from geminga.spark.option_values import Times
from geminga.spark.retry_policy import RetryPolicy

logger = logging.getLogger("geminga.spark")

_CLIENT = ClientSettings(service_url="pulsar://localhost")
_PRODUCER = ProducerSettings()
"""Defaults of the client and the producer, which the options share."""

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


def _option(
    use: str, parse: Callable[[str, str], Any], name: str, *aliases: str, text: str, field: str = ""
) -> Option:
    """Return an option; ``field`` defaults to the name, as Python writes names."""
    field = field or re.sub(r"\.|(?=[A-Z])", "_", name).lower()
    return Option(name=name, field=field, use=use, parse=parse, text=text, aliases=aliases)


COMPRESSIONS = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
HASHINGS = ("JavaStringHash", "Murmur3_32Hash", "BoostHash")

_TABLE = (
    _option(BOTH, values.text, "service.url", "pulsar.client.serviceUrl",
            text="``pulsar://host:port`` or ``pulsar+ssl://host:port`` of the cluster, several hosts "
            "separated by commas. Required."),
    _option(BOTH, values.text, "admin.url",
            text="``http://host:port`` of the admin REST API; an exactly-once stream turns deduplication on "
            "through it. Default: the address that the broker of `service.url` confirms."),
    _option(BOTH, values.secret, "auth.token", field="token",
            text="JSON web token to authenticate with, or its source: ``file:///path`` or ``env:NAME``."),
    _option(BOTH, values.plugin, "auth.plugin", "pulsar.client.authPluginClassName",
            text="``token`` (default), ``tls``, ``basic`` or ``oauth2``, or the name of the Java class."),
    _option(BOTH, values.secret, "auth.params", "pulsar.client.authParams", text="Parameters of the "
            "plug-in: ``token:<JWT>``, ``tlsCertFile:/path,tlsKeyFile:/path``, or JSON."),
    _option(BOTH, values.text, "tls.trustCertsFilePath", "pulsar.client.tlsTrustCertsFilePath",
            text="PEM file of trusted certificates, present on every machine; default: the system's."),
    _option(BOTH, values.text, "tls.certificateFilePath", "pulsar.client.tlsCertificateFilePath",
            text="PEM file of the client certificate; requires ``tls.keyFilePath``."),
    _option(BOTH, values.text, "tls.keyFilePath", "pulsar.client.tlsKeyFilePath",
            text="PEM file of its private key."),
    _option(BOTH, values.flag, "tls.allowInsecureConnection", "pulsar.client.tlsAllowInsecureConnection",
            text="Trust any certificate: for tests only. Default false."),
    _option(BOTH, values.flag, "tls.validateHostname", "pulsar.client.tlsHostnameVerificationEnable",
            text="Check the host name in the certificate. Default true."),
    _option(BOTH, values.number(1), "operationTimeoutMs", "pulsar.client.operationTimeoutMs",
            text="Time-out of lookups, opening and closing, and of waiting for an unreachable broker; a "
            "query that starts waits for a third of it. Default 30000."),
    _option(BOTH, values.number(1), "connectionTimeoutMs", "pulsar.client.connectionTimeoutMs",
            text="Time-out of connecting to a broker. Default 10000."),
    _option(BOTH, values.number(1), "keepAliveIntervalSeconds", "pulsar.client.keepAliveIntervalSeconds",
            text="Interval of keep-alive probes on a silent connection. Default 30."),
    _option(BOTH, values.text, "listenerName", "pulsar.client.listenerName",
            text="Name of the brokers' advertised listener to connect to."),
    _option(BOTH, values.topic, "topic", "path", "pulsar.producer.topicName", field="topics",
            text="The topic to read or write."),
    _option(READ, values.topics, "topics", "subscribe", text="Topics to read, separated by commas."),
    _option(READ, values.pattern, "topicsPattern", "subscribePattern",
            text="Regular expression for the local names of the topics of one namespace."),
    _option(READ, values.assigned, "assign", field="topics", text='Single partitions to read, as JSON: '
            '``{"topic": [0, 2]}``; -1 is a topic without partitions.'),
    _option(READ, values.names, "columns", text="Columns to deliver, separated by commas. Spark does no "
            "column pruning for Python data sources: leaving out unused columns saves time."),
    _option(BOTH, values.choice("BYTES", "TOPIC", "JSON", "AVRO"), "valueSchema",
            text="Payload format. ``BYTES`` (default): the column ``value``. Reading, ``TOPIC`` (or "
            "``AVRO``): the columns of the topics' registered schemas; each message is decoded with the "
            "version it was written with. ``JSON``: as ``TOPIC``, and messages without a schema are read as "
            "JSON. Writing, ``JSON`` and ``AVRO``: the frame's columns are the payload, and their schema is "
            "registered on the topic. ``TOPIC``: they are encoded with the newest schema."),
    _option(READ, values.text, "jsonColumn", text="Name of a ``STRUCT`` column of ``.schema()``, with the "
            "payloads that are JSON objects which it holds completely: each field, of that type, with all "
            "digits. ``value`` is then null; for other payloads the column is. Default: none."),
    _option(READ, values.flag, "withoutJsonObjects", text="Leave out most messages that are JSON objects: "
            "all but large and unusual ones and some beside each other message. Filter the rows by "
            "``json_object_keys(CAST(value AS STRING)) IS NULL``. Default false."),
    _option(READ, values.choice("FAILFAST", "PERMISSIVE", "DROPMALFORMED"), "mode", field="payload_mode",
            text="Handling of messages whose payload can't be decoded: ``FAILFAST`` (default) fails the "
            "query, ``PERMISSIVE`` delivers nulls with the payload in ``columnNameOfCorruptRecord``, "
            "``DROPMALFORMED`` leaves the message out, with a warning."),
    _option(READ, values.text, "deadLetterPath",
            text="Folder, shared by all machines, for messages whose payload can't be decoded: bytes, ids "
            "and errors, as Parquet. ``mode`` then defaults to ``DROPMALFORMED``."),
    _option(READ, values.text, "columnNameOfCorruptRecord", field="corrupt_column", text="Column (binary or "
            "string) for payloads that can't be decoded. Default ``_corrupt_record``."),
    _option(READ, values.flag, "mergeSchema", text="Deliver the columns of all versions of the topics' "
            "schemas, not only of the newest. Default false."),
    _option(READ, values.choice("none", "failOnNewColumns"), "schemaEvolutionMode",
            field="schema_evolution", text="Handling of fields added to the topic's schema after the query "
            "started: ``none`` (default) leaves them out, with a warning; ``failOnNewColumns`` fails the "
            "query, which reads them when it is restarted."),
    _option(READ, values.places, "startingOffsets",
            text='``earliest`` (default of batch queries), ``latest`` (default of streams) or JSON with the '
            'first message of each partition; ``"*": "earliest"`` or ``"latest"`` applies to all other '
            'partitions. A restarted stream resumes from its checkpoint.'),
    _option(READ, values.named_places, "endingOffsets", text="``latest`` (default) or JSON with the last "
            "message of each partition. Batch queries only."),
    _option(READ, values.firsts, "firstOffsets",
            text="JSON with the expected first message of partitions read from ``earliest``; if it is gone, "
            "messages were lost. Batch queries only; snapshots set this option."),
    _option(READ, values.moment, "startingTime", "startingTimestamp", field="starting_time_ms",
            text="Start at the first message published at or after this time, in milliseconds since 1970, "
            "not in the future."),
    _option(READ, values.moment, "endingTime", "endingTimestamp", field="ending_time_ms",
            text="End before the first message published at or after this time. Batch queries only."),
    _option(READ, values.times, "startingOffsetsByTimestamp", field="starting_times",
            text='``startingTime`` by partition, as JSON: ``{"topic": {"0": 1700000000000}}``; other '
            'partitions start at the default.'),
    _option(READ, values.times, "endingOffsetsByTimestamp", field="ending_times",
            text="``endingTime`` by partition, as JSON."),
    _option(READ, lambda name, value: values.choice("error", "latest")(name, value) == "latest",
            "startingOffsetsByTimestampStrategy", field="future_is_latest",
            text="Meaning of a starting time in the future: ``error`` (default) or ``latest``."),
    _option(READ, values.flag, "failOnDataLoss",
            text="Fail if retention may have removed unread messages or a topic was deleted. Default true."),
    _option(READ, values.number(1), "minPartitions",
            text="Minimum number of tasks; partitions are split to reach it, if they have enough entries. A "
            "stream that splits a partition does not keep its order."),
    _option(READ, values.number(1), "maxEntriesPerSplit",
            text="Maximum entries (batches) per task; larger ranges are split. Default of batch queries: "
            "10000; streams split only if this or ``maxBytesPerSplit`` is set."),
    _option(READ, values.size, "maxBytesPerSplit",
            text="Approximate stored bytes per task, estimated from sampled entries. Default of batch "
            "queries: 64m; streams split only if this or ``maxEntriesPerSplit`` is set."),
    _option(READ, values.number(1), "maxRowsPerTrigger", "maxOffsetsPerTrigger", "maxMessagesPerTrigger",
            text="Maximum messages per micro-batch; a producer's batch is never split."),
    _option(READ, values.size, "maxBytesPerTrigger",
            text="Maximum stored bytes per micro-batch, e.g. ``64m``."),
    _option(READ, values.number(1), "maxEntriesPerTrigger", text="Maximum entries (batches) per "
            "micro-batch: the cheapest limit, since no entry has to be read while planning."),
    _option(READ, values.number(1), "minRowsPerTrigger", "minOffsetsPerTrigger", "minMessagesPerTrigger",
            text="Minimum messages per micro-batch (approximate): wait for them up to ``maxTriggerDelay``."),
    _option(READ, values.duration_ms, "maxTriggerDelay", field="max_trigger_delay_ms",
            text="Longest wait for ``minRowsPerTrigger``, e.g. ``30s``. Default 15m."),
    _option(READ, values.number(1), "pollTimeoutMs", "kafkaConsumer.pollTimeoutMs",
            text="Longest wait of a task for the next message of its range. Default 120000."),
    _option(READ, values.text, "offloadLocation",
            text="Offload storage of the broker (its ``--offload-location``), as an address that tasks can "
            "reach: they read offloaded ledgers from its files. Credentials come from the environment."),
    _option(READ, values.number(1), "receiverQueueSize", "pulsar.reader.receiverQueueSize",
            text="Messages that a task prefetches from the broker. Default 20000."),
    _option(READ, values.text, "subscriptionPrefix", "subscriptionNamePrefix",
            "pulsar.reader.subscriptionRolePrefix", "groupIdPrefix", text="Prefix of the names of the "
            "temporary reader subscriptions and of the durable subscription. Default ``spark``."),
    _option(READ, values.text, "predefinedSubscription", field="subscription",
            text="Streams: a durable subscription used by this query alone; its cursor follows Spark's "
            "committed offsets. Without a starting option a new query starts at the cursor."),
    _option(READ, values.flag, "durableSubscription", text="Streams: create a durable subscription for this "
            "query, named after ``subscriptionPrefix``; the checkpoint stores the name. Default false."),
    _option(READ, values.flag, "readCompacted", "pulsar.reader.readCompacted",
            text="Read the compacted topics, then the messages published after compaction. A stream reads "
            "the compacted messages in its first micro-batch. Default false."),
    _option(READ, values.flag, "waitingForNonExistedTopic", field="wait_for_topics",
            text="Treat a missing topic as empty. Default false: the query fails."),
    _option(READ, values.text, "crypto.privateKeyPath", text="PEM file, present on every machine, of the "
            "private key that decrypts messages. Without it encrypted messages fail the query."),
    _option(READ, values.choice("FAIL", "DISCARD"), "cryptoFailureAction",
            "pulsar.reader.cryptoFailureAction", text="Handling of messages that can't be decrypted: "
            "``FAIL`` (default) fails the query, ``DISCARD`` leaves them out, with a warning."),
    _option(WRITE, values.choice(*COMPRESSIONS), "compression", "pulsar.producer.compressionType",
            text="Codec: ``NONE`` (default), ``LZ4``, ``ZLIB``, ``ZSTD`` or ``SNAPPY``."),
    _option(WRITE, values.number(0), "compressionLevel",
            text="Level of ``ZSTD`` (1 to 19) or ``ZLIB`` (1 to 9). Default 0: level 3 or 6."),
    _option(WRITE, values.choice(*HASHINGS), "hashingScheme", "pulsar.producer.hashingScheme",
            field="hashing", text="Hash that maps keys to partitions: ``JavaStringHash`` (default, as the "
            "Scala connector), ``Murmur3_32Hash``, or ``BoostHash`` (as ``pulsar-client``)."),
    _option(WRITE, values.number(1), "batchingMaxMessages", "pulsar.producer.batchingMaxMessages",
            text="Maximum messages per batch. Default 1000."),
    _option(WRITE, values.size, "batchingMaxBytes", "pulsar.producer.batchingMaxBytes",
            text="Maximum payload bytes per batch. Default 131072."),
    _option(WRITE, values.flag, "batchingEnabled", "pulsar.producer.batchingEnabled",
            text="Send messages in batches; false sends each message as its own entry. Default true."),
    _option(WRITE, values.text, "settingsFile",
            text="Settings file written by ``geminga tune advise --apply``, read on the driver: defaults "
            "for compression, hashing, batch limits and send time-out."),
    _option(WRITE, values.number(1), "sendTimeoutMs", "pulsar.producer.sendTimeoutMs",
            text="Time-out of a send receipt; after it the task fails. Default 30000."),
    _option(WRITE, values.text, "crypto.publicKeyPath",
            text="PEM file of the public key that encrypts messages; requires ``encryptionKeys``."),
    _option(WRITE, values.names, "encryptionKeys", "pulsar.producer.encryptionKeys",
            text="Names of the public key, separated by commas, stored in the messages' metadata."),
    _option(WRITE, values.text, "recordName",
            text="Record name of the registered schema. Default ``topLevelRecord``, as in ``to_avro``."),
    _option(WRITE, values.text, "recordNamespace",
            text="Record namespace of the registered schema. Default: none."),
    _option(WRITE, values.flag, "exactlyOnce", text="Stage the rows and publish them in the commit. Streams "
            "use sequence ids, so that the broker's deduplication drops repeated rows; batch queries "
            "publish when all tasks have succeeded. Default false."),
    _option(WRITE, values.text, "sinkName", "pulsar.producer.producerName",
            text="Producer name of the exactly-once sink. Default: derived from the query's id."),
    _option(WRITE, values.number(0, 1 << 31), "batchId",
            text="Number of a batch write that may be repeated, from `foreachBatch`: with `exactlyOnce` and "
            "`sinkName` its rows are published once, as with Delta Lake's `txnAppId` and `txnVersion`."),
    _option(WRITE, values.text, "stagingLocation", text="Folder, shared by all machines, for the "
            "exactly-once sink's staged rows. Default: below the checkpoint; required for batch queries."),
    _option(BOTH, values.text, "checkpointLocation",
            text="Spark's checkpoint folder. The exactly-once sink stages rows below it; below PySpark 4.2 "
            "a stream with a limit of a micro-batch reads its start there."),
)  # fmt: skip

OPTIONS: dict[str, Option] = {option.name: option for option in _TABLE}
"""Every option by its name."""

_BY_LOWER_NAME = {
    name.lower(): (name, option) for option in _TABLE for name in (option.name, *option.aliases)
}
"""Names with their own spelling, since Spark hands them over in lower case, and their options."""

_SPARK_ITS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode", "path"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Settings of a client; also the key of the process's client cache."""

    service_url: str
    auth_plugin: str | None = None
    auth_params: str | None = field(default=None, repr=False)
    tls_certificate_file_path: str | None = None
    tls_key_file_path: str | None = None
    connection_timeout_ms: int = round(_CLIENT.connection_timeout_seconds * 1000)
    keep_alive_interval_seconds: int = round(_CLIENT.keepalive_interval_seconds)
    listener_name: str | None = None
    tls_trust_certs_file_path: str | None = None
    tls_allow_insecure_connection: bool = False
    tls_validate_hostname: bool = True
    operation_timeout_ms: int = round(_CLIENT.operation_timeout_seconds * 1000)

    @property
    def retry_policy(self) -> RetryPolicy:
        """Retries of requests, for the operation time-out."""
        return RetryPolicy(self.operation_timeout_ms / 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of ``spark.read`` and ``spark.readStream``."""

    connection: ConnectionOptions
    topics: tuple[str, ...] = ()
    topics_pattern: str | None = None
    columns: tuple[str, ...] | None = None
    json_column: str | None = None
    without_json_objects: bool = False
    starting_offsets: str | offsets.Offsets | None = None
    ending_offsets: str | offsets.Offsets = "latest"
    first_offsets: offsets.Offsets = field(default_factory=dict)
    starting_time_ms: int | None = None
    ending_time_ms: int | None = None
    starting_times: Times = field(default_factory=dict)
    ending_times: Times = field(default_factory=dict)
    future_is_latest: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int = 1
    max_entries_per_split: int | None = None
    max_bytes_per_split: int | None = None
    max_rows_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    max_entries_per_trigger: int | None = None
    min_rows_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    poll_timeout_ms: int = 120_000
    receiver_queue_size: int = 20_000
    offload_location: str | None = None
    subscription_prefix: str = "spark"
    subscription: str | None = None
    durable_subscription: bool = False
    wait_for_topics: bool = False
    read_compacted: bool = False
    crypto_private_key_path: str | None = None
    crypto_failure_action: str = "FAIL"
    value_schema: str = "BYTES"
    payload_mode: str = "FAILFAST"
    corrupt_column: str = "_corrupt_record"
    dead_letter_path: str | None = None
    merge_schema: bool = False
    schema_evolution: str = "none"
    checkpoint_location: str | None = None

    def __post_init__(self) -> None:
        schema = None if self.value_schema == "BYTES" else self.value_schema
        _one_of("jsonColumn", self.json_column is not None, "columns", self.columns)
        _one_of("jsonColumn", self.json_column is not None, "valueSchema", schema)
        _one_of("withoutJsonObjects", self.without_json_objects, "jsonColumn", self.json_column)
        _one_of("withoutJsonObjects", self.without_json_objects, "valueSchema", schema)
        if self.value_schema == "BYTES":
            for name, field_name in _OF_SCHEMAS.items():
                if getattr(self, field_name) != ReadOptions.__dataclass_fields__[field_name].default:
                    raise InvalidConfiguration(
                        f"option {name} requires payloads with a schema: set valueSchema=TOPIC too"
                    )
        if bool(self.topics) == bool(self.topics_pattern):
            raise InvalidConfiguration(
                "exactly one of the options topic, topics and topicsPattern must be given"
                + (" (two are)" if self.topics else "; for example .option('topic', 'my-topic')")
            )
        for topic in filter(None, (*self.topics, self.topics_pattern)):
            if not TopicName.parse(topic).persistent:
                raise InvalidConfiguration(
                    f"topic {topic!r} is not persistent: no broker stores its messages, so no query can "
                    "read them from an offset; allowed: persistent topics"
                )
        _one_of("startingOffsets", self.starting_offsets is not None, "startingTime", self.starting_time_ms)
        has_start = self.starting_time_ms is not None
        _one_of("startingTime", has_start, "startingOffsetsByTimestamp", self.starting_times)
        if self.dead_letter_path is not None and self.payload_mode == "FAILFAST":
            raise InvalidConfiguration(
                "mode=FAILFAST fails a query at its first dead letter: with deadLetterPath, leave it out or "
                "set DROPMALFORMED or PERMISSIVE"
            )
        if self.read_compacted and (
            self.says_end or self.starting_times or self.starting_time_ms is not None
        ):
            raise InvalidConfiguration(
                "readCompacted=true reads only the compacted messages of a topic: it does not allow "
                "endingOffsets, nor starting and ending times"
            )
        _one_of("endingOffsets", self.ending_offsets != "latest", "endingTime", self.ending_time_ms)
        _one_of("endingTime", self.ending_time_ms is not None, "endingOffsetsByTimestamp", self.ending_times)
        first, last = self.starting_time_ms, self.ending_time_ms
        if first is not None and last is not None and first > last:
            raise InvalidConfiguration(
                f"option startingTime={first} is after endingTime={last}; allowed: a time <= endingTime"
            )

    @property
    def says_start(self) -> bool:
        """Whether an option says where a new query starts."""
        return bool(self.starting_offsets or self.starting_time_ms is not None or self.starting_times)

    @property
    def says_end(self) -> bool:
        return bool(self.ending_offsets != "latest" or self.ending_time_ms is not None or self.ending_times)


_OF_SCHEMAS = {
    "deadLetterPath": "dead_letter_path", "mode": "payload_mode",
    "columnNameOfCorruptRecord": "corrupt_column", "mergeSchema": "merge_schema",
    "schemaEvolutionMode": "schema_evolution",
}  # fmt: skip


def _one_of(one: str, has_one: bool, other: str, value: object) -> None:
    if has_one and value not in (None, {}):
        raise InvalidConfiguration(f"{one} and {other} exclude each other")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of ``df.write`` and ``df.writeStream``."""

    connection: ConnectionOptions
    topics: tuple[str, ...] = ()
    compression: str = "NONE"
    compression_level: int = _PRODUCER.compression_level
    hashing: str = "JavaStringHash"
    batching_max_messages: int = _PRODUCER.batching_max_messages
    batching_max_bytes: int = _PRODUCER.batching_max_allowed_size_in_bytes
    batching_enabled: bool = True
    send_timeout_ms: int = round(_PRODUCER.send_timeout_seconds * 1000)
    crypto_public_key_path: str | None = None
    encryption_keys: tuple[str, ...] = ()
    value_schema: str = "BYTES"
    record_name: str = "topLevelRecord"
    record_namespace: str = ""
    exactly_once: bool = False
    sink_name: str | None = None
    batch_id: int | None = None
    staging_location: str | None = None
    checkpoint_location: str | None = None
    admin_url: str | None = None

    def __post_init__(self) -> None:
        if self.value_schema == "TOPIC" and not self.topics:
            raise InvalidConfiguration("valueSchema=TOPIC uses the topic's schema: set the option topic")
        if self.batch_id is not None and not (self.exactly_once and self.sink_name):
            raise InvalidConfiguration(
                f"option batchId={self.batch_id}: publishing a repeated write once needs exactlyOnce=true "
                "and a sinkName that no other write uses"
            )
        if bool(self.encryption_keys) != (self.crypto_public_key_path is not None):
            raise InvalidConfiguration(
                "encryptionKeys and crypto.publicKeyPath belong together: set both or none"
            )
        codec = CompressionType(COMPRESSIONS.index(self.compression))
        check_compression_level("compressionLevel", self.compression_level, codec)

    @property
    def messages_in_a_batch(self) -> int:
        return self.batching_max_messages if self.batching_enabled else 1

    @property
    def topic(self) -> str | None:
        """The topic of all rows, None when each row names its own."""
        return self.topics[0] if self.topics else None


_CONNECTION_FIELDS = frozenset(ConnectionOptions.__dataclass_fields__)


def without(options: Mapping[str, str], fields: Collection[str]) -> dict[str, str]:
    """Return ``options`` without those, by any alias, that fill these fields of `ReadOptions`."""
    return {
        name: value
        for name, value in options.items()
        if name.lower() not in _BY_LOWER_NAME or _BY_LOWER_NAME[name.lower()][1].field not in fields
    }


def _parsed(options: Mapping[str, str], use: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    given: dict[str, str] = {}
    for asked, value in options.items():
        lower = asked.lower()
        name, option = _BY_LOWER_NAME.get(lower, (asked, None))
        if option is None or option.use not in (use, BOTH):
            if lower in _SPARK_ITS_OWN:
                continue
            if lower in NO_EFFECT or lower.startswith("pulsar.admin."):
                logger.info("option %s has no effect here", name)
                continue
            if option is not None and lower.startswith(("pulsar.reader.", "pulsar.producer.")):
                continue  # one set of options for reading and writing, as the Scala connector's users have
            raise _unknown(name, option, use)
        if option.field in given:
            raise InvalidConfiguration(
                f"options {given[option.field]!r} and {name!r} both set {option.name!r}: keep one of them"
            )
        given[option.field] = name
        found[option.field] = option.parse(name, str(value))
    return found


def _unknown(name: str, option: Option | None, use: str) -> InvalidConfiguration:
    if option is not None:
        other = "writing" if use == READ else "reading"
        return InvalidConfiguration(f"option {name!r} is for {other} only")
    reason = refusal(name)
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
            "the option service.url is missing, e.g. pulsar://localhost:6650 (Spark does not pass a table's "
            "options to queries: use SELECT ... FROM t WITH ('service.url' = '...', topic = '...'), INSERT "
            "INTO t WITH (...), writeTo('t').options(...))"
        )
    try:
        ServiceUrl.parse(url)
    except InvalidUrl as error:
        raise InvalidConfiguration(f"option service.url: {error}") from None
    token = found.pop("token", None)
    if token is not None:
        if "auth_params" in found or "auth_plugin" in found:
            raise InvalidConfiguration("auth.token and auth.params (or auth.plugin) exclude each other")
        found["auth_plugin"], found["auth_params"] = "token", token
    elif "auth_params" in found:
        found.setdefault("auth_plugin", "token")
    elif found.get("auth_plugin", "tls") != "tls":
        raise InvalidConfiguration(f"option auth.plugin={found['auth_plugin']!r} needs auth.params")
    return ConnectionOptions(**{name: found.pop(name) for name in list(found) if name in _CONNECTION_FIELDS})


_ACCESS = ("auth.token", "auth.plugin", "auth.params", "tls.trustCertsFilePath", "tls.certificateFilePath",
           "tls.keyFilePath", "tls.allowInsecureConnection", "tls.validateHostname")  # fmt: skip
ACCESS: dict[str, Option] = {name: OPTIONS[name] for name in _ACCESS}
"""Authentication and TLS options."""


def access_options(options: Mapping[str, str]) -> ConnectionOptions:
    """Return the options in `ACCESS` alone, for endpoints other than the service URL."""
    wanted = {name.lower() for name in ACCESS}
    given = {name: value for name, value in options.items() if name.lower() in wanted}
    return _connection({**_parsed(given, READ), "service_url": "pulsar://elsewhere"})


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of a read. Raises `InvalidConfiguration` naming option, value and range."""
    found = _parsed(options, READ)
    found.pop("admin_url", None)
    if "dead_letter_path" in found:
        found.setdefault("payload_mode", "DROPMALFORMED")
    return ReadOptions(connection=_connection(found), **found)


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check the options of a write. Raises `InvalidConfiguration` naming option, value and range."""
    found = _parsed(options, WRITE)
    path = found.pop("settings_file", None)
    if path is not None:
        of_file = _from_file(path)
        if "compression" in found:
            of_file.pop("compression_level", None)  # the level belongs to the file's codec
        found = {**of_file, **found}
    return WriteOptions(connection=_connection(found), **found)


_FIELD_OF_ARGUMENT = {
    "compression_type": "compression",
    "compression_level": "compression_level",
    "hashing_scheme": "hashing",
    "batching_max_messages": "batching_max_messages",
    "batching_max_allowed_size_in_bytes": "batching_max_bytes",
    "send_timeout_millis": "send_timeout_ms",
}
"""Option fields that a sink takes from a settings file, by the file's names."""


def _from_file(path: str) -> dict[str, Any]:
    producer = load_settings(path).producer
    found = {field: producer[name] for name, field in _FIELD_OF_ARGUMENT.items() if name in producer}
    if "compression" in found:
        found["compression"] = found["compression"].name.upper()
    if "hashing" in found:
        found["hashing"] = found["hashing"].value
    return found
