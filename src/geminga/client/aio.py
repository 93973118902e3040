"""`geminga.asyncio.Client`: the client for asyncio programs."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import os
import re
import warnings
import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from geminga.client import arguments
from geminga.client.authentication import Authentication
from geminga.client.core import ClientCore
from geminga.client.crypto import KeyReader, ProducerCryptoFailureAction
from geminga.client.enums import (
    BatchingType,
    CompressionType,
    HashingScheme,
    PartitionsRoutingMode,
    ProducerAccessMode,
)
from geminga.client.failover import service_source, settings_for
from geminga.client.logs import ConsoleLogger, FileLogger, attach, detach
from geminga.client.service import AutoClusterFailover, ServiceInfo, ServiceInfoProvider
from geminga.config import refuse
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
from geminga.errors import AlreadyClosed, ForkedProcessError
from geminga.ids import MessageId
from geminga.producer.settings import SchemaInfo
from geminga.schema import Schema

if TYPE_CHECKING:
    from geminga.client.consumer import AsyncConsumer
    from geminga.client.producer import AsyncProducer
    from geminga.client.reader import AsyncReader
    from geminga.client.table_view import AsyncTableView


class Client:
    """A connection to a cluster; producers, consumers and readers share its connections.

    Arguments as for `geminga.Client`. It may be used on several event loops, one after the other or in
    threads of their own, with connections of its own on each; what it opens belongs to the loop on which it
    was opened::

        async with geminga.asyncio.Client("pulsar://localhost:6650") as client:
            producer = await client.create_producer("my-topic")
            await producer.send(b"hello")
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
        self._source = service_source(service_url, authentication, tls_trust_certs_file_path)
        info = self._source.current
        self._settings = arguments.client_settings(
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
        self._process_id = os.getpid()
        self._closed = False
        self._cores: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, ClientCore] = (
            weakref.WeakKeyDictionary()
        )
        finalizer = weakref.finalize(self, _dropped, repr(self), self._cores, self._process_id)
        finalizer.atexit = False

    @property
    def core(self) -> ClientCore:
        """The heart of this client on the running loop, for the modules of this package; made on first use.

        It ends with its loop, if that is ended as ``asyncio.run`` does it: what is pending is sent first.
        Raises `AlreadyClosed` and `ForkedProcessError`.
        """
        if self._closed:
            raise AlreadyClosed("the client is closed")
        if os.getpid() != self._process_id:
            raise ForkedProcessError("this client was created before fork(); create one in the child process")
        loop = asyncio.get_running_loop()
        core = self._cores.get(loop)
        if core is None:
            core = self._cores[loop] = ClientCore(settings_for(self._settings, self._source.current), loop)
            core.close_with_loop()
            self._source.start(core, loop.call_soon_threadsafe)
        return core

    async def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: Schema | type | None = None,
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
    ) -> AsyncProducer:
        """A producer on ``topic``; the arguments are those of `geminga.Client.create_producer`."""
        from geminga.client.producer import create_producer

        core = self.core
        name = arguments.checked_topic(topic)
        checked = await core.schemas.for_topic(name, arguments.checked_schema(schema))
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
        checked.attach_client(core.schemas)
        return await core.opened(create_producer, name, settings)

    async def subscribe(
        self,
        topic: str | Sequence[str] | re.Pattern[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Schema | type | None = None,
        receiver_queue_size: int = 1000,
        max_total_receiver_queue_size_across_partitions: int = 50000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: int | None = None,
        broker_consumer_stats_cache_time_ms: int = 30000,
        negative_ack_redelivery_delay_ms: int = 60000,
        is_read_compacted: bool = False,
        properties: Mapping[str, str] | None = None,
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
        is_pattern_topic: bool = False,
        *,
        pattern_auto_discovery_period: float = 60,
        priority_level: int = 0,
        subscription_properties: Mapping[str, str] | None = None,
        ack_grouping_time_ms: int = 100,
        ack_receipt_enabled: bool = False,
        negative_ack_redelivery_backoff: RedeliveryBackoff | None = None,
        retry_enabled: bool = False,
    ) -> AsyncConsumer:
        """A consumer; the arguments are those of `geminga.Client.subscribe`. With ``is_pattern_topic`` the
        topic is the text of a pattern."""
        from geminga.client.consumer import subscribe

        core = self.core
        if is_pattern_topic:
            if not isinstance(topic, str):
                refuse("is_pattern_topic", True, "False with a list of topics or a compiled pattern")
            topic = re.compile(topic)
        topics = arguments.checked_topics(topic)
        checked = arguments.checked_schema(schema)
        settings = arguments.consumer_settings(
            consumer_type=consumer_type,
            schema=checked,
            message_listener=None,
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
        checked.attach_client(core.schemas)
        return await core.opened(subscribe, topics, subscription, settings)

    async def create_reader(
        self,
        topic: str | Sequence[str] | re.Pattern[str],
        start_message_id: MessageId | None = None,
        schema: Schema | type | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: KeyReader | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        *,
        start_time: dt.datetime | dt.timedelta | int | None = None,
    ) -> AsyncReader:
        """A reader from ``start_message_id`` on; arguments as for `geminga.Client.create_reader`."""
        from geminga.client.reader import create_reader

        core = self.core
        name = arguments.checked_topics(topic)
        start = arguments.checked_start(start_message_id, start_time, core.now_ms())
        checked = arguments.checked_schema(schema)
        settings = arguments.reader_settings(
            schema=checked,
            reader_listener=None,
            receiver_queue_size=receiver_queue_size,
            reader_name=reader_name,
            subscription_role_prefix=subscription_role_prefix,
            is_read_compacted=is_read_compacted,
            crypto_key_reader=crypto_key_reader,
            start_message_id_inclusive=start_message_id_inclusive,
            crypto_failure_action=crypto_failure_action,
        )
        checked.attach_client(core.schemas)
        return await core.opened(create_reader, name, start, settings)

    async def create_table_view(
        self, topic: str, subscription_name: str | None = None, schema: Schema | type | None = None
    ) -> AsyncTableView:
        """The newest value of every key of ``topic``, kept up to date; ``pulsar.asyncio`` has none. Returns
        when all that the topic held at the start has been read."""
        from geminga.client.table_view import open_table_view

        core = self.core
        name = arguments.checked_topic(topic)
        checked = arguments.checked_schema(schema)
        if subscription_name is not None:
            arguments.checked_subscription(subscription_name)
        checked.attach_client(core.schemas)
        return await core.opened(open_table_view, name, subscription_name, checked)

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """The full names of the topic's partitions, or the topic's own when it is not partitioned."""
        return await self.core.partition_topics(arguments.checked_topic(topic))

    async def get_schema_info(self, topic: str, version: int | bytes | None = None) -> SchemaInfo | None:
        """A version of the topic's schema, the newest by default; None when there is none."""
        wanted = arguments.schema_version_bytes(version)
        return arguments.schema_info(await self.core.schema(arguments.checked_topic(topic), wanted))

    def get_service_info(self) -> ServiceInfo:
        """Where this client connects to now."""
        return self._source.current

    async def close(self) -> None:
        """Close the client with all that it opened; what producers have pending is sent first.

        Other loops that used it shut down what they have.
        """
        if self._closed:
            return
        here = self._cores.pop(asyncio.get_running_loop(), None)
        self.shutdown()
        if here is not None and os.getpid() == self._process_id:
            await here.close()

    def shutdown(self) -> None:
        """Close at once, without waiting for what is pending."""
        self._closed = True
        if os.getpid() == self._process_id:
            _shutdown_all(self._cores)
        self._source.stop()
        detach(self._log_handler)

    def __repr__(self) -> str:
        return f"<geminga.asyncio.Client {self._settings.service_url}{' closed' if self._closed else ''}>"

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _shutdown_all(cores: MutableMapping[asyncio.AbstractEventLoop, ClientCore]) -> None:
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    for loop, core in list(cores.items()):
        if loop is here:
            core.shutdown()
        elif not loop.is_closed():
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(core.shutdown)
    cores.clear()


def _dropped(
    name: str, cores: MutableMapping[asyncio.AbstractEventLoop, ClientCore], process_id: int
) -> None:
    """The client is garbage. Connections that nobody uses any more are closed."""
    if os.getpid() != process_id:
        return
    idle = {loop: core for loop, core in cores.items() if not core.closed and not core.in_use}
    if idle:
        warnings.warn(
            f"{name} was not closed: call close(), or use it in an async with statement",
            ResourceWarning,
            stacklevel=2,
        )
        _shutdown_all(idle)
