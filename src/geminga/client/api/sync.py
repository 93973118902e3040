"""`geminga.Client`: the client for plain threads, with the names, arguments and defaults of
``pulsar-client`` 3.13.

One default differs: the host name in a TLS certificate is checked. Arguments after the ``*`` are additions.

Generated from ``client/api/aio.py`` by ``tools/generate_sync.py``: do not edit.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from geminga._util.values import T
from geminga.client.api.sync_base import SyncBase
from geminga.client.options import arguments
from geminga.client.options.crypto import KeyReader, ProducerCryptoFailureAction
from geminga.client.options.enums import (
    BatchingType,
    CompressionType,
    HashingScheme,
    PartitionsRoutingMode,
    ProducerAccessMode,
)
from geminga.client.transactions import Transaction, begin_transaction
from geminga.consumer.settings import (
    ConsumerBatchReceivePolicy,
    ConsumerCryptoFailureAction,
    ConsumerDeadLetterPolicy,
    ConsumerEventListener,
    ConsumerKeySharedPolicy,
    ConsumerType,
    InitialPosition,
    RedeliveryBackoff,
    RegexSubscriptionMode,
)
from geminga.ids import MessageId
from geminga.producer.settings import SchemaInfo
from geminga.schema import BytesSchema, Schema

if TYPE_CHECKING:
    from geminga.client.api.message import Message
    from geminga.client.publish.producer import Producer
    from geminga.client.receive.consumer import Consumer
    from geminga.client.receive.reader import Reader
    from geminga.client.receive.table_view import TableView

if TYPE_CHECKING:
    _BYTES: None = None  # of which no checker infers that the values are those of a default
else:
    _BYTES = BytesSchema()


class Client(SyncBase):
    """A connection to a cluster; producers, consumers and readers share its connections.

    ::

        with geminga.Client("pulsar://localhost:6650") as client:
            producer = client.create_producer("my-topic")
            producer.send(b"hello")

    May be used from several threads. After ``fork`` the child process needs a new client.
    """

    def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: Schema[T] | type[T] | None = _BYTES,
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
        partitions_refresh_seconds: float = 60,
        interceptors: Sequence[Any] = (),
        encryption_keys: Sequence[str] = (),
        crypto_failure_action: ProducerCryptoFailureAction = ProducerCryptoFailureAction.FAIL,
        latency_budget_ms: float | None = None,
        compression_level: int = 0,
    ) -> Producer[T]:
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
        checked = self._schema_for(name, schema)
        return self._open_producer(name, arguments.producer_settings(given, checked), checked)

    def subscribe(
        self,
        topic: str | Sequence[str] | re.Pattern[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Schema[T] | type[T] | None = _BYTES,
        message_listener: Callable[[Consumer[T], Message[T]], Any] | None = None,
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
        batch_index_ack_enabled: bool = True,
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
        event_listener: ConsumerEventListener | None = None,
        failure_listener: Callable[[Consumer[T], Message[T]], Any] | None = None,
        start_paused: bool = False,
    ) -> Consumer[T]:
        """Subscribe to a topic, a list of topics, or all topics that match a pattern (``re.compile(...)``).

        `ConsumerSettings` describes each argument.

        Raises `InvalidConfiguration`, `InvalidTopicName`, `ConnectError`, `Timeout`, and the errors that the
        broker reports, for example `ConsumerBusy`, `TopicNotFound`, `AuthorizationError`.
        """
        given = dict(locals())
        topics = arguments.checked_topics(topic)
        checked = arguments.checked_schema(schema)
        settings = arguments.consumer_settings(given, checked)
        subscription = arguments.checked_subscription(subscription_name)
        return self._open_consumer(topics, subscription, settings, checked)

    def subscribe_many(self, subscriptions: Sequence[Mapping[str, Any]]) -> list[Consumer[Any]]:
        """Open several consumers at the same time: each mapping holds the arguments of one `subscribe`, by
        name. If one of them fails, all others are closed again.

        Returns the consumers in the order of the mappings. Raises the errors of `subscribe`.
        """
        asked = arguments.checked_subscriptions(self.subscribe, subscriptions)
        return self._open_consumers(asked)

    def create_reader(
        self,
        topic: str | Sequence[str] | re.Pattern[str],
        start_message_id: MessageId | None = None,
        schema: Schema[T] | type[T] | None = _BYTES,
        reader_listener: Callable[[Reader[T], Message[T]], Any] | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: KeyReader | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        *,
        start_time: dt.datetime | dt.timedelta | int | None = None,
        failure_listener: Callable[[Reader[T], Message[T]], Any] | None = None,
    ) -> Reader[T]:
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
        return self._open_reader(topics, start, arguments.reader_settings(given, checked), checked)

    def create_table_view(
        self, topic: str, subscription_name: str | None = None, schema: Schema[T] | type[T] | None = _BYTES
    ) -> TableView[T]:
        """Open a view of the newest value of every key of ``topic``, kept up to date. Returns when all
        messages that the topic held at the start have been read."""
        name = arguments.checked_topic(topic)
        checked = arguments.checked_schema(schema)
        if subscription_name is not None:
            arguments.checked_subscription(subscription_name)
        return self._open_table_view(name, subscription_name, checked)

    def new_transaction(self, timeout: float = 60) -> Transaction:
        """Begin a transaction: messages sent and acknowledged with ``txn=`` take effect together when it is
        committed.

        ::

            with client.new_transaction() as txn:
                producer.send(b"result", txn=txn)
                consumer.acknowledge(message, txn=txn)

        The block's end commits it; an exception in the block aborts it. ``timeout``: time limit in
        seconds, after which the broker aborts it. Raises `OperationNotSupported` if the broker has no
        transactions, `InvalidConfiguration`, `ConnectError` and `Timeout`.
        """
        return Transaction(self, *self._ask(begin_transaction(self.context, timeout)))

    def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the full names of the topic's partitions, or the topic's own name if it has none."""
        name = arguments.checked_topic(topic)
        return self._ask(self.context.partition_topics(name))

    def get_schema_info(self, topic: str, version: int | bytes | None = None) -> SchemaInfo | None:
        """Return a version of the topic's schema, the newest by default; None if the topic has none."""
        wanted = arguments.schema_version_bytes(version)
        name = arguments.checked_topic(topic)
        return arguments.schema_info(self._ask(self.context.schema(name, wanted)))
