"""`FunctionRunner`: runs one instance of a function."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from geminga._util.loggers import shield
from geminga.client.io.long_running import LongRunning
from geminga.client.observe.metrics_port import serve
from geminga.errors import InvalidConfiguration, PulsarException, Timeout
from geminga.functions.calling import Caller, CallOutcome, size_of
from geminga.functions.context import InstanceContext
from geminga.functions.loading import Call, resolve, schema, serde
from geminga.functions.metrics import Metrics
from geminga.functions.sending import RETRY_SECONDS_MAX, AtLeastOnce, PendingResults, ResultSender, is_passing
from geminga.functions.settings import FunctionSettings
from geminga.functions.thread import CallingThread

logger = logging.getLogger("geminga.functions")

CHUNK_MESSAGES = 500
"""Maximum messages that a plain callable processes before their results are sent."""
_WAIT_SECONDS = 1.0
_ACK_GROUPING_MS = 10
"""Acknowledgement grouping time. Brokers allow 50,000 unacknowledged messages per consumer; with the usual
100 ms, tables could not exceed 500,000 messages per second."""
_STATE_SECONDS_MAX = 600.0
"""Time limit for reading the state; then reading is retried."""


class FunctionRunner(LongRunning[None]):
    """Runs a function until it is stopped: `run` blocks, `start` and `close` work in the background.

    ``metrics`` holds its counters. A runner can run once.
    """

    def __init__(self, settings: FunctionSettings) -> None:
        self.settings = settings
        self.metrics = Metrics(
            {
                "tenant": settings.tenant, "namespace": f"{settings.tenant}/{settings.namespace}",
                "name": settings.name, "instance_id": str(settings.instance_id), "fqfn": settings.full_name,
            }
        )  # fmt: skip
        super().__init__(f"function-{settings.name}")
        self._consumer: Any = None
        self._limit: asyncio.Timeout | None = None

    def run(self, *, signals: bool = True) -> None:
        """Run until `stop`, or with ``signals`` until Ctrl-C or SIGTERM; a second signal ends the process.

        At the end, calls and sends in flight are finished within ``drain_seconds``; messages that are not
        finished by then are redelivered at the next start. Raises the error that ends the function:
        `InvalidConfiguration`, an error of loading it, the broker's error, or `AlreadyClosed` if the runner
        has run before.
        """
        super().run(signals=signals)

    def _stop_here(self) -> None:
        super()._stop_here()
        if (
            self._limit is not None and self._limit.when() is None
        ):  # a second call does not extend the time limit
            self._limit.reschedule(asyncio.get_running_loop().time() + self.settings.drain_seconds)
        if self._consumer is not None:
            self._consumer.receive_waiters.wake_all()

    # --- one run ------------------------------------------------------------------------------------

    async def _work(self) -> None:
        from geminga.asyncio import Admin, Client
        from geminga.client.cluster import Cluster
        from geminga.client.handles.web_address import find_admin_url

        settings = self.settings
        call = resolve(settings.function)
        shared = InstanceContext(settings, self.metrics)
        cluster = Cluster.from_dict({**settings.connection, "service_url": settings.service_url})
        client = shared.client = Client(**cluster.client_arguments())
        admins: list[Admin] = []

        async def open_admin() -> Admin:
            """Open admin REST; without an address, request the address from the broker."""
            url = cluster.admin_url or await find_admin_url(client.context)
            admins.append(Admin(**dataclasses.replace(cluster, admin_url=url).admin_arguments()))
            return admins[-1]

        thread = CallingThread(f"function-{settings.name}")
        self._own_threads.add(thread.thread)
        web = log = None
        try:
            if settings.metrics_port is not None:
                port = settings.metrics_port and settings.metrics_port + settings.instance_id
                web = await serve(self.metrics.exposition, port)
            if settings.log_topic is not None:
                log = await _LogTopic.open(client, settings.log_topic, shared.logger)
            self._prepare_shared(shared, client, open_admin, call)
            await self._within_limit(self._relay_all(shared, client, call, thread))
        finally:
            if web is not None:
                web.close()
            if log is not None:
                await log.close()
            if shared.state is not None:
                await shared.state.close()
            thread.end()
            for admin in admins:
                await admin.close()
            with contextlib.suppress(PulsarException):
                await client.close()

    async def _within_limit(self, relaying: Coroutine[Any, Any, None]) -> None:
        """Cancel the relay ``drain_seconds`` after `stop`."""
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._limit = limit
                if self._is_stopping:
                    self._stop_here()
                await relaying
        except TimeoutError:
            if not limit.expired():
                raise
            logger.warning(
                "calls in flight have not ended within drain_seconds=%g; their messages are redelivered",
                self.settings.drain_seconds,
            )
        finally:
            self._limit = None

    def _prepare_shared(self, shared: InstanceContext, client: Any, open_admin: Any, call: Call) -> None:
        settings, loop = self.settings, asyncio.get_running_loop()
        serdes: dict[str, Any] = {}

        def serialize(name: str, value: Any) -> bytes:
            found = serdes.get(name)
            if found is None:
                found = serdes[name] = serde("serde_class_name", name)
            return bytes(found.serialize(value))

        def open_state() -> Any:
            from geminga.functions.state import State

            topic = settings.state_topic or (
                f"persistent://{settings.tenant}/{settings.namespace}/{settings.name}-state"
            )

            async def ask() -> State:
                try:
                    async with asyncio.timeout(_STATE_SECONDS_MAX):
                        return await State.open(
                            client, topic, settings.full_name, settings.instance_id,
                            lambda error: shared.failed(error), open_admin,
                        )  # fmt: skip
                except TimeoutError as error:
                    if isinstance(error, PulsarException):
                        raise
                    raise Timeout(f"{topic} was not read within {_STATE_SECONDS_MAX:g} s") from None

            opening = shared.patiently(f"the state, {topic}", ask)
            return asyncio.run_coroutine_threadsafe(opening, loop).result()

        def acknowledge(message_id: Any, topic: str) -> None:
            from geminga.consumer.inbox import AcknowledgedId

            self._consumer.check_acknowledgeable(message_id)
            self._consumer.inbox.add(AcknowledgedId(message_id))

        shared.serialize, shared.acknowledge = serialize, acknowledge
        shared.open_state = open_state

    async def _relay_all(
        self, shared: InstanceContext, client: Any, call: Call, thread: CallingThread
    ) -> None:
        settings = self.settings
        output_schema = schema("output_schema", settings.output_schema)
        consumer = self._consumer = await self._subscribe(client)
        settling = PendingResults(shared, consumer)
        if call.is_async and call.takes_context:
            # An async callable cannot block the loop for the state: load it at the start.
            assert shared.open_state is not None
            shared.state = await thread.run(shared.open_state)
        sender: ResultSender
        if settings.arrow:
            from geminga.functions.tables import TableRelay

            relay = TableRelay(settling, call, thread, self._stopping)
            try:
                await relay.open()
            except PulsarException as error:
                if not is_passing(error):
                    raise
            self._ready.set()
            await relay.run()
            await consumer.close()
            return
        if settings.guarantee == "EFFECTIVELY_ONCE":
            from geminga.functions.effectively_once import EffectivelyOnce

            sender = EffectivelyOnce(settling, client, output_schema)
        elif settings.guarantee == "TRANSACTIONAL":
            from geminga.functions.transactional import Transactional

            sender = Transactional(settling, client, output_schema)
        else:
            sender = AtLeastOnce(settling, client, output_schema)
        caller = Caller(call, shared, self._decoder(call), self._encoder(output_schema, sender))
        self._ready.set()
        try:
            if call.is_async:
                await self._relay_async(caller, sender, settling)
            else:
                await self._relay(caller, sender, settling, thread)
            settling.on_last()
            await settling.below(1)
        finally:
            await sender.close()
        if settling.fatal is not None:
            raise settling.fatal
        await consumer.close()

    async def _subscribe(self, client: Any) -> Any:
        import geminga

        settings = self.settings
        topics: Any = (
            re.compile(settings.topics_pattern) if settings.topics_pattern else list(settings.inputs)
        )
        once = settings.guarantee == "EFFECTIVELY_ONCE"
        policy = None
        if settings.max_message_retries is not None:
            policy = geminga.ConsumerDeadLetterPolicy(
                settings.max_message_retries, settings.dead_letter_topic
            )
        first = settings.retry_delay_ms / 1000
        return await client.subscribe(
            topics if not isinstance(topics, list) or len(topics) > 1 else topics[0],
            settings.subscription_name,
            consumer_type=geminga.ConsumerType.Failover if once else geminga.ConsumerType.Shared,
            schema=schema("input_schema", settings.input_schema),
            receiver_queue_size=settings.receiver_queue_size
            or (2 * settings.max_rows if settings.arrow else 5000),
            initial_position=geminga.InitialPosition[settings.subscription_position.capitalize()],
            unacked_messages_timeout_ms=settings.timeout_ms,
            negative_ack_redelivery_backoff=geminga.RedeliveryBackoff(
                first_seconds=first, max_seconds=max(first, RETRY_SECONDS_MAX)
            ),
            dead_letter_policy=policy,
            batch_index_ack_enabled=True,
            ack_grouping_time_ms=_ACK_GROUPING_MS,
            ack_receipt_enabled=settings.guarantee == "ATMOST_ONCE",
            properties={
                "application": "pulsar-function", "id": settings.full_name,
                "instance_id": str(settings.instance_id),
            },
        )  # fmt: skip

    def _decoder(self, call: Call) -> Callable[[Any], Any]:
        settings = self.settings
        if call.takes == "Message":
            return lambda message: message
        if settings.input_schema is not None:
            return lambda message: message.value()
        if settings.input_serde is None and call.takes == "bytes":
            return lambda message: message.data()
        if settings.input_serde is None and call.takes == "str":
            return lambda message: message.data().decode()
        deserialize = serde("input_serde", settings.input_serde).deserialize
        return lambda message: deserialize(message.data())

    def _encoder(self, output_schema: Any, sender: Any) -> Callable[[Any], Any]:
        if output_schema is None:
            serialize = serde("output_serde", self.settings.output_serde).serialize

            def encode(value: Any) -> bytes:
                payload = serialize(value)
                return payload if type(payload) is bytes else bytes(payload)

            if self.settings.guarantee != "TRANSACTIONAL":
                return encode

            def sized(value: Any) -> bytes:
                payload = encode(value)
                sender.check_size(len(payload))
                return payload

            return sized
        if self.settings.guarantee not in ("EFFECTIVELY_ONCE", "TRANSACTIONAL"):
            return lambda value: value

        def checked(value: Any) -> Any:
            sender.check_size(len(output_schema.encode(value)))  # a result that cannot be sent fails the call
            return value

        return checked

    # --- taking messages ------------------------------------------------------------------------------

    @property
    def _is_stopping(self) -> bool:
        return self._stopping.is_set()

    async def _take(self, most: int) -> list[Any]:
        """Take up to ``most`` messages from the receiver queue."""
        consumer = self._consumer
        messages: list[Any] = []
        while len(messages) < most:
            message = consumer.take()
            if message is None:
                break
            messages.append(message)
        if consumer.reads_versions:
            for message in messages:
                await consumer.context.schemas.prepare(message)
        if consumer.tracks_taken:
            from geminga.consumer.inbox import TakenByApplication

            for message in messages:
                consumer.inbox.add(TakenByApplication(message))
        if not messages:
            return messages
        self.metrics.received += len(messages)
        self.metrics.last_invocation_ms = time.time_ns() // 1_000_000
        if self.settings.guarantee == "ATMOST_ONCE":
            try:
                await consumer.acknowledge(messages)
            except Timeout as error:
                logger.warning("skipping %d messages, which may be redelivered: %s", len(messages), error)
                return []
        return messages

    async def _wait(self) -> None:
        """Wait for a message, at most a second."""
        await self._consumer.wait(self._consumer.context.now() + _WAIT_SECONDS)

    async def _relay(
        self, caller: Caller, sender: ResultSender, settling: PendingResults, thread: CallingThread
    ) -> None:
        while not self._is_stopping and settling.fatal is None:
            messages = await self._take(min(CHUNK_MESSAGES, settling.most))
            if not messages:
                await self._wait()
                continue
            settling.in_flight += len(messages)
            start = 0
            while start < len(messages) and settling.fatal is None:
                outcomes = await thread.run(caller.call_some, messages[start:], sender.in_place)
                start += len(outcomes)
                settling.note_results(len(outcomes), size_of(outcomes))
                if sender.in_place:
                    await self._settle_in_place(outcomes, caller, sender, settling, thread)
                else:
                    self._count_failures(outcomes)
                    await sender.emit(outcomes)
                if self._is_stopping and self.settings.guarantee != "ATMOST_ONCE":
                    settling.in_flight -= len(messages) - start  # they are redelivered
                    return
            await settling.below()

    async def _settle_in_place(
        self, outcomes: list[CallOutcome], caller: Caller, sender: Any, settling: PendingResults,
        thread: CallingThread | None,
    ) -> None:  # fmt: skip
        """Send results in order. A failed call is repeated here, since later results must wait for it."""
        good: list[CallOutcome] = []
        for place, outcome in enumerate(outcomes):
            tries = 0
            while True:
                is_away = False
                if outcome.error is None:
                    try:
                        await sender.check(outcome)
                    except PulsarException as error:
                        outcome.error = error
                        is_away = is_passing(error)  # the topic is unavailable: not a failure of the message
                if outcome.error is None:
                    good.append(outcome)
                    break
                if good:
                    await sender.emit(good)
                    good = []
                self._count_failures([outcome])
                most = self.settings.max_message_retries
                if most is not None and tries >= most and not is_away:
                    await self._send_to_dead_letter_topic(outcome.message, settling)
                    break
                delay = min(RETRY_SECONDS_MAX, self.settings.retry_delay_ms / 1000 * 2 ** min(tries, 20))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), delay)
                if self._is_stopping:
                    settling.in_flight -= len(outcomes) - place
                    return
                tries += 1
                if thread is None:
                    outcome = await caller.call_one(outcome.message)
                else:
                    (outcome,) = await thread.run(caller.call_some, [outcome.message], True)
        if good:
            await sender.emit(good)

    async def _send_to_dead_letter_topic(self, message: Any, settling: PendingResults) -> None:
        from geminga.consumer.dead_letters import plan_dead_letter

        consumer = self._consumer
        policy = consumer.settings.dead_letter_policy
        plan = plan_dead_letter(message, message.topic_name(), consumer.subscription_name(), policy)
        await consumer.forwarder.publish(plan, message, policy)
        settling.done(message)

    def _count_failures(self, outcomes: Sequence[CallOutcome]) -> None:
        """Count failures; log the 1st, 2nd, 4th, 8th ... with its traceback."""
        for outcome in outcomes:
            if outcome.error is None:
                continue
            self.metrics.user_exceptions += 1
            count = self.metrics.user_exceptions
            if count & (count - 1) == 0:
                shield(logging.getLogger(f"geminga.function.{self.settings.name}")).error(
                    "the function failed (%d so far) with message %s of %s: %s: %s",
                    count, outcome.message.message_id(), outcome.message.topic_name(),
                    type(outcome.error).__name__, outcome.error, exc_info=outcome.error,
                )  # fmt: skip

    async def _relay_async(self, caller: Caller, sender: ResultSender, settling: PendingResults) -> None:
        """Run up to ``max_concurrency`` calls at a time and send the results, in order if ``keep_order``."""
        settings = self.settings
        ordered = settings.keep_order or sender.in_place
        pending: deque[asyncio.Task[CallOutcome]] = deque()
        wake = asyncio.Event()
        arrival: asyncio.Task[None] | None = None
        try:
            while settling.fatal is None:
                room = min(settings.max_concurrency - len(pending), settling.most - settling.in_flight)
                if room > 0 and not self._is_stopping:
                    for message in await self._take(room):
                        settling.in_flight += 1
                        task = asyncio.create_task(caller.call_one(message))
                        task.add_done_callback(lambda _: wake.set())
                        pending.append(task)
                finished = _finished(pending, ordered)
                if finished:
                    outcomes = [task.result() for task in finished]
                    settling.note_results(len(outcomes), size_of(outcomes))
                    if sender.in_place:
                        await self._settle_in_place(outcomes, caller, sender, settling, None)
                    else:
                        self._count_failures(outcomes)
                        await sender.emit(outcomes)
                    await settling.below()
                    continue
                if not pending and (self._is_stopping or room <= 0):
                    if self._is_stopping:
                        break
                    await settling.below()
                    continue
                if arrival is not None and arrival.done():
                    arrival.result()
                    arrival = None
                if arrival is None and room > 0 and not self._is_stopping:
                    arrival = asyncio.create_task(self._wait())
                    arrival.add_done_callback(lambda _: wake.set())
                if self._consumer.queue and room > 0 and not self._is_stopping:
                    continue
                await wake.wait()
                wake.clear()
        finally:
            caller.ending = True
            for task in pending:
                task.cancel()
            if arrival is not None:
                arrival.cancel()


def _finished(pending: deque[asyncio.Task[CallOutcome]], ordered: bool) -> list[asyncio.Task[CallOutcome]]:
    finished = []
    if ordered:
        while pending and pending[0].done():
            finished.append(pending.popleft())
    elif any(task.done() for task in pending):
        finished = [task for task in pending if task.done()]
        left = [task for task in pending if not task.done()]
        pending.clear()
        pending.extend(left)
    return finished


class _LogTopic(logging.Handler):
    """Log handler that publishes the function's log lines; lines are dropped while the queue is full."""

    def __init__(self, producer: Any, target: logging.Logger) -> None:
        super().__init__()
        self._producer = producer
        self._target = target
        self._loop = asyncio.get_running_loop()

    @staticmethod
    async def open(client: Any, topic: str, target: logging.Logger) -> _LogTopic:
        producer = await client.create_producer(topic, batching_enabled=True, send_timeout_millis=0)
        handler = _LogTopic(producer, target)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        target.addHandler(handler)
        if target.level == logging.NOTSET:
            target.setLevel(logging.INFO)
        return handler

    def emit(self, record: logging.LogRecord) -> None:
        try:
            payload = self.format(record).encode("utf-8", "replace")
            level = {"loglevel": record.levelname}
            self._loop.call_soon_threadsafe(self._send, payload, level)
        except RuntimeError:  # the loop has ended
            pass
        except Exception:  # formatting errors, as in other handlers
            self.handleError(record)

    def _send(self, payload: bytes, properties: dict[str, str]) -> None:
        self._producer.send_async(payload, lambda _result, _id: None, properties=properties)

    async def close(self) -> None:  # type: ignore[override]
        self._target.removeHandler(self)
        await asyncio.sleep(0)  # let lines of other threads be queued
        with contextlib.suppress(TimeoutError, PulsarException):
            async with asyncio.timeout(2):
                await self._producer.close()


def run(function: str | Callable[..., Any], **settings: Any) -> None:
    """Run a function until Ctrl-C or SIGTERM; ``settings`` are the fields of `FunctionSettings`.

    With ``parallelism`` above 1, run that many processes; the function must be importable by them.
    Raises the errors of `FunctionRunner.run`.
    """
    given = FunctionSettings(function=function, **settings)
    if given.parallelism > 1:
        from geminga.functions.processes import supervise

        code = supervise(given)
        if code:
            raise InvalidConfiguration("the function could not be started in its processes: see their output")
        return
    FunctionRunner(given).run()
