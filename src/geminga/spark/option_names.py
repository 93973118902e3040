"""Option names of other programs: Java's client configuration, the Scala connector, Spark's Kafka source.

Names with a counterpart here are aliases in `geminga.spark.options`. The others are accepted without effect,
because the feature they tune does not exist or does not matter here; or refused, because ignoring them would
change which messages are read or written, or which certificates are trusted.
"""

_NO_CLIENT_EFFECT = (
    "statsIntervalSeconds", "numIoThreads", "numListenerThreads", "connectionMaxIdleSeconds", "useTcpNoDelay",
    "useTls", "concurrentLookupRequest", "maxLookupRequest", "maxLookupRedirects",
    "maxNumberOfRejectedRequestPerConnection", "requestTimeoutMs", "readTimeoutMs", "lookupTimeoutMs",
    "autoCertRefreshSeconds", "initialBackoffIntervalNanos", "maxBackoffIntervalNanos", "enableBusyWait",
    "sslProvider", "description", "memoryLimitBytes", "connectionsPerBroker",
)  # fmt: skip
_NO_READER_EFFECT = ("readerName", "resetIncludeHead", "poolMessages", "autoUpdatePartitions",
                     "autoUpdatePartitionsIntervalSeconds", "maxPendingChunkedMessage")  # fmt: skip
_NO_PRODUCER_EFFECT = (
    "blockIfQueueFull", "maxPendingMessages", "maxPendingMessagesAcrossPartitions",
    "batchingMaxPublishDelayMicros", "batchingPartitionSwitchFrequencyByPublishDelay", "autoUpdatePartitions",
    "autoUpdatePartitionsIntervalSeconds", "lazyStartPartitionedProducers", "multiSchema",
)  # fmt: skip

NO_EFFECT: frozenset[str] = frozenset(
    name.lower()
    for prefix, group in (
        ("pulsar.client.", _NO_CLIENT_EFFECT),
        ("pulsar.reader.", _NO_READER_EFFECT),
        ("pulsar.producer.", _NO_PRODUCER_EFFECT),
        ("", ("allowDifferentTopicSchemas", "jsonOptions", "includeHeaders", "fetchOffset.numRetries",
              "fetchOffset.retryIntervalMs")),
    )
    for name in (f"{prefix}{each}" for each in group)
)  # fmt: skip
"""Lower-case names accepted without effect, like every ``pulsar.admin.`` name: admin REST is not needed."""

REFUSED: dict[str, str] = {
    "kafka.bootstrap.servers": "the option is 'service.url', like pulsar://localhost:6650",
    "kafka.compression.type": "the option is 'compression'",
    "kafka.group.id": "the option is 'predefinedSubscription'",
    "maxrecordsperpartition": "the option is 'maxEntriesPerSplit', in entries (a producer's batches)",
    "pulsar.client.proxyserviceurl": "a proxy is named by 'service.url'",
    "pulsar.client.enabletransaction": "transactions are not supported",
    "pulsar.client.usekeystoretls": "certificates are PEM files: tls.trustCertsFilePath and its like",
    "pulsar.client.tlstruststorepath": "certificates are PEM files: use tls.trustCertsFilePath",
    "pulsar.client.tlskeystorepath": "certificates are PEM files: use tls.certificateFilePath",
    "pulsar.client.socks5proxyaddress": "SOCKS proxies are not supported",
    "pulsar.reader.cryptokeyreader": "Java classes can't be loaded: use crypto.privateKeyPath",
    "pulsar.reader.startmessageid": "the option is 'startingOffsets'",
    "pulsar.producer.cryptokeyreader": "Java classes can't be loaded: use crypto.publicKeyPath",
    "pulsar.producer.messageroutingmode": "rows with a key go to its partition, the others round robin",
    "pulsar.producer.initialsequenceid": "sequence ids are the sink's own",
    "pulsar.producer.accessmode": "tasks share the topic: they publish at the same time",
    "pulsar.producer.chunkingenabled": "a row must fit into one message of the broker's maxMessageSize",
}
"""Reasons why options are refused, by lower-case name."""


def refusal(name: str) -> str | None:
    """Return the reason why an option is refused, or None if it is just unknown."""
    lower = name.lower()
    if lower.startswith(("kafka.security.", "kafka.sasl.", "kafka.ssl.")):
        return "the options are 'auth.plugin' and 'auth.params', and 'tls.trustCertsFilePath' and its like"
    otherwise = "a setting of Kafka's clients: leave it out" if lower.startswith("kafka.") else None
    return REFUSED.get(lower, otherwise)
