"""Publishing messages to dead letter and retry topics, with producers that are opened when first needed."""

import asyncio
import base64
import binascii
import logging
from typing import Any

from geminga.client.handles.context import ClientContext
from geminga.client.io.tasks import seen
from geminga.client.publish.producer import AsyncProducer, create_producer
from geminga.consumer.dead_letters import DeadLetter
from geminga.consumer.message import Message
from geminga.consumer.settings import ConsumerDeadLetterPolicy
from geminga.errors import CorruptPayload, CryptoError, IncompatibleSchema
from geminga.producer.message import KeyedContent
from geminga.producer.settings import ProducerSettings
from geminga.schema.schema import Schema, SchemaInfo, SchemaType

logger = logging.getLogger("geminga")

_Target = tuple[str, tuple[str, ...]]
"""Topic, and the names of the keys that messages there are encrypted for."""


def _content_of(message: Message[Any]) -> bytes | KeyedContent | None:
    """Return the payload of a received message unchanged, with its key if that is one of bytes."""
    payload = None if message.has_null_value() else message.data()
    if message.partition_key_is_base64():
        try:
            return KeyedContent(payload, base64.b64decode(message.partition_key()))
        except binascii.Error as error:
            raise CorruptPayload(f"the key of {message.message_id()} is not base64: {error}") from error
    return payload


def _keys_of(message: Message[Any]) -> tuple[str, ...]:
    """Return the names of the keys that a message was encrypted for. Raises `CryptoError` for one that is
    still encrypted: no consumer could read it on another topic."""
    context = message.encryption_context()
    if context is None:
        return ()
    if context.is_decryption_failed():
        raise CryptoError(f"{message.message_id()} cannot be republished: it could not be decrypted")
    keys = context.keys()
    return tuple(dict.fromkeys(str(key.key) for key in keys))


class _PassThroughSchema(Schema):
    """Schema of messages that are republished unchanged."""

    def __init__(self, info: SchemaInfo) -> None:
        super().__init__(
            Message, SchemaType(info.type), None, info.name, schema_data=info.data, properties=info.properties
        )

    def encode_message(self, obj: Any) -> Any:
        return _content_of(obj)


class DeadLetterPublisher:
    """Dead letter and retry producers of one consumer.

    Encrypted messages are encrypted again for the same keys: ``decryptor`` supplies the public ones.
    """

    def __init__(self, context: ClientContext, consumer_name: str, decryptor: Any = None) -> None:
        self._context = context
        self._consumer_name = consumer_name
        self._decryptor = decryptor
        self._producers: dict[_Target, asyncio.Task[AsyncProducer[Any]]] = {}
        self._views: dict[tuple[_Target, str, str], AsyncProducer[Any]] = {}

    async def publish(
        self, plan: DeadLetter, message: Message[Any], policy: ConsumerDeadLetterPolicy | None
    ) -> None:
        """Publish ``message`` as ``plan`` says; returns with the receipt.

        Payload, key and schema stay unchanged; schema versions are those of the other topic. Raises
        `CryptoError` for an encrypted message whose public keys are not available: it is not sent in plain
        text.
        """
        target = (plan.topic, _keys_of(message))
        producer = await self._with_schema_of(message, await self._producer(target, plan, policy), target)
        options: dict[str, Any] = {"properties": dict(plan.properties)}
        if message.has_partition_key() and not message.partition_key_is_base64():
            options["partition_key"] = message.partition_key()
        ordering_key = message.ordering_key()
        if ordering_key:
            options["ordering_key"] = ordering_key
        if message.event_timestamp():
            options["event_timestamp"] = message.event_timestamp()
        if plan.delay_ms:
            options["deliver_at"] = self._context.now_ms() + plan.delay_ms
        await producer.send(message, **options)

    async def _with_schema_of(
        self, message: Message[Any], producer: AsyncProducer[Any], target: _Target
    ) -> AsyncProducer[Any]:
        """Return ``producer`` with the schema that ``message`` was written with.

        If the other topic rejects the schema (another namespace may have other rules), the payload is sent
        without it rather than lost.
        """
        version = message.schema_version()
        if not version:
            return producer
        key = (target, message.topic_name(), version)
        known = self._views.get(key)
        if known is None:
            known = producer
            try:
                info = await self._context.schemas.get(message.topic_name(), version)
                if info is not None:
                    known = await producer.with_schema(_PassThroughSchema(info))
            except (IncompatibleSchema, ValueError) as error:
                logger.warning(
                    "%s does not take the schema of %s: %s", target[0], message.topic_name(), error
                )
            self._views[key] = known
        return known

    async def _producer(
        self, target: _Target, plan: DeadLetter, policy: ConsumerDeadLetterPolicy | None
    ) -> AsyncProducer[Any]:
        task = self._producers.get(target)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._context.task(self._open(target[1], plan, policy))
            task.add_done_callback(seen)
            self._producers[target] = task
        return task.result() if task.done() else await asyncio.shield(task)

    async def _open(
        self, keys: tuple[str, ...], plan: DeadLetter, policy: ConsumerDeadLetterPolicy | None
    ) -> AsyncProducer[Any]:
        kind = "DLQ" if plan.dead else "RETRY"
        local = plan.topic.rsplit("/", 1)[-1]
        settings = ProducerSettings(
            producer_name=f"{local}-{self._consumer_name}-{self._context.random.getrandbits(24):06x}-{kind}",
            initial_subscription_name=(
                (policy.initial_subscription_name or None) if plan.dead and policy else None
            ),
            # Retries carry a delivery time and dead letters are few: batching would only delay them.
            batching_enabled=False,
            chunking_enabled=True,  # chunked messages must be chunked again
            block_if_queue_full=True,
            encode=_content_of,
            encryptor=self._decryptor.encryptor_for(keys) if keys else None,
        )
        return await create_producer(self._context, plan.topic, settings)

    async def close(self) -> None:
        """Close the producers that were opened."""
        tasks, self._producers = list(self._producers.values()), {}
        self._views.clear()
        for task in tasks:
            if not task.done():
                task.cancel()
        opened = [t.result() for t in tasks if t.done() and not t.cancelled() and t.exception() is None]
        await asyncio.gather(*(producer.end() for producer in opened), return_exceptions=True)
