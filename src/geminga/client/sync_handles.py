"""Methods of consumers for threads that call the asyncio objects.

Generated from the asyncio classes by ``tools/generate_sync.py``: do not edit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import pyarrow as pa

    from geminga.client.async_consumer import AsyncConsumer
    from geminga.client.runtime import LoopThread
    from geminga.consumer.message import Message
    from geminga.consumer.statistics import ConsumerStatistics
    from geminga.ids import MessageId


class SyncConsumerBase:
    """Methods of `Consumer` that call the asyncio object."""

    _runtime: LoopThread
    _consumer: AsyncConsumer

    def topic(self) -> str:
        """Return the topic, the topics separated by commas, or the subscribed pattern."""
        return self._consumer.topic()

    def subscription_name(self) -> str:
        """Return the subscription's name."""
        return self._consumer.subscription_name()

    def consumer_name(self) -> str:
        """Return the name by which the broker knows this consumer."""
        return self._consumer.consumer_name()

    def has_reached_end_of_topic(self) -> bool:
        """Return True when every topic is terminated and was read to its end."""
        return self._consumer.has_reached_end_of_topic()

    def seek(self, messageid: MessageId | int) -> None:
        """Move the subscription to a message, or to a publish time in milliseconds since 1970.

        The next message received is the one after the given one (the given one itself, with
        ``start_message_id_inclusive``), or the first published at or after the time. With several topics or
        partitions a time, ``MessageId.earliest`` and ``MessageId.latest`` move all of them; another id moves
        only the topic or partition it belongs to.
        """
        self._runtime.call(self._consumer.seek(messageid))

    def get_last_message_id(self) -> MessageId:
        """Return the id of the topic's last message; its entry id is -1 if the topic is empty. Raises
        `OperationNotSupported` for several topics or partitions: see `get_last_message_ids`."""
        return self._runtime.call(self._consumer.get_last_message_id())

    def get_last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of every topic and partition."""
        return self._runtime.call(self._consumer.get_last_message_ids())

    def reconsume_later(
        self, message: Message[Any], delay_millis: int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Publish the message to the retry topic, which delivers it again after ``delay_millis``, and
        acknowledge it. After ``max_redeliver_count`` rounds it is sent to the dead letter topic.

        Needs ``retry_enabled``. Raises the errors of publishing; the message is then not acknowledged.
        """
        self._runtime.call(self._consumer.reconsume_later(message, delay_millis, properties))

    def acknowledge_table(self, table: pa.Table) -> None:
        """Acknowledge every message of a table from `receive_table`, or of part of one."""
        self._runtime.call(self._consumer.acknowledge_table(table))

    def stats(self) -> ConsumerStatistics:
        """Return the number of queued messages, and the broker's statistics of this consumer: permits,
        unacknowledged messages, the subscription's backlog and ack holes, rates. The broker's answers are
        cached for ``broker_consumer_stats_cache_time_ms``. Raises `AlreadyClosed`, `Timeout`, and the errors
        that the broker reports."""
        return self._runtime.call(self._consumer.stats())
