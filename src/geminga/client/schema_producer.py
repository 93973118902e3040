"""Producers that publish with another schema than the one they were created with.

A topic's schema evolves: an application that forwards old and new records needs both versions on one
producer, in one order. `AsyncProducer.with_schema` registers the other schema and returns a view of the same
producer, whose messages carry that version. Messages of different versions never share a batch.
"""

from __future__ import annotations

from typing import Any

from geminga.client.message_building import MessageBuilder
from geminga.client.producer import AsyncProducer, Producer, never, never_simple
from geminga.schema import Schema
from geminga.values import T, T_contra


class AsyncSchemaProducer(AsyncProducer[T_contra]):
    """View of ``producer`` with another schema; closing either closes both."""

    def __init__(self, producer: AsyncProducer[Any], messages: MessageBuilder) -> None:
        self.__dict__.update(producer.__dict__)
        self._origin = producer
        self._messages = messages
        self._offer = self._offer_waited = never
        self._offer_simple = never_simple

    async def with_schema(self, schema: Schema[T]) -> AsyncProducer[T]:
        return await self._origin.with_schema(schema)

    async def end(self) -> None:
        await self._origin.end()


class SchemaProducer(Producer[T_contra]):
    """View of ``producer`` with another schema; closing either closes both."""

    def __init__(self, producer: Producer[Any], messages: MessageBuilder) -> None:
        self.__dict__.update(producer.__dict__)
        self._origin = producer
        self._messages = messages
        self._offer = self._offer_waited = never
        self._offer_simple = never_simple

    def with_schema(self, schema: Schema[T]) -> Producer[T]:
        return self._origin.with_schema(schema)

    def close(self) -> None:
        self._origin.close()
