"""`geminga.Client`: the client for plain threads, with the names, arguments and defaults of
``pulsar-client`` 3.13.

One default differs: the host name in a TLS certificate is checked. Arguments after the ``*`` are additions.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import logging
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from geminga.client import arguments
from geminga.client.authentication import Authentication
from geminga.client.core import ClientCore, Closable
from geminga.client.crypto import KeyReader, ProducerCryptoFailureAction
from geminga.client.enums import (
    BatchingType,
    CompressionType,
    HashingScheme,
    PartitionsRoutingMode,
    ProducerAccessMode,
)
from geminga.client.failover import service_source
from geminga.client.listener import ListenerThreads
from geminga.client.logs import ConsoleLogger, FileLogger, attach, detach
from geminga.client.runtime import LoopThread
from geminga.client.schema_versions import ThreadSchemaVersions
from geminga.client.service import AutoClusterFailover, ServiceInfo, ServiceInfoProvider
from geminga.client.settings import ClientSettings
from geminga.consumer.settings import (
    ConsumerBatchReceivePolicy,
    ConsumerCryptoFailureAction,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    ConsumerType,
    InitialPosition,
    RedeliveryBackoff,
    RegexSubscriptionMode,
)
from geminga.errors import AlreadyClosed, PulsarException
from geminga.ids import MessageId
from geminga.producer.settings import SchemaInfo
from geminga.schema import BytesSchema, Schema

if TYPE_CHECKING:
    from geminga.client.consumer import Consumer
    from geminga.client.producer import Producer
    from geminga.client.reader import Reader
    from geminga.client.table_view import TableView

T = TypeVar("T")
H = TypeVar("H", bound=Closable)

_BYTES = BytesSchema()

_GRACE_SECONDS = 5.0
"""How much longer than the operation time-out a call waits for the I/O thread, which keeps it itself."""


class Client:
    """A connection to a cluster; producers, consumers and readers share its connections.

    ::

        with geminga.Client("pulsar://localhost:6650") as client:
            producer = client.create_producer("my-topic")
            producer.send(b"hello")

    May be used from several threads. After ``fork`` the child needs a client of its own.
    """

    def __init__(
        self,
        service_url: str | AutoClusterFailover | ServiceInfoProvider,
        authentication: Authentication | None = None,
        operation_timeout_seconds: float = 30,
        io_threads: int = 1,
        message_listener_threads: int = 1,
        concurrent_lookup_requests: int = 50000,
        log_conf_file_path: str | None = None,
        stats_interval_in_seconds: int = 600,
        use_tls: bool = False,
        tls_trust_certs_file_path: str | None = None,
        tls_allow_insecure_connection: bool = False,
        tls_validate_hostname: bool = True,
        logger: logging.Logger | ConsoleLogger | FileLogger | None = None,
        connection_timeout_ms: int = 10000,
        listener_name: str | None = None,
        tls_private_key_file_path: str | None = None,
        tls_certificate_file_path: str | None = None,
        *,
        memory_limit_bytes: int = 0,
        connections_per_broker: int = 1,
        keep_alive_interval_seconds: float = 30,
        initial_backoff_interval_ms: int = 100,
        max_backoff_interval_ms: int = 60000,
    ) -> None:
        """Nothing is connected yet; an unreachable broker shows with the first operation.

        service_url:
            ``pulsar://host[:port]`` or ``pulsar+ssl://host[:port]``; several hosts, separated by commas,
            are tried in turn. With ``http://`` or ``https://`` topics are looked up over the REST interface.
            Or an `AutoClusterFailover` or a `ServiceInfoProvider`, which name clusters with the credentials
            of each.
        authentication:
            `AuthenticationToken`, `AuthenticationBasic` or `AuthenticationTLS`.
        operation_timeout_seconds:
            The most that creating, subscribing, seeking, closing and lookups take.
        message_listener_threads:
            Threads that call message listeners; each consumer and reader keeps to one of them.
        tls_trust_certs_file_path:
            PEM certificates to trust; default: the system's.
        tls_allow_insecure_connection:
            True trusts any certificate: for tests only.
        tls_validate_hostname:
            On by default, unlike ``pulsar-client``.
        logger:
            Where log lines go besides the standard logger ``geminga``.
        connection_timeout_ms:
            The most that connecting and the handshake take.
        io_threads, log_conf_file_path, use_tls:
            Accepted without effect: one thread carries all I/O, and the URL decides about TLS.
        memory_limit_bytes:
            Bound on messages without a receipt, over all producers; 0: none.

        Raises `InvalidUrl` and `InvalidConfiguration`.
        """
        self._source = service_source(service_url, authentication, tls_trust_certs_file_path)
        info = self._source.current
        self._settings: ClientSettings = arguments.client_settings(
            service_url=info.service_url,
            authentication=info.authentication,
            operation_timeout_seconds=operation_timeout_seconds,
            io_threads=io_threads,
            message_listener_threads=message_listener_threads,
            concurrent_lookup_requests=concurrent_lookup_requests,
            log_conf_file_path=log_conf_file_path,
            stats_interval_in_seconds=stats_interval_in_seconds,
            use_tls=use_tls,
            tls_trust_certs_file_path=info.tls_trust_certs_file_path,
            tls_allow_insecure_connection=tls_allow_insecure_connection,
            tls_validate_hostname=tls_validate_hostname,
            connection_timeout_ms=connection_timeout_ms,
            listener_name=listener_name,
            tls_private_key_file_path=tls_private_key_file_path,
            tls_certificate_file_path=tls_certificate_file_path,
            memory_limit_bytes=memory_limit_bytes,
            connections_per_broker=connections_per_broker,
            keep_alive_interval_seconds=keep_alive_interval_seconds,
            initial_backoff_interval_ms=initial_backoff_interval_ms,
            max_backoff_interval_ms=max_backoff_interval_ms,
        )
        self._log_handler = attach(logger)
        self._listener_threads = ListenerThreads(message_listener_threads)
        self._runtime = LoopThread()
        self._core = self._runtime.call(_make_core(self._settings))
        self._schemas = ThreadSchemaVersions(self._runtime, self._core.schemas)
        self._runtime.at_end(repr(self), self._core.close, self._core.sweep)
        self._source.start(self._core, self._core.loop.call_soon_threadsafe)

    @property
    def core(self) -> ClientCore:
        """The heart of this client, for the modules of this package; it belongs to `runtime`'s thread."""
        return self._core

    @property
    def runtime(self) -> LoopThread:
        """The I/O thread, for the modules of this package."""
        return self._runtime

    def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: Schema | type = _BYTES,
        initial_sequence_id: int | None = None,
        send_timeout_millis: int = 30000,
        compression_type: CompressionType = CompressionType.NONE,
        max_pending_messages: int = 1000,
        max_pending_messages_across_partitions: int = 50000,
        block_if_queue_full: bool = False,
        batching_enabled: bool = False,
        batching_max_messages: int = 1000,
        batching_max_allowed_size_in_bytes: int = 128 * 1024,
        batching_max_publish_delay_ms: float = 10,
        chunking_enabled: bool = False,
        message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution,
        lazy_start_partitioned_producers: bool = False,
        properties: Mapping[str, str] | None = None,
        batching_type: BatchingType = BatchingType.Default,
        encryption_key: str | None = None,
        crypto_key_reader: KeyReader | None = None,
        access_mode: ProducerAccessMode = ProducerAccessMode.Shared,
        message_router: Callable[..., int] | None = None,
        *,
        hashing_scheme: HashingScheme = HashingScheme.BoostHash,
        chunk_max_message_size: int | None = None,
        initial_subscription_name: str | None = None,
        batching_partition_switch_frequency: int = 10,
        blocked_after_ms: int = 1000,
        step_over_blocked_partitions: bool = True,
        partitions_refresh_seconds: float = 60.0,
        interceptors: Sequence[Any] = (),
        encryption_keys: Sequence[str] = (),
        crypto_failure_action: ProducerCryptoFailureAction = ProducerCryptoFailureAction.FAIL,
        latency_budget_ms: float | None = None,
        compression_level: int = 0,
    ) -> Producer:
        """A producer on ``topic``, partitioned or not. `ProducerSettings` tells what each argument does.

        With ``batching_enabled`` messages that come close together share an entry, which saves most of the
        CPU of client and broker; `send` waits for no delay. Consumers get entries whole: with keys and
        Key_Shared consumers choose ``BatchingType.KeyBased`` besides. ``hashing_scheme`` decides the
        partition of a key: ``BoostHash``, the default, agrees with ``pulsar-client``, ``JavaStringHash``
        with the Java client. ``encryption_key`` and
        ``encryption_keys`` name the public keys that ``crypto_key_reader`` gives: whoever has the private
        part of any of them can read what is sent. With ``latency_budget_ms`` the producer tunes itself:
        delay, batch limits and partition stay follow rate, sizes and receipts, so that 99 of 100 messages
        have their receipt within so many milliseconds and the broker gets as few entries as that allows;
        ``batching_enabled`` must be on then, and the other batching arguments stay at their defaults.
        ``compression_level`` is that of ZSTD (1 to 19) or ZLib (1 to 9); 0, the default, compresses as hard
        as the other clients do.

        Raises `InvalidConfiguration`, `InvalidTopicName`, `ConnectError`, `Timeout`, and what the broker
        reports, for example `ProducerBusy`, `TopicNotFound`, `AuthorizationError`.
        """
        from geminga.client.producer import Producer, create_producer

        name = arguments.checked_topic(topic)
        checked = arguments.checked_schema(schema)
        if checked.needs_topic:
            checked = self._call(self._core.schemas.for_topic(name, checked))
        settings = arguments.producer_settings(
            producer_name=producer_name,
            schema=checked,
            initial_sequence_id=initial_sequence_id,
            send_timeout_millis=send_timeout_millis,
            compression_type=compression_type,
            max_pending_messages=max_pending_messages,
            max_pending_messages_across_partitions=max_pending_messages_across_partitions,
            block_if_queue_full=block_if_queue_full,
            batching_enabled=batching_enabled,
            batching_max_messages=batching_max_messages,
            batching_max_allowed_size_in_bytes=batching_max_allowed_size_in_bytes,
            batching_max_publish_delay_ms=batching_max_publish_delay_ms,
            chunking_enabled=chunking_enabled,
            message_routing_mode=message_routing_mode,
            lazy_start_partitioned_producers=lazy_start_partitioned_producers,
            properties=properties,
            batching_type=batching_type,
            encryption_key=encryption_key,
            encryption_keys=encryption_keys,
            crypto_key_reader=crypto_key_reader,
            crypto_failure_action=crypto_failure_action,
            access_mode=access_mode,
            message_router=message_router,
            hashing_scheme=hashing_scheme,
            chunk_max_message_size=chunk_max_message_size,
            initial_subscription_name=initial_subscription_name,
            batching_partition_switch_frequency=batching_partition_switch_frequency,
            blocked_after_ms=blocked_after_ms,
            step_over_blocked_partitions=step_over_blocked_partitions,
            partitions_refresh_seconds=partitions_refresh_seconds,
            interceptors=interceptors,
            latency_budget_ms=latency_budget_ms,
            compression_level=compression_level,
        )
        checked.attach_client(self._schemas)
        waits = access_mode is ProducerAccessMode.WaitForExclusive
        opened = self._open(self._core.opened(create_producer, name, settings), bounded=not waits)
        return Producer(self._runtime, opened)

    def subscribe(
        self,
        topic: str | Sequence[str] | re.Pattern[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Schema | type = _BYTES,
        message_listener: Callable[[Any, Any], Any] | None = None,
        receiver_queue_size: int = 1000,
        max_total_receiver_queue_size_across_partitions: int = 50000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: int | None = None,
        broker_consumer_stats_cache_time_ms: int = 30000,
        negative_ack_redelivery_delay_ms: int = 60000,
        is_read_compacted: bool = False,
        properties: Mapping[str, str] | None = None,
        pattern_auto_discovery_period: float = 60,
        initial_position: InitialPosition = InitialPosition.Latest,
        crypto_key_reader: KeyReader | None = None,
        replicate_subscription_state_enabled: bool = False,
        max_pending_chunked_message: int = 10,
        auto_ack_oldest_chunked_message_on_queue_full: bool = False,
        start_message_id_inclusive: bool = False,
        batch_receive_policy: ConsumerBatchReceivePolicy | None = None,
        key_shared_policy: ConsumerKeySharedPolicy | None = None,
        batch_index_ack_enabled: bool = False,
        regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly,
        dead_letter_policy: ConsumerDeadLetterPolicy | None = None,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        *,
        priority_level: int = 0,
        subscription_properties: Mapping[str, str] | None = None,
        ack_grouping_time_ms: int = 100,
        ack_receipt_enabled: bool = False,
        negative_ack_redelivery_backoff: RedeliveryBackoff | None = None,
        retry_enabled: bool = False,
    ) -> Consumer:
        """A consumer on a topic, on several (a list), or on all that match a pattern (``re.compile(...)``).

        `ConsumerSettings` tells what each argument does.

        Raises `InvalidConfiguration`, `InvalidTopicName`, `ConnectError`, `Timeout`, and what the broker
        reports, for example `ConsumerBusy`, `TopicNotFound`, `AuthorizationError`.
        """
        from geminga.client.consumer import Consumer, subscribe

        topics = arguments.checked_topics(topic)
        checked = arguments.checked_schema(schema)
        settings = arguments.consumer_settings(
            consumer_type=consumer_type,
            schema=checked,
            message_listener=message_listener,
            receiver_queue_size=receiver_queue_size,
            max_total_receiver_queue_size_across_partitions=max_total_receiver_queue_size_across_partitions,
            consumer_name=consumer_name,
            unacked_messages_timeout_ms=unacked_messages_timeout_ms,
            broker_consumer_stats_cache_time_ms=broker_consumer_stats_cache_time_ms,
            negative_ack_redelivery_delay_ms=negative_ack_redelivery_delay_ms,
            is_read_compacted=is_read_compacted,
            properties=properties,
            pattern_auto_discovery_period=pattern_auto_discovery_period,
            initial_position=initial_position,
            crypto_key_reader=crypto_key_reader,
            replicate_subscription_state_enabled=replicate_subscription_state_enabled,
            max_pending_chunked_message=max_pending_chunked_message,
            auto_ack_oldest_chunked_message_on_queue_full=auto_ack_oldest_chunked_message_on_queue_full,
            start_message_id_inclusive=start_message_id_inclusive,
            batch_receive_policy=batch_receive_policy,
            key_shared_policy=key_shared_policy,
            batch_index_ack_enabled=batch_index_ack_enabled,
            regex_subscription_mode=regex_subscription_mode,
            dead_letter_policy=dead_letter_policy,
            crypto_failure_action=crypto_failure_action,
            priority_level=priority_level,
            subscription_properties=subscription_properties,
            ack_grouping_time_ms=ack_grouping_time_ms,
            ack_receipt_enabled=ack_receipt_enabled,
            negative_ack_redelivery_backoff=negative_ack_redelivery_backoff,
            retry_enabled=retry_enabled,
        )
        subscription = arguments.checked_subscription(subscription_name)
        checked.attach_client(self._schemas)
        opened = self._open(self._core.opened(subscribe, topics, subscription, settings))
        return Consumer(self._runtime, opened, self._listener_threads)

    def create_reader(
        self,
        topic: str | Sequence[str] | re.Pattern[str],
        start_message_id: MessageId | None = None,
        schema: Schema | type = _BYTES,
        reader_listener: Callable[[Any, Any], Any] | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: KeyReader | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        *,
        start_time: dt.datetime | dt.timedelta | int | None = None,
    ) -> Reader:
        """A reader that starts after ``start_message_id`` (at it, with ``start_message_id_inclusive``);
        ``MessageId.earliest`` and ``MessageId.latest`` name the ends of the topic.

        On a partitioned topic any other id counts in every partition, by ledger and entry. With
        ``start_time`` in its place the reader starts at a publish time: a datetime with a time zone,
        milliseconds since 1970, or a timedelta back from now. Several topics (a list), or all that match a
        pattern (``re.compile(...)``), are read as one."""
        from geminga.client.reader import Reader, create_reader

        name = arguments.checked_topics(topic)
        start = arguments.checked_start(start_message_id, start_time, self._core.now_ms())
        checked = arguments.checked_schema(schema)
        settings = arguments.reader_settings(
            schema=checked,
            reader_listener=reader_listener,
            receiver_queue_size=receiver_queue_size,
            reader_name=reader_name,
            subscription_role_prefix=subscription_role_prefix,
            is_read_compacted=is_read_compacted,
            crypto_key_reader=crypto_key_reader,
            start_message_id_inclusive=start_message_id_inclusive,
            crypto_failure_action=crypto_failure_action,
        )
        checked.attach_client(self._schemas)
        opened = self._open(self._core.opened(create_reader, name, start, settings))
        return Reader(self._runtime, opened, self._listener_threads)

    def create_table_view(
        self, topic: str, subscription_name: str | None = None, schema: Schema | type = _BYTES
    ) -> TableView:
        """The newest value of every key of ``topic``, kept up to date. Returns when all that the topic held
        at the start has been read."""
        from geminga.client.table_view import TableView, open_table_view

        name = arguments.checked_topic(topic)
        checked = arguments.checked_schema(schema)
        if subscription_name is not None:
            arguments.checked_subscription(subscription_name)
        checked.attach_client(self._schemas)
        open_view = functools.partial(open_table_view, threaded=True)
        view = self._open(self._core.opened(open_view, name, subscription_name, checked), bounded=False)
        return TableView(self._runtime, view)

    def get_topic_partitions(self, topic: str) -> list[str]:
        """The full names of the topic's partitions, or the topic's own when it is not partitioned."""
        return self._call(self._core.partition_topics(arguments.checked_topic(topic)))

    def get_schema_info(self, topic: str, version: int | bytes | None = None) -> SchemaInfo | None:
        """A version of the topic's schema, the newest by default; None when there is none."""
        wanted = arguments.schema_version_bytes(version)
        return arguments.schema_info(self._call(self._core.schema(arguments.checked_topic(topic), wanted)))

    def get_service_info(self) -> ServiceInfo:
        """Where this client connects to now."""
        return self._source.current

    def shutdown(self) -> None:
        """Close at once, without waiting for what is pending."""
        if not self._runtime.closed and not self._runtime.forked:
            with contextlib.suppress(PulsarException):
                self._runtime.call(_shutdown(self._core), _GRACE_SECONDS)
        self._runtime.close()
        self._source.stop()
        self._listener_threads.close()
        detach(self._log_handler)

    def close(self) -> None:
        """Close the client with all that it opened; what producers have pending is sent first.

        A second call does nothing, and neither does one in a forked child.
        """
        if self._runtime.closed or self._runtime.forked:
            return
        try:
            # AlreadyClosed: somebody else, perhaps a signal's handler on top of us, was quicker.
            with contextlib.suppress(AlreadyClosed):
                self._call(self._core.close())
        finally:
            self.shutdown()

    def __enter__(self) -> Client:
        self._runtime.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<geminga.Client {self._settings.service_url}{' closed' if self._runtime.closed else ''}>"

    def _open(self, coroutine: Coroutine[Any, Any, H], *, bounded: bool = True) -> H:
        """The handle that a coroutine opens. One that comes after the wait has ended is closed again."""
        limit = self._settings.operation_timeout_seconds + _GRACE_SECONDS if bounded else None
        return self._runtime.call(coroutine, limit, discard=self._core.discard)

    def _call(self, coroutine: Coroutine[Any, Any, T], *, bounded: bool = True) -> T:
        limit = self._settings.operation_timeout_seconds + _GRACE_SECONDS if bounded else None
        return self._runtime.call(coroutine, limit)


async def _make_core(settings: ClientSettings) -> ClientCore:
    return ClientCore(settings)


async def _shutdown(core: ClientCore) -> None:
    core.shutdown()
