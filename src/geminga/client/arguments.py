"""From the arguments of the public API, which are ``pulsar-client``'s, to frozen settings.

Both shells use these functions, so each argument is checked and translated in one place.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from geminga.client import crypto
from geminga.client.authentication import Authentication
from geminga.client.crypto import KeyReader, ProducerCryptoFailureAction
from geminga.client.enums import (
    BatchingType,
    CompressionType,
    HashingScheme,
    PartitionsRoutingMode,
    ProducerAccessMode,
)
from geminga.client.settings import ClientSettings, TlsSettings
from geminga.config import (
    MILLISECONDS_MAX,
    check_int,
    check_milliseconds,
    check_seconds,
    check_type,
    refuse,
)
from geminga.connection.authentication import NoAuthentication
from geminga.consumer.settings import (
    ConsumerBatchReceivePolicy,
    ConsumerCryptoFailureAction,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    ConsumerSettings,
    ConsumerType,
    InitialPosition,
    ReaderSettings,
    RedeliveryBackoff,
    RegexSubscriptionMode,
)
from geminga.ids import MessageId, TopicName
from geminga.producer.interceptors import ProducerInterceptor
from geminga.producer.settings import (
    LATENCY_BUDGET_MAX_SECONDS,
    LATENCY_BUDGET_MIN_SECONDS,
    ProducerSettings,
    SchemaInfo,
)
from geminga.schema import BytesSchema, JsonSchema, Record, Schema
from geminga.schema.schema import from_wire
from geminga.wire.proto import pulsar_wire_pb2 as pb


def client_settings(
    *,
    service_url: object,
    authentication: Authentication | None,
    operation_timeout_seconds: float,
    io_threads: int,
    message_listener_threads: int,
    concurrent_lookup_requests: int,
    log_conf_file_path: str | None,
    stats_interval_in_seconds: int,
    use_tls: bool,
    tls_trust_certs_file_path: str | None,
    tls_allow_insecure_connection: bool,
    tls_validate_hostname: bool,
    connection_timeout_ms: int,
    listener_name: str | None,
    tls_private_key_file_path: str | None,
    tls_certificate_file_path: str | None,
    memory_limit_bytes: int,
    connections_per_broker: int,
    keep_alive_interval_seconds: float,
    initial_backoff_interval_ms: int,
    max_backoff_interval_ms: int,
) -> ClientSettings:
    """The settings of `geminga.Client` and `geminga.asyncio.Client`."""
    check_type("service_url", service_url, str)
    check_type("authentication", authentication, Authentication, optional=True)
    # Accepted and without effect, as documented: one I/O thread carries everything, the log file
    # argument is deprecated, and the URL's scheme decides about TLS.
    check_int("io_threads", io_threads, 1)
    check_int("message_listener_threads", message_listener_threads, 1, 1000)
    check_type("log_conf_file_path", log_conf_file_path, str, optional=True)
    check_type("use_tls", use_tls, bool)
    check_int("stats_interval_in_seconds", stats_interval_in_seconds, 0)
    check_seconds("keep_alive_interval_seconds", keep_alive_interval_seconds, 0.001)
    backoff_initial_seconds = check_milliseconds(
        "initial_backoff_interval_ms", initial_backoff_interval_ms, 1
    )
    check_milliseconds("max_backoff_interval_ms", max_backoff_interval_ms, initial_backoff_interval_ms)
    check_int("connection_timeout_ms", connection_timeout_ms, 1, MILLISECONDS_MAX)
    certificate, key = tls_certificate_file_path, tls_private_key_file_path
    if authentication is not None and authentication.certificate_path is not None:
        certificate, key = authentication.certificate_path, authentication.private_key_path
    return ClientSettings(
        service_url=str(service_url),
        credentials=NoAuthentication() if authentication is None else authentication.provider,
        operation_timeout_seconds=operation_timeout_seconds,
        connection_timeout_seconds=connection_timeout_ms / 1000,
        keepalive_interval_seconds=keep_alive_interval_seconds,
        backoff_initial_seconds=backoff_initial_seconds,
        backoff_max_seconds=max_backoff_interval_ms / 1000,
        concurrent_lookup_requests=concurrent_lookup_requests,
        connections_per_broker=connections_per_broker,
        listener_name=listener_name,
        listener_threads=message_listener_threads,
        memory_limit_bytes=memory_limit_bytes,
        statistics_interval_seconds=stats_interval_in_seconds,
        tls=TlsSettings(
            trust_certificates_path=tls_trust_certs_file_path,
            allow_insecure_connection=tls_allow_insecure_connection,
            validate_hostname=tls_validate_hostname,
            certificate_path=certificate,
            private_key_path=key,
        ),
    )


def checked_topic(topic: object) -> str:
    """The full name of a topic argument. Raises `InvalidTopicName` or `InvalidConfiguration`."""
    check_type("topic", topic, str)
    return str(TopicName.parse(str(topic)))


def checked_schema(schema: object) -> Schema:
    """A schema argument; None stands for `BytesSchema`, a dataclass or another such class for its
    `JsonSchema`."""
    if schema is None:
        return BytesSchema()
    if isinstance(schema, type):
        from geminga.schema.models import is_model

        if issubclass(schema, Record) or is_model(schema):
            return JsonSchema(schema)
    checked: Schema = check_type("schema", schema, Schema)
    return checked


def schema_info(schema: pb.Schema | None) -> SchemaInfo | None:
    """A schema from the wire as the public API shows it."""
    return None if schema is None else from_wire(schema)


def schema_version_bytes(version: int | bytes | None) -> bytes | None:
    """A schema version as messages carry it: 8 bytes, big-endian."""
    if version is None or isinstance(version, bytes):
        return version
    return check_int("version", version, 0, (1 << 63) - 1).to_bytes(8, "big")


def producer_settings(
    *,
    producer_name: str | None,
    schema: Schema,
    initial_sequence_id: int | None,
    send_timeout_millis: int,
    compression_type: CompressionType,
    max_pending_messages: int,
    max_pending_messages_across_partitions: int,
    block_if_queue_full: bool,
    batching_enabled: bool,
    batching_max_messages: int,
    batching_max_allowed_size_in_bytes: int,
    batching_max_publish_delay_ms: float,
    chunking_enabled: bool,
    message_routing_mode: PartitionsRoutingMode,
    lazy_start_partitioned_producers: bool,
    properties: Mapping[str, str] | None,
    batching_type: BatchingType,
    encryption_key: str | None,
    encryption_keys: Sequence[str],
    crypto_key_reader: KeyReader | None,
    crypto_failure_action: ProducerCryptoFailureAction,
    access_mode: ProducerAccessMode,
    message_router: Callable[..., int] | None,
    hashing_scheme: HashingScheme,
    chunk_max_message_size: int | None,
    initial_subscription_name: str | None,
    batching_partition_switch_frequency: int,
    blocked_after_ms: int,
    step_over_blocked_partitions: bool,
    partitions_refresh_seconds: float,
    interceptors: Sequence[Any],
    latency_budget_ms: float | None,
    compression_level: int,
) -> ProducerSettings:
    """The settings of `create_producer`."""
    check_type("compression_type", compression_type, CompressionType)
    check_type("message_routing_mode", message_routing_mode, PartitionsRoutingMode)
    check_type("batching_type", batching_type, BatchingType)
    check_type("access_mode", access_mode, ProducerAccessMode)
    check_type("hashing_scheme", hashing_scheme, HashingScheme)
    check_type("producer_name", producer_name, str, optional=True)
    check_int("send_timeout_millis", send_timeout_millis, 0, MILLISECONDS_MAX)
    publish_delay_seconds = check_milliseconds("batching_max_publish_delay_ms", batching_max_publish_delay_ms)
    check_int("blocked_after_ms", blocked_after_ms, 0, MILLISECONDS_MAX)
    check_type("properties", properties, Mapping, optional=True)
    check_type("encryption_keys", encryption_keys, list, tuple)
    for name in encryption_keys:
        check_type("encryption_keys", name, str)
    check_type("interceptors", interceptors, list, tuple)
    for interceptor in interceptors:
        check_type("interceptors", interceptor, ProducerInterceptor)
    if message_router is not None:
        message_routing_mode = PartitionsRoutingMode.CustomPartition
    latency_budget_seconds = None
    if latency_budget_ms is not None:
        latency_budget_seconds = check_milliseconds(
            "latency_budget_ms",
            latency_budget_ms,
            LATENCY_BUDGET_MIN_SECONDS * 1000,
            LATENCY_BUDGET_MAX_SECONDS * 1000,
        )
    plain = type(schema) is BytesSchema
    return ProducerSettings(
        producer_name=producer_name or None,
        properties=dict(properties or {}),
        initial_sequence_id=initial_sequence_id,
        access_mode=access_mode,
        initial_subscription_name=initial_subscription_name,
        schema=schema.told_to_topic(),
        encode=None if plain else schema.encode_message,
        send_timeout_seconds=send_timeout_millis / 1000,
        max_pending_messages=max_pending_messages,
        max_pending_messages_across_partitions=max_pending_messages_across_partitions,
        block_if_queue_full=block_if_queue_full,
        compression_type=compression_type,
        compression_level=compression_level,
        batching_enabled=batching_enabled,
        batching_type=batching_type,
        batching_max_messages=batching_max_messages,
        batching_max_allowed_size_in_bytes=batching_max_allowed_size_in_bytes,
        batching_max_publish_delay_seconds=publish_delay_seconds,
        batching_partition_switch_frequency=batching_partition_switch_frequency,
        latency_budget_seconds=latency_budget_seconds,
        chunking_enabled=chunking_enabled,
        chunk_max_message_size=chunk_max_message_size,
        message_routing_mode=message_routing_mode,
        message_router=message_router,
        hashing_scheme=hashing_scheme,
        lazy_start_partitioned_producers=lazy_start_partitioned_producers,
        partitions_refresh_seconds=partitions_refresh_seconds,
        blocked_after_seconds=blocked_after_ms / 1000,
        step_over_blocked_partitions=step_over_blocked_partitions,
        interceptors=tuple(interceptors),
        encryptor=crypto.encryptor(encryption_key, encryption_keys, crypto_key_reader, crypto_failure_action),
    )


def checked_topics(topic: object) -> str | list[str] | re.Pattern[str]:
    """The topic argument of ``subscribe``: a name, a list of names, or a compiled pattern."""
    if isinstance(topic, str):
        return checked_topic(topic)
    if isinstance(topic, (list, tuple)):
        return list(dict.fromkeys(checked_topic(name) for name in topic))
    if isinstance(topic, re.Pattern) and isinstance(topic.pattern, str):
        return topic
    refuse("topic", topic, "a topic name, a list of topic names, or re.compile(...) of a text pattern")


def checked_subscription(subscription_name: object) -> str:
    check_type("subscription_name", subscription_name, str)
    if not str(subscription_name):
        refuse("subscription_name", subscription_name, "a text that is not empty")
    return str(subscription_name)


def consumer_settings(
    *,
    consumer_type: ConsumerType,
    schema: Schema,
    message_listener: Callable[[Any, Any], Any] | None,
    receiver_queue_size: int,
    max_total_receiver_queue_size_across_partitions: int,
    consumer_name: str | None,
    unacked_messages_timeout_ms: int | None,
    broker_consumer_stats_cache_time_ms: int,
    negative_ack_redelivery_delay_ms: int,
    is_read_compacted: bool,
    properties: Mapping[str, str] | None,
    pattern_auto_discovery_period: float,
    initial_position: InitialPosition,
    crypto_key_reader: KeyReader | None,
    replicate_subscription_state_enabled: bool,
    max_pending_chunked_message: int,
    auto_ack_oldest_chunked_message_on_queue_full: bool,
    start_message_id_inclusive: bool,
    batch_receive_policy: ConsumerBatchReceivePolicy | None,
    key_shared_policy: ConsumerKeySharedPolicy | None,
    batch_index_ack_enabled: bool,
    regex_subscription_mode: RegexSubscriptionMode,
    dead_letter_policy: ConsumerDeadLetterPolicy | None,
    crypto_failure_action: ConsumerCryptoFailureAction,
    priority_level: int,
    subscription_properties: Mapping[str, str] | None,
    ack_grouping_time_ms: int,
    ack_receipt_enabled: bool,
    negative_ack_redelivery_backoff: RedeliveryBackoff | None,
    retry_enabled: bool,
) -> ConsumerSettings:
    """The settings of `subscribe`."""
    if message_listener is not None and not callable(message_listener):
        refuse("message_listener", message_listener, "a callable that takes (consumer, message), or None")
    for name, mapping in (("properties", properties), ("subscription_properties", subscription_properties)):
        check_type(name, mapping, Mapping, optional=True)
    check_type("consumer_name", consumer_name, str, optional=True)
    return ConsumerSettings(
        consumer_type=consumer_type,
        schema=None if type(schema) is BytesSchema else schema,
        receiver_queue_size=receiver_queue_size,
        max_total_receiver_queue_size_across_partitions=max_total_receiver_queue_size_across_partitions,
        consumer_name=consumer_name or None,
        priority_level=priority_level,
        properties=dict(properties or {}),
        subscription_properties=dict(subscription_properties or {}),
        initial_position=initial_position,
        start_message_id_inclusive=start_message_id_inclusive,
        is_read_compacted=is_read_compacted,
        replicate_subscription_state_enabled=replicate_subscription_state_enabled,
        key_shared_policy=key_shared_policy,
        ack_grouping_time_ms=ack_grouping_time_ms,
        ack_receipt_enabled=ack_receipt_enabled,
        batch_index_ack_enabled=batch_index_ack_enabled,
        unacked_messages_timeout_ms=unacked_messages_timeout_ms,
        negative_ack_redelivery_delay_ms=negative_ack_redelivery_delay_ms,
        negative_ack_redelivery_backoff=negative_ack_redelivery_backoff,
        dead_letter_policy=dead_letter_policy,
        retry_enabled=retry_enabled,
        max_pending_chunked_message=max_pending_chunked_message,
        auto_ack_oldest_chunked_message_on_queue_full=auto_ack_oldest_chunked_message_on_queue_full,
        decryptor=crypto.decryptor(crypto_key_reader),
        crypto_failure_action=crypto_failure_action,
        message_listener=message_listener,
        batch_receive_policy=batch_receive_policy,
        pattern_auto_discovery_period=pattern_auto_discovery_period,
        regex_subscription_mode=regex_subscription_mode,
        broker_consumer_stats_cache_time_ms=broker_consumer_stats_cache_time_ms,
    )


def checked_start(
    start_message_id: object, start_time: object = None, now_ms: int | None = None
) -> MessageId | int:
    """Where a reader starts: an id, or a publish time in milliseconds since 1970.

    ``start_time`` is such a number, a datetime with a time zone, or a timedelta back from ``now_ms``.
    """
    if start_time is None:
        start: MessageId = check_type("start_message_id", start_message_id, MessageId)
        return start
    if start_message_id is not None:
        refuse("start_time", start_time, "None with a start_message_id: only one of them says where to start")
    if isinstance(start_time, dt.datetime):
        if start_time.tzinfo is None:
            refuse("start_time", start_time, "a datetime with a time zone")
        start_time = (start_time - _EPOCH) // dt.timedelta(milliseconds=1)
    elif isinstance(start_time, dt.timedelta):
        assert now_ms is not None
        start_time = now_ms - start_time // dt.timedelta(milliseconds=1)
    return check_int("start_time", start_time, 0, MILLISECONDS_MAX * 100)


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def reader_settings(
    *,
    schema: Schema,
    reader_listener: Callable[[Any, Any], Any] | None,
    receiver_queue_size: int,
    reader_name: str | None,
    subscription_role_prefix: str | None,
    is_read_compacted: bool,
    crypto_key_reader: KeyReader | None,
    start_message_id_inclusive: bool,
    crypto_failure_action: ConsumerCryptoFailureAction,
    subscription_name: str | None = None,
) -> ReaderSettings:
    """The settings of `create_reader`."""
    if reader_listener is not None and not callable(reader_listener):
        refuse("reader_listener", reader_listener, "a callable that takes (reader, message), or None")
    check_type("reader_name", reader_name, str, optional=True)
    check_type("subscription_role_prefix", subscription_role_prefix, str, optional=True)
    return ReaderSettings(
        schema=None if type(schema) is BytesSchema else schema,
        receiver_queue_size=receiver_queue_size,
        reader_name=reader_name or None,
        subscription_role_prefix=subscription_role_prefix or None,
        subscription_name=subscription_name,
        is_read_compacted=is_read_compacted,
        start_message_id_inclusive=start_message_id_inclusive,
        reader_listener=reader_listener,
        decryptor=crypto.decryptor(crypto_key_reader),
        crypto_failure_action=crypto_failure_action,
    )
