"""Base of `geminga.Client`: the I/O thread, the client context on its loop, and waiting for both.
``client/api/sync.py`` is generated from the asyncio API (``tools/generate_sync.py``)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from geminga._util.values import T
from geminga.client.api.base import ClientBase
from geminga.client.handles.context import ClientContext, Closable, all_or_none
from geminga.client.handles.schema_versions import ThreadSchemaVersions
from geminga.client.io.runtime import LoopThread
from geminga.client.observe.logs import detach
from geminga.client.options import arguments
from geminga.client.options.arguments import SubscribeArguments, Topics
from geminga.client.options.enums import ProducerAccessMode
from geminga.client.options.settings import ClientSettings
from geminga.client.receive.listener import STOP_SECONDS_MAX, ConsumerEventNotifier, ListenerThreads
from geminga.consumer.settings import ConsumerSettings, ReaderSettings
from geminga.errors import AlreadyClosed, PulsarException, UsageError
from geminga.ids import MessageId
from geminga.producer.settings import ProducerSettings
from geminga.schema import Schema

if TYPE_CHECKING:
    from geminga.client.publish.producer import Producer
    from geminga.client.receive.consumer import AsyncConsumer, Consumer
    from geminga.client.receive.reader import Reader
    from geminga.client.receive.table_view import TableView

A = TypeVar("A")
H = TypeVar("H", bound=Closable)

_GRACE_SECONDS = 5.0
"""Time that a call waits beyond the operation time-out, which the I/O thread enforces itself."""


class SyncBase(ClientBase):
    """Base of `geminga.Client`."""

    def _begin(self) -> None:
        self._listener_threads = ListenerThreads(self._settings.listener_threads)
        self._runtime = LoopThread()
        self._context = self._runtime.call(_make_context(self._settings))
        self._schemas = ThreadSchemaVersions(self._runtime, self._context.schemas)
        self._runtime.at_end(
            repr(self), self._context.close, self._context.shutdown, self._context.fail_leftovers
        )
        self._source.start(self._context, self._context.loop.call_soon_threadsafe)

    @property
    def context(self) -> ClientContext:
        """The client context, for the modules of this package; use it on `runtime`'s thread."""
        return self._context

    @property
    def runtime(self) -> LoopThread:
        """The I/O thread, for the modules of this package."""
        return self._runtime

    def shutdown(self) -> None:
        """Close at once, without waiting for pending operations."""
        self._end(0.0)

    def _end(self, listeners_seconds: float) -> None:
        with contextlib.ExitStack() as steps:  # runs every step, even if one is interrupted while waiting
            steps.callback(detach, self._log_handler)
            steps.callback(self._listener_threads.close, listeners_seconds)
            steps.callback(self._source.stop)
            steps.callback(self._runtime.close)
            if not self._runtime.closed and not self._runtime.forked and not self._runtime.is_here:
                with contextlib.suppress(PulsarException):
                    self._runtime.call(_shutdown(self._context), _GRACE_SECONDS)

    def close(self) -> None:
        """Send what producers have pending and close the client with all that it opened; wait at most 1 s for
        a running listener call.

        A second call does nothing, nor does one in a forked child. Raises `UsageError` inside a callback,
        which runs on the thread that the call would wait for.
        """
        if self._runtime.closed or self._runtime.forked:
            return
        if self._runtime.is_here:
            raise UsageError("close() inside a callback would wait for the thread that it runs on")
        try:
            # AlreadyClosed: another thread, or a signal handler during this call, was faster.
            with contextlib.suppress(AlreadyClosed):
                self._ask(self._context.close())
        finally:
            self._end(STOP_SECONDS_MAX)

    def __enter__(self) -> Self:
        self._runtime.check()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<geminga.Client {self._settings.service_url}{' closed' if self._runtime.closed else ''}>"

    # --- helpers that differ from the asyncio API --------------------------------------------------

    def _now_ms(self) -> int:
        return self._context.now_ms()

    def _ask(self, answer: Coroutine[Any, Any, A]) -> A:
        return self._runtime.call(answer, self._settings.operation_timeout_seconds + _GRACE_SECONDS)

    def _open(self, coroutine: Coroutine[Any, Any, H], *, bounded: bool = True) -> H:
        """Return the handle that a coroutine opens. One that is opened after the wait has ended is closed
        again."""
        limit = self._settings.operation_timeout_seconds + _GRACE_SECONDS if bounded else None
        return self._runtime.call(coroutine, limit, discard=self._context.discard)

    def _schema_for(self, topic: str, schema: Schema[T] | type[T] | None) -> Schema[T]:
        """Check the schema argument of a producer; ``AutoProduce`` schemas fetch the topic's schema first."""
        checked = arguments.checked_schema(schema)
        return self._ask(self._context.schemas.for_topic(topic, checked)) if checked.needs_topic else checked

    def _open_producer(self, topic: str, settings: ProducerSettings, schema: Schema[T]) -> Producer[T]:
        from geminga.client.publish.producer import Producer, create_producer

        schema.attach_client(self._schemas)
        bounded = settings.access_mode is not ProducerAccessMode.WaitForExclusive
        producer = self._open(self._context.opened(create_producer, topic, settings), bounded=bounded)
        return Producer(self._runtime, producer)

    def _open_consumer(
        self, topics: Topics, subscription: str, settings: ConsumerSettings, schema: Schema[T]
    ) -> Consumer[T]:
        opening, events = self._opening(SubscribeArguments(topics, subscription, settings, schema))
        return self._opened_consumer(self._open(opening), events)

    def _open_consumers(self, asked: Sequence[SubscribeArguments]) -> list[Consumer[Any]]:
        prepared = [self._opening(each) for each in asked]

        def discard_all(opened: list[AsyncConsumer[Any]]) -> None:
            for each in opened:
                self._context.discard(each)

        limit = self._settings.operation_timeout_seconds + _GRACE_SECONDS
        opening = all_or_none(each for each, _ in prepared)
        opened = self._runtime.call(opening, limit, discard=discard_all)
        notifiers = (events for _, events in prepared)
        return [self._opened_consumer(*each) for each in zip(opened, notifiers, strict=True)]

    def _opening(
        self, asked: SubscribeArguments
    ) -> tuple[Coroutine[Any, Any, AsyncConsumer[Any]], ConsumerEventNotifier | None]:
        """Return the coroutine that subscribes, and the caller of the event listener."""
        from geminga.client.receive.consumer import subscribe

        topics, subscription, settings, schema = asked
        schema.attach_client(self._schemas)
        events = None
        if settings.event_listener is not None:
            events = ConsumerEventNotifier(settings.event_listener)
            settings = replace(settings, event_listener=events)
        return self._context.opened(subscribe, topics, subscription, settings), events

    def _opened_consumer(
        self, opened: AsyncConsumer[Any], events: ConsumerEventNotifier | None
    ) -> Consumer[Any]:
        from geminga.client.receive.consumer import Consumer

        consumer: Consumer[Any] = Consumer(self._runtime, opened, self._listener_threads)
        if events is not None:
            events.belongs_to(consumer, self._listener_threads)
        return consumer

    def _open_reader(
        self, topics: Topics, start: MessageId | int, settings: ReaderSettings, schema: Schema[T]
    ) -> Reader[T]:
        from geminga.client.receive.reader import Reader, create_reader

        schema.attach_client(self._schemas)
        reader = self._open(self._context.opened(create_reader, topics, start, settings))
        return Reader(self._runtime, reader, self._listener_threads)

    def _open_table_view(self, topic: str, subscription_name: str | None, schema: Schema[T]) -> TableView[T]:
        from geminga.client.receive.table_view import TableView, open_table_view

        schema.attach_client(self._schemas)
        open_view = functools.partial(open_table_view, threaded=True)
        view = self._open(self._context.opened(open_view, topic, subscription_name, schema), bounded=False)
        return TableView(self._runtime, view)


async def _make_context(settings: ClientSettings) -> ClientContext:
    return ClientContext(settings)


async def _shutdown(context: ClientContext) -> None:
    context.shutdown()
