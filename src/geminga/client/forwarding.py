"""Publishing messages to dead letter and retry topics, with producers that are opened when first needed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from geminga.client.core import ClientCore
from geminga.consumer.dead_letters import Forward
from geminga.consumer.message import Message
from geminga.consumer.settings import ConsumerDeadLetterPolicy

if TYPE_CHECKING:
    from geminga.client.producer import AsyncProducer


class Forwarder:
    """The dead letter and retry producers of one consumer."""

    def __init__(self, core: ClientCore, consumer_name: str) -> None:
        self._core = core
        self._consumer_name = consumer_name
        self._producers: dict[str, asyncio.Task[AsyncProducer]] = {}

    async def publish(self, plan: Forward, message: Message, policy: ConsumerDeadLetterPolicy | None) -> None:
        """Publish ``message`` as ``plan`` says; returns with the receipt."""
        producer = await self._producer(plan, policy)
        options: dict[str, Any] = {"properties": dict(plan.properties)}
        if message.has_partition_key():
            options["partition_key"] = message.partition_key()
        ordering_key = message.ordering_key()
        if ordering_key:
            options["ordering_key"] = ordering_key
        if message.event_timestamp():
            options["event_timestamp"] = message.event_timestamp()
        if plan.delay_ms:
            options["deliver_at"] = self._core.now_ms() + plan.delay_ms
        await producer.send(message.data(), **options)

    async def _producer(self, plan: Forward, policy: ConsumerDeadLetterPolicy | None) -> AsyncProducer:
        task = self._producers.get(plan.topic)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._core.loop.create_task(self._open(plan, policy))
            self._producers[plan.topic] = task
        return await asyncio.shield(task)

    async def _open(self, plan: Forward, policy: ConsumerDeadLetterPolicy | None) -> AsyncProducer:
        from geminga.client.producer import create_producer
        from geminga.producer.settings import ProducerSettings

        kind = "DLQ" if plan.dead else "RETRY"
        local = plan.topic.rsplit("/", 1)[-1]
        settings = ProducerSettings(
            producer_name=f"{local}-{self._consumer_name}-{self._core.random.getrandbits(24):06x}-{kind}",
            initial_subscription_name=policy.initial_subscription_name if plan.dead and policy else None,
            # Retries carry a delivery time and dead letters are few: batches would only wait.
            batching_enabled=False,
            block_if_queue_full=True,
        )
        return await create_producer(self._core, plan.topic, settings)

    async def close(self) -> None:
        """Close the producers that were opened."""
        tasks, self._producers = list(self._producers.values()), {}
        for task in tasks:
            if not task.done():
                task.cancel()
        opened = [t.result() for t in tasks if t.done() and not t.cancelled() and t.exception() is None]
        await asyncio.gather(*(producer.close() for producer in opened), return_exceptions=True)
