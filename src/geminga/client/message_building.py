"""What both producer shells do with the arguments of ``send``."""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

from geminga.client.completions import CompletionCallback, fail_completion, receipt_token
from geminga.client.context import ClientContext
from geminga.ids import MessageId
from geminga.producer.interceptors import InterceptorChain
from geminga.producer.message import KeyedContent, OutgoingMessage, build_message, payload_of
from geminga.producer.settings import (
    BatchingType,
    HashingScheme,
    PartitionsRoutingMode,
    ProducerSettings,
)

logger = logging.getLogger("geminga.producer")

NO_EXTRAS = (None, None, None, None, None, False, None, None, None)
"""The arguments of ``send`` behind ``content``, all left at their defaults."""

_told: set[str] = set()
"""What one line in the log of a process is enough for."""


class _KeyNotices:
    """What whoever sends keys may want to know; a producer says it with its first key."""

    def __init__(self, settings: ProducerSettings, partitioned: bool) -> None:
        self._hashes = partitioned and settings.hashing_scheme is HashingScheme.BoostHash
        self._mixes = settings.batching_enabled and settings.batching_type is BatchingType.Default
        self.pending = self._hashes or self._mixes

    def tell(self, owner: Any) -> None:
        """Once."""
        if not self.pending:
            return
        self.pending = False
        if self._hashes and "hashes" not in _told:
            _told.add("hashes")
            logger.info(
                "keys are routed by BoostHash as in pulsar-client; a Java producer sends the same key to "
                "another partition unless both use the same hashing_scheme"
            )
        if self._mixes:
            logger.info(
                "%s: messages of several keys share a batch, and a Key_Shared subscription gives a batch to "
                "the consumer of its first key; where that matters, create the producer with "
                "batching_type=BatchingType.KeyBased",
                owner.topic(),
            )


class MessageBuilder:
    """From the arguments of ``send`` to a payload, a message and a token; shared by both shells.

    ``encode`` is what a schema makes of a value. ``schema_version`` goes into every message; None leaves
    that to the producer, whose own version its entries carry.
    """

    def __init__(
        self, owner: Any, context: ClientContext, settings: ProducerSettings, partitioned: bool
    ) -> None:
        # Its owner holds this: were it held in turn, dropping it would free it, its client and their thread
        # only when the garbage collector comes round.
        self._owner = weakref.ref(owner)
        self._now_ms = context.now_ms
        self._encode = settings.encode
        self._schema_version: bytes | None = None
        self._interceptors = InterceptorChain(settings.interceptors)
        self._whole = bool(self._interceptors) or (
            settings.message_routing_mode is PartitionsRoutingMode.CustomPartition
        )
        self._notices = _KeyNotices(settings, partitioned)

    @property
    def takes_plain(self) -> bool:
        """Bytes and nothing else need not be looked at."""
        return not self._whole and self._encode is None

    def note_keys(self) -> None:
        """Keys are sent without `prepare` from now on."""
        self._notices.tell(self._owner())

    @property
    def interceptors(self) -> InterceptorChain:
        return self._interceptors

    def with_schema(
        self, encode: Callable[[Any], bytes | KeyedContent], schema_version: bytes
    ) -> MessageBuilder:
        """The same for another schema."""
        other = copy.copy(self)
        other._encode = encode
        other._schema_version = schema_version
        other._whole = True
        return other

    def prepare(
        self, content: Any, token: Any, extras: tuple[Any, ...]
    ) -> tuple[bytes, Any, OutgoingMessage | None]:
        """``extras`` are the arguments behind ``content``, in the order of ``send``.

        Raises `InvalidMessage` naming field, value and range, `TypeError`, or what the schema raises.
        """
        payload, message = self._prepare(content, extras)
        if self._interceptors:
            assert message is not None
            token = self.intercepted(message, token)
        return payload, token, message

    def _prepare(self, content: Any, extras: tuple[Any, ...]) -> tuple[bytes, OutgoingMessage | None]:
        keyed: KeyedContent | None = None
        if self._encode is not None and content is not None:
            content = self._encode(content)
            if type(content) is KeyedContent:
                keyed, content = content, content.payload
        if not self._whole and content is not None and keyed is None and extras == NO_EXTRAS:
            return payload_of(content), None
        message = build_message(content, *extras, now_ms=0 if extras[8] is None else self._now_ms())
        message.schema_version = self._schema_version
        if keyed is not None:
            keyed.give_key(message)
        if self._notices.pending and (message.partition_key is not None or message.ordering_key is not None):
            self._notices.tell(self._owner())
        if self._interceptors:
            message = self._interceptors.before_send(self._owner(), message)
        return message.payload, message

    def prepare_many(
        self, values: Iterable[Any], keys: Iterable[Any] | None, properties: Any
    ) -> Iterator[tuple[bytes, OutgoingMessage | None]]:
        """`prepare` for each of many values; interceptors have seen them, `intercepted` is left to do.

        ``properties`` are a dict for all, or a list of one for each.
        """
        each = properties if isinstance(properties, list) else repeat(properties)
        for value, key, own in zip(values, repeat(None) if keys is None else keys, each, strict=False):
            yield self._prepare(value, (own, key, *NO_EXTRAS[2:]))

    def intercepted(self, message: OutgoingMessage, token: Any) -> CompletionCallback:
        """The token of a message that interceptors want to hear about."""
        owner = self._owner()

        def done(message_id: MessageId | None, error: Exception | None) -> None:
            self._interceptors.on_send_acknowledgement(owner, message, message_id, error)
            if error is not None:
                fail_completion(token, error)
            elif message_id is not None and token is not None:
                receipt_token(token, message_id)

        return CompletionCallback(done)
