"""`geminga.asyncio.Client`: the client for asyncio programs, with the names, arguments and defaults of
``pulsar-client`` 3.13.

One default differs: the host name in a TLS certificate is checked. Arguments after the ``*`` are additions.
``tools/generate_sync.py`` generates the synchronous API, ``client/api/sync.py``, from this module:
signatures, docstrings and the steps of each method. Each of the two defines the ``self._...`` helpers that
the methods call.

This module imports everything that runs on the loop: a later import would block the loop, and a signal or the
end of the interpreter could interrupt it.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import re
import warnings
import weakref
from collections.abc import Callable, Coroutine, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from geminga._util.values import T
from geminga.client.api.base import ClientBase
from geminga.client.handles.context import ClientContext, all_or_none
from geminga.client.handles.failover import settings_for
from geminga.client.observe.logs import detach
from geminga.client.options import arguments
from geminga.client.options.arguments import SubscribeArguments, Topics
from geminga.client.options.crypto import KeyReader, ProducerCryptoFailureAction
from geminga.client.options.enums import (
    BatchingType,
    CompressionType,
    HashingScheme,
    PartitionsRoutingMode,
    ProducerAccessMode,
)
from geminga.client.publish.producer import create_producer
from geminga.client.receive.consumer import subscribe
from geminga.client.receive.reader import create_reader
from geminga.client.receive.table_view import open_table_view
from geminga.client.transactions import AsyncTransaction, begin_transaction
from geminga.consumer.settings import (
    ConsumerBatchReceivePolicy,
    ConsumerCryptoFailureAction,
    ConsumerDeadLetterPolicy,
    ConsumerEventListener,
    ConsumerKeySharedPolicy,
    ConsumerSettings,
    ConsumerType,
    InitialPosition,
    ReaderSettings,
    RedeliveryBackoff,
    RegexSubscriptionMode,
)
from geminga.errors import AlreadyClosed, ForkedProcessError
from geminga.ids import MessageId
from geminga.producer.settings import ProducerSettings, SchemaInfo
from geminga.schema import Schema

if TYPE_CHECKING:
    from geminga.client.publish.producer import AsyncProducer
    from geminga.client.receive.consumer import AsyncConsumer
    from geminga.client.receive.reader import AsyncReader
    from geminga.client.receive.table_view import AsyncTableView

A = TypeVar("A")


class Client(ClientBase):
    """A connection to a cluster; producers, consumers and readers share its connections.

    ::

        async with geminga.asyncio.Client("pulsar://localhost:6650") as client:
            producer = await client.create_producer("my-topic")
            await producer.send(b"hello")

    One client may serve several event loops, in sequence or in different threads; it opens separate
    connections on each. A producer, consumer or reader belongs to the loop on which it was opened. After
    ``fork`` the child process needs a new client.
    """

    def _begin(self) -> None:
        self._process_id = os.getpid()
        self._closed = False
        self._contexts: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, ClientContext] = (
            weakref.WeakKeyDictionary()
        )
        finalizer = weakref.finalize(self, _dropped, repr(self), self._contexts, self._process_id)
        finalizer.atexit = False

    @property
    def context(self) -> ClientContext:
        """The client context of the running loop, for the modules of this package; created on first use.

        The context ends with its loop, after sending pending messages, if the loop ends as in
        ``asyncio.run``. Raises `AlreadyClosed` and `ForkedProcessError`.
        """
        if self._closed:
            raise AlreadyClosed("the client is closed")
        if os.getpid() != self._process_id:
            raise ForkedProcessError("this client was created before fork(); create one in the child process")
        loop = asyncio.get_running_loop()
        context = self._contexts.get(loop)
        if context is None:
            context = self._contexts[loop] = ClientContext(
                settings_for(self._settings, self._source.current), loop
            )
            context.close_with_loop()
            self._source.start(context, loop.call_soon_threadsafe)
        return context

    async def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: Schema[T] | type[T] | None = None,
        initial_sequence_id: int | None = None,
        send_timeout_millis: int = 30000,
        compression_type: CompressionType = CompressionType.NONE,
        max_pending_messages: int = 1000,
        max_pending_messages_across_partitions: int = 50000,
        block_if_queue_full: bool = False,
        batching_enabled: bool = True,
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
        partitions_refresh_seconds: float = 60,
        interceptors: Sequence[Any] = (),
        encryption_keys: Sequence[str] = (),
        crypto_failure_action: ProducerCryptoFailureAction = ProducerCryptoFailureAction.FAIL,
        latency_budget_ms: float | None = None,
        compression_level: int = 0,
    ) -> AsyncProducer[T]:
        """Open a producer on ``topic``, partitioned or not. `ProducerSettings` describes each argument.

        With ``batching_enabled`` messages that are sent close together share an entry, which saves most of
        the CPU of client and broker; `send` does not wait for the batching delay. The broker dispatches an
        entry to one consumer: for keyed messages and Key_Shared consumers choose ``BatchingType.KeyBased``
        too. ``hashing_scheme`` selects the partition of a key: ``BoostHash``, the default, agrees with
        ``pulsar-client``, ``JavaStringHash`` with the Java client. ``encryption_key`` and ``encryption_keys``
        name the public keys that ``crypto_key_reader`` supplies: the owner of any matching private key can
        read the messages. With ``latency_budget_ms`` the producer tunes batching delay, batch limits and
        partition switching to the rate and size of the messages and the broker's latency: 99 of 100 messages
        get their receipt within that many milliseconds, in as few entries as that allows; batching is on
        then, and the other batching arguments must keep their defaults. ``compression_level`` is that of ZSTD
        (1 to 19) or ZLib (1 to 9); 0, the default, uses the level of the other clients.

        Raises `InvalidConfiguration`, `InvalidTopicName`, `ConnectError`, `Timeout`, and the errors that the
        broker reports, for example `ProducerBusy`, `TopicNotFound`, `AuthorizationError`.
        """
        given = dict(locals())
        name = arguments.checked_topic(topic)
        checked = await self._schema_for(name, schema)
        return await self._open_producer(name, arguments.producer_settings(given, checked), checked)

    async def subscribe(
        self,
        topic: str | Sequence[str] | re.Pattern[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Schema[T] | type[T] | None = None,
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
        batch_index_ack_enabled: bool = True,
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
        event_listener: ConsumerEventListener | None = None,
    ) -> AsyncConsumer[T]:
        """Subscribe to a topic, a list of topics, or all topics that match a pattern (``re.compile(...)``).
        With ``is_pattern_topic`` the topic is the text of a pattern.

        `ConsumerSettings` describes each argument.

        Raises `InvalidConfiguration`, `InvalidTopicName`, `ConnectError`, `Timeout`, and the errors that the
        broker reports, for example `ConsumerBusy`, `TopicNotFound`, `AuthorizationError`.
        """
        given = dict(locals())
        topics = arguments.checked_topics(topic, is_pattern_topic)
        checked = arguments.checked_schema(schema)
        settings = arguments.consumer_settings(given, checked)
        subscription = arguments.checked_subscription(subscription_name)
        return await self._open_consumer(topics, subscription, settings, checked)

    async def subscribe_many(self, subscriptions: Sequence[Mapping[str, Any]]) -> list[AsyncConsumer[Any]]:
        """Open several consumers at the same time: each mapping holds the arguments of one `subscribe`, by
        name. If one of them fails, all others are closed again.

        Returns the consumers in the order of the mappings. Raises the errors of `subscribe`.
        """
        asked = arguments.checked_subscriptions(self.subscribe, subscriptions)
        return await self._open_consumers(asked)

    async def create_reader(
        self,
        topic: str | Sequence[str] | re.Pattern[str],
        start_message_id: MessageId | None = None,
        schema: Schema[T] | type[T] | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: KeyReader | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        *,
        start_time: dt.datetime | dt.timedelta | int | None = None,
    ) -> AsyncReader[T]:
        """Open a reader that starts after ``start_message_id`` (at it, with ``start_message_id_inclusive``);
        ``MessageId.earliest`` and ``MessageId.latest`` are the ends of the topic.

        On a partitioned topic any other id is compared in every partition, by ledger and entry.
        ``start_time`` replaces the id by a publish time: a datetime with a time zone, milliseconds since
        1970, or a timedelta back from now. A list of topics, or all that match a pattern
        (``re.compile(...)``), are read as one topic.
        """
        given = dict(locals())
        topics = arguments.checked_topics(topic)
        start = arguments.checked_start(start_message_id, start_time, self._now_ms())
        checked = arguments.checked_schema(schema)
        return await self._open_reader(topics, start, arguments.reader_settings(given, checked), checked)

    async def create_table_view(
        self, topic: str, subscription_name: str | None = None, schema: Schema[T] | type[T] | None = None
    ) -> AsyncTableView[T]:
        """Open a view of the newest value of every key of ``topic``, kept up to date. Returns when all
        messages that the topic held at the start have been read. Not in ``pulsar.asyncio``."""
        name = arguments.checked_topic(topic)
        checked = arguments.checked_schema(schema)
        if subscription_name is not None:
            arguments.checked_subscription(subscription_name)
        return await self._open_table_view(name, subscription_name, checked)

    async def new_transaction(self, timeout: float = 60) -> AsyncTransaction:
        """Begin a transaction: messages sent and acknowledged with ``txn=`` take effect together when it is
        committed.

        ::

            async with await client.new_transaction() as txn:
                await producer.send(b"result", txn=txn)
                await consumer.acknowledge(message, txn=txn)

        The block's end commits it; an exception in the block aborts it. ``timeout``: time limit in seconds,
        after which the broker aborts it. Raises `OperationNotSupported` if the broker has no transactions,
        `InvalidConfiguration`, `ConnectError` and `Timeout`. Not in ``pulsar.asyncio``.
        """
        return AsyncTransaction(self, *await self._ask(begin_transaction(self.context, timeout)))

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the full names of the topic's partitions, or the topic's own name if it has none."""
        name = arguments.checked_topic(topic)
        return await self._ask(self.context.partition_topics(name))

    async def get_schema_info(self, topic: str, version: int | bytes | None = None) -> SchemaInfo | None:
        """Return a version of the topic's schema, the newest by default; None if the topic has none."""
        wanted = arguments.schema_version_bytes(version)
        name = arguments.checked_topic(topic)
        return arguments.schema_info(await self._ask(self.context.schema(name, wanted)))

    # --- helpers that differ in the synchronous API -------------------------------------------------

    def _now_ms(self) -> int:
        return self.context.now_ms()

    async def _ask(self, answer: Coroutine[Any, Any, A]) -> A:
        return await answer

    async def _schema_for(self, topic: str, schema: Schema[T] | type[T] | None) -> Schema[T]:
        """Check the schema argument of a producer; ``AutoProduce`` schemas fetch the topic's schema first."""
        return await self.context.schemas.for_topic(topic, arguments.checked_schema(schema))

    async def _open_producer(
        self, topic: str, settings: ProducerSettings, schema: Schema[T]
    ) -> AsyncProducer[T]:
        schema.attach_client(self.context.schemas)
        return await self.context.opened(create_producer, topic, settings)

    async def _open_consumer(
        self, topics: Topics, subscription: str, settings: ConsumerSettings, schema: Schema[T]
    ) -> AsyncConsumer[T]:
        schema.attach_client(self.context.schemas)
        return await self.context.opened(subscribe, topics, subscription, settings)

    async def _open_consumers(self, asked: Sequence[SubscribeArguments]) -> list[AsyncConsumer[Any]]:
        return await all_or_none([self._open_consumer(*one) for one in asked])

    async def _open_reader(
        self, topics: Topics, start: MessageId | int, settings: ReaderSettings, schema: Schema[T]
    ) -> AsyncReader[T]:
        schema.attach_client(self.context.schemas)
        return await self.context.opened(create_reader, topics, start, settings)

    async def _open_table_view(
        self, topic: str, subscription_name: str | None, schema: Schema[T]
    ) -> AsyncTableView[T]:
        schema.attach_client(self.context.schemas)
        return await self.context.opened(open_table_view, topic, subscription_name, schema)

    async def close(self) -> None:
        """Send what producers have pending and close the client with all that it opened.

        On other event loops that used the client, its contexts are shut down without waiting.
        """
        if self._closed:
            return
        here = self._contexts.pop(asyncio.get_running_loop(), None)
        self.shutdown()
        if here is not None and os.getpid() == self._process_id:
            await here.close()

    def shutdown(self) -> None:
        """Close at once, without waiting for pending operations."""
        self._closed = True
        if os.getpid() == self._process_id:
            _shutdown_all(self._contexts)
        self._source.stop()
        detach(self._log_handler)

    def __repr__(self) -> str:
        return f"<geminga.asyncio.Client {self._settings.service_url}{' closed' if self._closed else ''}>"

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


def _shutdown_all(contexts: MutableMapping[asyncio.AbstractEventLoop, ClientContext]) -> None:
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    for loop, context in list(contexts.items()):
        if loop is here:
            context.shutdown()
        elif not loop.is_closed():
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(context.shutdown)
    contexts.clear()


def _dropped(
    name: str, contexts: MutableMapping[asyncio.AbstractEventLoop, ClientContext], process_id: int
) -> None:
    """Warn about a client that was garbage collected unclosed, and close its unused connections."""
    if os.getpid() != process_id:
        return
    idle = {loop: context for loop, context in contexts.items() if not context.closed and not context.in_use}
    if idle:
        warnings.warn(
            f"{name} was not closed: call close(), or use it in an async with statement",
            ResourceWarning,
            stacklevel=2,
        )
        _shutdown_all(idle)
