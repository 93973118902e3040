"""Names of options elsewhere: in the Java client, and in Apache Pulsar's ``broker.conf``.

``docs/reference/client.md`` and ``settings.md`` show these names beside Geminga's, for people who migrate a
program or a configuration. The docs test fails for an option of the client that is missing here; one that
only Geminga has gets an empty text.
"""

from __future__ import annotations

import dataclasses

from geminga.broker.settings import BrokerSettings

JAVA: dict[str, dict[str, str]] = {
    "Client": {
        "service_url": "serviceUrl, serviceUrlProvider",
        "authentication": "authentication",
        "operation_timeout_seconds": "operationTimeout",
        "io_threads": "ioThreads",
        "message_listener_threads": "listenerThreads",
        "concurrent_lookup_requests": "maxConcurrentLookupRequests",
        "log_conf_file_path": "",
        "stats_interval_in_seconds": "statsInterval",
        "use_tls": "enableTls",
        "tls_trust_certs_file_path": "tlsTrustCertsFilePath",
        "tls_allow_insecure_connection": "allowTlsInsecureConnection",
        "tls_validate_hostname": "enableTlsHostnameVerification",
        "logger": "",
        "connection_timeout_ms": "connectionTimeout",
        "listener_name": "listenerName",
        "tls_private_key_file_path": "tlsKeyFilePath",
        "tls_certificate_file_path": "tlsCertificateFilePath",
        "memory_limit_bytes": "memoryLimit",
        "connections_per_broker": "connectionsPerBroker",
        "keep_alive_interval_seconds": "keepAliveInterval",
        "initial_backoff_interval_ms": "startingBackoffInterval",
        "max_backoff_interval_ms": "maxBackoffInterval",
        "metrics": "openTelemetry",
        "metrics_by_topic": "",
    },
    "create_producer": {
        "topic": "topic",
        "producer_name": "producerName",
        "schema": "newProducer(schema)",
        "initial_sequence_id": "initialSequenceId",
        "send_timeout_millis": "sendTimeout",
        "compression_type": "compressionType",
        "compression_level": "",
        "max_pending_messages": "maxPendingMessages",
        "max_pending_messages_across_partitions": "maxPendingMessagesAcrossPartitions",
        "block_if_queue_full": "blockIfQueueFull",
        "batching_enabled": "enableBatching",
        "batching_max_messages": "batchingMaxMessages",
        "batching_max_allowed_size_in_bytes": "batchingMaxBytes",
        "batching_max_publish_delay_ms": "batchingMaxPublishDelay",
        "batching_type": "batcherBuilder",
        "batching_partition_switch_frequency": "roundRobinRouterBatchingPartitionSwitchFrequency",
        "chunking_enabled": "enableChunking",
        "chunk_max_message_size": "chunkMaxMessageSize",
        "message_routing_mode": "messageRoutingMode",
        "message_router": "messageRouter",
        "hashing_scheme": "hashingScheme",
        "lazy_start_partitioned_producers": "enableLazyStartPartitionedProducers",
        "partitions_refresh_seconds": "autoUpdatePartitionsInterval",
        "properties": "properties",
        "encryption_key": "addEncryptionKey",
        "encryption_keys": "addEncryptionKey",
        "crypto_key_reader": "cryptoKeyReader",
        "crypto_failure_action": "cryptoFailureAction",
        "access_mode": "accessMode",
        "initial_subscription_name": "",
        "interceptors": "intercept",
        "blocked_after_ms": "",
        "step_over_blocked_partitions": "",
        "latency_budget_ms": "",
    },
    "subscribe": {
        "topic": "topic, topics, topicsPattern",
        "subscription_name": "subscriptionName",
        "consumer_type": "subscriptionType",
        "schema": "newConsumer(schema)",
        "message_listener": "messageListener",
        "failure_listener": "decryptFailListener",
        "receiver_queue_size": "receiverQueueSize",
        "max_total_receiver_queue_size_across_partitions": "maxTotalReceiverQueueSizeAcrossPartitions",
        "consumer_name": "consumerName",
        "unacked_messages_timeout_ms": "ackTimeout",
        "broker_consumer_stats_cache_time_ms": "",
        "negative_ack_redelivery_delay_ms": "negativeAckRedeliveryDelay",
        "is_read_compacted": "readCompacted",
        "properties": "properties",
        "pattern_auto_discovery_period": "patternAutoDiscoveryPeriod",
        "initial_position": "subscriptionInitialPosition",
        "crypto_key_reader": "cryptoKeyReader",
        "crypto_failure_action": "cryptoFailureAction",
        "replicate_subscription_state_enabled": "replicateSubscriptionState",
        "max_pending_chunked_message": "maxPendingChunkedMessage",
        "auto_ack_oldest_chunked_message_on_queue_full": "autoAckOldestChunkedMessageOnQueueFull",
        "start_message_id_inclusive": "startMessageIdInclusive",
        "batch_receive_policy": "batchReceivePolicy",
        "key_shared_policy": "keySharedPolicy",
        "batch_index_ack_enabled": "enableBatchIndexAcknowledgment",
        "regex_subscription_mode": "subscriptionTopicsMode",
        "dead_letter_policy": "deadLetterPolicy",
        "is_pattern_topic": "topicsPattern",
        "priority_level": "priorityLevel",
        "subscription_properties": "subscriptionProperties",
        "ack_grouping_time_ms": "acknowledgmentGroupTime",
        "ack_receipt_enabled": "isAckReceiptEnabled",
        "negative_ack_redelivery_backoff": "negativeAckRedeliveryBackoff",
        "retry_enabled": "enableRetry",
        "event_listener": "consumerEventListener",
        "start_paused": "startPaused",
    },
    "create_reader": {
        "topic": "topic, topics",
        "start_message_id": "startMessageId",
        "start_time": "startMessageFromRollbackDuration",
        "schema": "newReader(schema)",
        "reader_listener": "readerListener",
        "failure_listener": "readerDecryptFailListener",
        "receiver_queue_size": "receiverQueueSize",
        "reader_name": "readerName",
        "subscription_role_prefix": "subscriptionRolePrefix",
        "is_read_compacted": "readCompacted",
        "crypto_key_reader": "cryptoKeyReader",
        "crypto_failure_action": "cryptoFailureAction",
        "start_message_id_inclusive": "startMessageIdInclusive",
    },
    "create_table_view": {
        "topic": "topic",
        "subscription_name": "subscriptionName",
        "schema": "newTableView(schema)",
    },
}
"""By method and argument: the call of Java's builder."""

