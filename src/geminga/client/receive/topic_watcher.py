"""Notifications from the broker about new and deleted topics (framing.md section 10).

A notification is only a hint: the consumer then fetches the whole list, which it also does periodically. So
nothing is lost if the broker has no watchers, refuses the pattern (it accepts 50 characters), or the
connection ends; `ensure` then tries again.
"""

import logging
from collections.abc import Callable

from geminga.client.handles.context import ClientContext
from geminga.client.io.pool import BrokerConnection
from geminga.client.receive.topic_set import TopicPattern
from geminga.errors import NotAllowedError, PulsarException
from geminga.wire.frames import encode_command
from geminga.wire.proto import pulsar_wire_pb2 as pb

logger = logging.getLogger("geminga")

PATTERN_CHARACTERS_MAX = 50
"""Limit that brokers have by default."""


class TopicWatcher:
    """Watcher that calls ``changed`` when the broker reports new or deleted persistent topics that match."""

    def __init__(self, context: ClientContext, pattern: TopicPattern, changed: Callable[[], None]) -> None:
        self._context = context
        self._namespace = pattern.namespace
        self._text = f"persistent://{pattern.namespace}/{pattern.local.pattern}"
        self._changed = changed
        self._watcher_id = context.new_consumer_id()
        self._connection: BrokerConnection | None = None
        self._refused = len(self._text) > PATTERN_CHARACTERS_MAX

    @property
    def active(self) -> bool:
        return self._connection is not None and not self._connection.closed

    async def ensure(self) -> None:
        """Start watching, if possible and not active already. Never raises the broker's errors."""
        if self.active or self._refused:
            return
        try:
            connection = await self._context.service_connection()
            if not connection.connected.feature_flags.supports_topic_watchers:
                return
            connection.add_topic_watcher(self._watcher_id, self._on_update)
            try:
                await connection.request(self._command, self._context.settings.operation_timeout_seconds)
            except BaseException:
                connection.remove_topic_watcher(self._watcher_id)
                raise
            self._connection = connection
        except NotAllowedError as error:
            self._refused = True
            logger.debug("the broker does not watch %s: %s", self._text, error)
        except PulsarException as error:
            logger.debug("watching %s failed: %s", self._text, error)

    def _command(self, request_id: int) -> pb.BaseCommand:
        body = pb.CommandWatchTopicList(
            request_id=request_id,
            watcher_id=self._watcher_id,
            namespace=self._namespace,
            topics_pattern=self._text,
        )
        return pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_LIST, watchTopicList=body)

    def _on_update(self, _: pb.BaseCommand) -> None:
        self._changed()

    def close(self) -> None:
        """Stop watching, without waiting for the broker's answer."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.closed:
            connection.remove_topic_watcher(self._watcher_id)
            command = pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_LIST_CLOSE)
            command.watchTopicListClose.request_id = connection.new_request_id()
            command.watchTopicListClose.watcher_id = self._watcher_id
            connection.write(encode_command(command))
