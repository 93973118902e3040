"""Conversion of ``send`` arguments to messages, shared by the synchronous and the asyncio producer."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

from geminga.client.publish.completions import CompletionCallback, fail_completion, receipt_token
from geminga.client.publish.publisher import Publisher
from geminga.client.publish.submit_queue import TransactionRows
from geminga.client.transactions import transaction_of
from geminga.ids import MessageId
from geminga.producer.interceptors import InterceptorChain
from geminga.producer.message import (
    KeyedContent,
    OutgoingMessage,
    RichMessage,
    SimpleMessage,
    bound_to,
    build_message,
    build_simple_message,
    payload_of,
)
from geminga.producer.settings import PartitionsRoutingMode
from geminga.transactions import TransactionCore

NO_EXTRAS = (None, None, None, None, None, False, None, None, None)
"""Arguments of ``send`` after ``content``, all at their defaults."""


class MessageBuilder:
    """Builder of payload, message and token from the arguments of ``send``; shared by both producer classes.

    ``encode`` is the schema's encoder. ``schema_version`` is set in every message; None leaves it to the
    producer, whose version its entries carry.
    """

    def __init__(self, owner: Any, publisher: Publisher) -> None:
        settings = publisher.settings
        self.belongs_to(owner)
        self._publisher = publisher
        self.transaction: TransactionCore | None = None
        """Transaction of all messages."""
        self._within: MessageBuilder | None = None
        """The last builder for a transaction."""
        self._mark: tuple[Any, TransactionRows] | None = None
        """The transaction that the application passed last, and the mark of its single messages in the queue;
        None if plain bytes need preparation. One tuple: another thread may replace it at any time."""
        self._now_ms = publisher.context.now_ms
        self._encode = settings.encode
        self._batching = settings.batching_enabled
        self._schema_version: bytes | None = None
        self._interceptors = InterceptorChain(settings.interceptors)
        self._whole = bool(self._interceptors) or (
            settings.message_routing_mode is PartitionsRoutingMode.CustomPartition
        )
        """Whether every message is built as an `OutgoingMessage`, for interceptors or the router, rather than
        most as bytes or a `SimpleMessage`."""

    def belongs_to(self, owner: Any) -> None:
        """Set the producer that interceptors receive."""
        # The producer refers to this builder: a reference back would delay freeing the producer, its client
        # and their thread until the garbage collector runs.
        self._owner = weakref.ref(owner)

    @property
    def takes_plain(self) -> bool:
        """Whether plain bytes need no preparation."""
        return not self._whole and self._encode is None

    @property
    def interceptors(self) -> InterceptorChain:
        return self._interceptors

    def with_schema(
        self, encode: Callable[[Any], bytes | KeyedContent], schema_version: bytes
    ) -> MessageBuilder:
        """Return a copy of this builder for another schema."""
        other = copy.copy(self)
        other._encode = encode
        other._schema_version = schema_version
        other._whole = True
        other._within = other._mark = None
        return other

    def within(self, txn: Any) -> MessageBuilder:
        """Return the builder of messages that belong to an open transaction; itself for None. Raises the
        errors of `transaction_of`."""
        if txn is None:
            return self
        transaction, publisher = transaction_of(txn, self._publisher.context), self._publisher
        other = self._within
        if other is None or other.transaction is not transaction.core:
            transaction.senders[publisher.flush, publisher.schedule] = None
            other = copy.copy(self)
            other.transaction, other._within, other._mark = transaction.core, None, None
            self._within = other
            self._mark = (txn, TransactionRows(transaction.core, 1)) if self.takes_plain else None
        return other

    def offer_within(self, txn: Any, payload: bytes, token: Any, key: Any, properties: Any) -> bool:
        """Submit plain bytes of the transaction of the last `within`; return False for any other message, or
        if the loop must decide. Raises `InvalidTxnStatusError` if the transaction is not open."""
        known = self._mark
        if known is None or txn is not known[0] or key is not None or properties is not None:
            return False
        known[1].transaction.check_open()
        return self._publisher.submit_queue.offer_within(known[1], payload, token)

    def prepare(
        self, content: Any, token: Any, extras: tuple[Any, ...]
    ) -> tuple[bytes, Any, OutgoingMessage | None]:
        """Return payload, token and message; ``extras`` are the arguments of ``send`` between ``content`` and
        ``txn``, in order. Raises `InvalidMessage` naming field, value and range, `TypeError`, or the schema's
        error."""
        payload, message = self._prepare(content, extras)
        message = self.bound(payload, message)
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
        message: OutgoingMessage
        if not self._whole and content is not None and keyed is None and extras[2:] == NO_EXTRAS[2:]:
            message = build_simple_message(content, extras[0], extras[1])
            return message.payload, message
        delayed = extras[7] is not None or extras[8] is not None
        single = self._whole or self.transaction is not None or extras[3] is not None
        kind = OutgoingMessage if single or (delayed and self._batching) else RichMessage
        now_ms = 0 if extras[8] is None else self._now_ms()
        message = build_message(content, *extras, now_ms=now_ms, kind=kind)
        message.schema_version = self._schema_version
        if keyed is not None:
            keyed.give_key(message)
        if self._interceptors:
            message = self._interceptors.before_send(self._owner(), message)
        message.transaction = self.transaction  # an interceptor may have returned a new message
        return message.payload, message

    def bound(self, payload: bytes, message: OutgoingMessage | None) -> OutgoingMessage | None:
        """Bind a message of `prepare_many` to the builder's transaction, if it has one."""
        if message is None or isinstance(message, SimpleMessage):
            return bound_to(self.transaction, payload, message)
        return message

    def prepare_many(
        self, values: Iterable[Any], keys: Iterable[Any] | None, properties: Any
    ) -> Iterator[tuple[bytes, OutgoingMessage | None]]:
        """Yield `prepare` for each of many values, with the interceptors' ``before_send``. The caller calls
        `intercepted` for each message, and `bound` for simple ones.

        ``properties`` are a dict for all, or a list of one for each.
        """
        each = properties if isinstance(properties, list) else repeat(properties)
        for value, key, own in zip(values, repeat(None) if keys is None else keys, each, strict=False):
            yield self._prepare(value, (own, key, *NO_EXTRAS[2:]))

    def intercepted(self, message: OutgoingMessage, token: Any) -> CompletionCallback:
        """Return a token that passes the message's outcome to the interceptors, then to ``token``."""
        owner = self._owner()

        def done(message_id: MessageId | None, error: Exception | None) -> None:
            self._interceptors.on_send_acknowledgement(owner, message, message_id, error)
            if error is not None:
                fail_completion(token, error)
            elif message_id is not None and token is not None:
                receipt_token(token, message_id)

        return CompletionCallback(done)