WORDS: dict[str, dict[str, str]] = {
    "Client": {
        "service_url": (
            "`pulsar://host[:port]` or `pulsar+ssl://host[:port]`, several hosts separated by commas; "
            "`http(s)://` looks topics up over REST. Or an `AutoClusterFailover` or a `ServiceInfoProvider`."
        ),
        "authentication": (
            "Credentials of the client: `AuthenticationToken`, `AuthenticationBasic`, `AuthenticationTLS`, "
            "`AuthenticationOauth2` or `AuthenticationAthenz`."
        ),
        "io_threads": "No effect except a warning: one thread does all I/O.",
        "log_conf_file_path": "No effect except a warning: use `logger`.",
        "use_tls": "No effect except a warning: the service URL decides about TLS.",
        "logger": "Logger that receives log lines besides the standard logger `geminga`.",
        "tls_trust_certs_file_path": "Trusted certificates in PEM; None: the system's.",
        "tls_allow_insecure_connection": "True trusts any certificate: for tests only.",
        "tls_validate_hostname": "Check that the certificate names the host; unlike in `pulsar-client`, on.",
        "tls_private_key_file_path": "The certificate's private key in PEM.",
        "tls_certificate_file_path": "This client's certificate in PEM, for mutual TLS.",
    },
    "create_producer": {
        "topic": "The topic, partitioned or not.",
        "schema": "Encodes values; registered with the broker, which checks compatibility. None: bytes.",
        "encryption_key": "Name of a public key; holders of the private key can decrypt the messages.",
        "encryption_keys": "Names of several public keys.",
        "crypto_key_reader": "Provider of the keys by name.",
        "crypto_failure_action": (
            "Action if no data key can be created: `FAIL` refuses messages, `SEND` sends plain text."
        ),
    },
    "subscribe": {
        "topic": "A topic, several (a list), or all that match a pattern (`re.compile(...)`).",
        "subscription_name": "The subscription's name; consumers of one name share its messages.",
        "schema": "Decodes payloads; registered with the broker, which checks compatibility. None: bytes.",
        "crypto_key_reader": "Provider of the private keys by name.",
        "is_pattern_topic": "asyncio: `topic` is the text of a pattern.",
    },
    "create_reader": {
        "topic": "A topic, several (a list), or all that match a pattern (`re.compile(...)`).",
        "start_message_id": (
            "Start position, after this message; `MessageId.earliest` and `MessageId.latest` are the "
            "topic's ends."
        ),
        "start_time": (
            "Start by publish time instead: a datetime with a time zone, milliseconds since 1970, or a "
            "timedelta back from now."
        ),
        "schema": "Decodes payloads. None: bytes.",
        "crypto_key_reader": "Provider of the private keys by name.",
    },
    "create_table_view": {
        "topic": "Topic whose newest value per key the view holds.",
        "subscription_name": "Name of the reader's subscription; None: a random name.",
        "schema": "Decodes payloads. None: bytes.",
    },
}
"""Meaning by method and argument, for arguments without a field in the settings."""

