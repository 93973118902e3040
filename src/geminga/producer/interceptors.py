"""Step 4 of publishing: the application's hooks. A failing hook does not affect the message."""

import logging
from collections.abc import Callable, Iterable
from typing import Any

from geminga.producer.message import OutgoingMessage

log = logging.getLogger("geminga.producer")


class ProducerInterceptor:
    """Base class of interceptors with empty methods. They run on the sending or the client's thread."""

    def eligible(self, message: OutgoingMessage) -> bool:
        """Return whether the two methods below are called for this message."""
        return True

    def before_send(self, producer: Any, message: OutgoingMessage) -> OutgoingMessage:
        """Return the message to send: the same, or ``message.replace(...)``."""
        return message

    def on_send_acknowledgement(
        self, producer: Any, message: OutgoingMessage, message_id: Any, error: Exception | None
    ) -> None:
        """Handle the receipt of the message (``message_id``), or its failure with ``error``.

        A value stored in `before_send` by ``message.keep(self, ...)`` is at ``message.kept(self)``.
        """

    def on_partitions_change(self, topic: str, partitions: int) -> None:
        """Handle that the topic has ``partitions`` partitions now."""

    def close(self) -> None:
        """Handle that the producer was closed."""


class InterceptorChain:
    """Calls interceptors in the order given, logs their exceptions and continues."""

    __slots__ = ("_interceptors",)

    def __init__(self, interceptors: Iterable[Any] = ()) -> None:
        self._interceptors = tuple(interceptors)

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def before_send(self, producer: Any, message: OutgoingMessage) -> OutgoingMessage:
        for interceptor in self._interceptors:
            try:
                if interceptor.eligible(message):
                    changed = interceptor.before_send(producer, message)
                    if not isinstance(changed, OutgoingMessage):
                        raise TypeError(f"before_send returned {type(changed).__name__}, not a message")
                    message = changed
            except Exception:
                log.exception(
                    "interceptor %r failed before a send; sending the message without its changes",
                    interceptor,
                )
        return message

    def on_send_acknowledgement(
        self, producer: Any, message: OutgoingMessage, message_id: Any, error: Exception | None
    ) -> None:
        def notify(each: Any) -> None:
            if each.eligible(message):
                each.on_send_acknowledgement(producer, message, message_id, error)

        self._call_each(notify, "on an acknowledgement")

    def on_partitions_change(self, topic: str, partitions: int) -> None:
        self._call_each(
            lambda each: each.on_partitions_change(topic, partitions), "on a change of partitions"
        )

    def close(self) -> None:
        self._call_each(lambda each: each.close(), "to close")

    def _call_each(self, call: Callable[[Any], object], where: str) -> None:
        for interceptor in self._interceptors:
            try:
                call(interceptor)
            except Exception:
                log.exception("interceptor %r failed %s", interceptor, where)