BROKER_CONF: dict[str, str] = {
    **{field.name: field.metadata.get("dynamic", "") for field in dataclasses.fields(BrokerSettings)},
    "host": "bindAddress",
    "port": "brokerServicePort",
    "web_port": "webServicePort",
    "tls_port": "brokerServicePortTls",
    "web_tls_port": "webServicePortTls",
    "advertised_listeners": "advertisedListeners",
    "internal_listener": "internalListenerName",
    "advertised_address": "advertisedAddress",
    "cluster": "clusterName",
    "sync": "journalSyncData (bookkeeper.conf)",
    "max_message_size": "maxMessageSize",
    "keepalive_seconds": "keepAliveIntervalSeconds",
    "connections_max": "brokerMaxConnections",
    "pending_bytes_max": "maxMessagePublishBufferSizeInMB",
    "token_secret_key": "tokenSecretKey",
    "token_public_key": "tokenPublicKey",
    "token_role_claim": "tokenAuthClaim",
    "token_audience": "tokenAudience",
    "token_audience_claim": "tokenAudienceClaim",
    "token_clock_skew_seconds": "tokenAllowedClockSkewSeconds",
    "basic_auth": "basicAuthConf",
    "authentication_refresh_seconds": "authenticationRefreshCheckSeconds",
    "authorization": "authorizationEnabled",
    "super_user_roles": "superUserRoles",
    "anonymous_role": "anonymousUserRole",
    "tls_certificate": "tlsCertificateFilePath",
    "tls_key": "tlsKeyFilePath",
    "tls_trust_certificates": "tlsTrustCertsFilePath",
    "tls_require_client_certificate": "tlsRequireTrustedClientCertOnConnect",
    "tls_minimum_version": "tlsProtocols",
    "tls_ciphers": "tlsCiphers",
    "partitions_max": "maxNumPartitionsPerPartitionedTopic",
    "namespace_bundles": "defaultNumberOfNamespaceBundles",
    "compaction_retain_null_key": "topicCompactionRetainNullKey",
    "offload_location": "managedLedgerOffloadBucket",
    "batch_index_ack": "acknowledgmentAtBatchIndexLevelEnabled",
    "failover_delay_seconds": "activeConsumerFailoverDelayTimeMillis",
    "delayed_delivery": "delayedDeliveryEnabled",
    "delayed_delivery_tick_seconds": "delayedDeliveryTickTimeMillis",
    "deduplication_producers_max": "brokerDeduplicationMaxNumberOfProducers",
    "ledger_entries_max": "managedLedgerMaxEntriesPerLedger",
    "ledger_bytes_max": "managedLedgerMaxSizePerLedgerMbytes",
    "ledger_seconds_max": "managedLedgerMaxLedgerRolloverTimeMinutes",
}
"""By field of `BrokerSettings`: the key of Apache Pulsar's ``broker.conf`` that is nearest; empty: none."""
