"""Calling of the function: decodes messages, encodes results, returns a `CallOutcome` per message."""

import asyncio
import contextlib
import inspect
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

from geminga.errors import InvalidMessage
from geminga.functions.context import Context, InstanceContext, Publish
from geminga.functions.loading import Call
from geminga.functions.output import Output

CHUNK_SECONDS = 0.005
"""Time after which the results of a plain callable are sent, so that they do not wait for slow calls."""


class CallOutcome:
    """Outcome of a call.

    ``error``: the exception of a failed call. It includes `BaseException`, such as an extension's panic,
    ``sys.exit()`` of a library and a call that cancels itself: if these ended the function, their message
    would end every instance that receives it, and never reach the dead letter topic.
    ``publishes``: the results in order. ``changes``: changes of the state.
    ``payload`` with ``key`` replaces ``publishes`` in the usual case, one result for the output topic.
    """

    __slots__ = ("changes", "error", "key", "message", "payload", "plain", "publishes")

    def __init__(self, message: Any) -> None:
        self.message = message
        self.error: BaseException | None = None
        self.publishes: Sequence[Publish] = ()
        self.changes: list[tuple[str, bytes | None]] = []
        self.plain = False
        self.payload: Any = None
        self.key: str | None = None

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.publishes, self.plain = (), False

    def as_publishes(self, output: str) -> Sequence[Publish]:
        if not self.plain:
            return self.publishes
        return (Publish(output, self.payload, {} if self.key is None else {"partition_key": self.key}),)


def size_of(outcomes: Sequence[CallOutcome]) -> int:
    """Return the size in bytes of the results that are encoded already."""
    size = 0
    for outcome in outcomes:
        if type(outcome.payload) is bytes:
            size += len(outcome.payload)
        for each in outcome.publishes:
            if type(each.payload) is bytes:
                size += len(each.payload)
    return size


class Caller:
    """Calls the function. ``decode`` returns a message's value, ``encode`` a result's payload."""

    def __init__(
        self, call: Call, shared: InstanceContext, decode: Callable[[Any], Any], encode: Callable[[Any], Any]
    ) -> None:
        self.call = call
        self._shared = shared
        self._decode = decode
        self._encode = encode
        self._output = shared.settings.output
        self._forward = shared.settings.forward_keys
        self._source = shared.settings.source_properties
        self.ending = False
        """True while calls are cancelled because the function ends."""

    def call_some(self, messages: Sequence[Any], stop_at_failure: bool) -> list[CallOutcome]:
        """Call the function for messages until `CHUNK_SECONDS` have passed, and return the outcomes. With
        ``stop_at_failure``, stop after the first failure. Runs on the function's thread."""
        outcomes: list[CallOutcome] = []
        function, takes_context = self.call.function, self.call.takes_context
        started = time.perf_counter()
        until = started + CHUNK_SECONDS
        for message in messages:
            outcome = CallOutcome(message)
            outcomes.append(outcome)
            try:
                if takes_context:
                    context = Context(self._shared, message)
                    self._fill(outcome, function(self._decode(message), context), context)
                else:
                    self._fill(outcome, function(self._decode(message)), None)
            except BaseException as error:  # see `CallOutcome`
                outcome.fail(error)
                if stop_at_failure:
                    break
            if time.perf_counter() > until:
                break
        self._shared.metrics.process_seconds += time.perf_counter() - started
        return outcomes

    async def call_one(self, message: Any) -> CallOutcome:
        """Call an async callable and return the outcome. Runs on the event loop."""
        outcome = CallOutcome(message)
        started = time.perf_counter()
        context = Context(self._shared, message) if self.call.takes_context else None
        try:
            value = self._decode(message)
            result = self.call.function(value, context) if context else self.call.function(value)
            is_many = inspect.isasyncgen(result)
            result = _Several([each async for each in result]) if is_many else await result
            self._fill(outcome, result, context)
        except BaseException as error:  # see `CallOutcome`
            if self.ending:
                raise
            outcome.fail(error)
        if await uncancelled() and self.ending:
            raise asyncio.CancelledError
        self._shared.metrics.process_seconds += time.perf_counter() - started
        return outcome

    def _fill(self, outcome: CallOutcome, result: Any, context: Context | None) -> None:
        """Encode the results of a call; a result that cannot be encoded is a failure of the call."""
        busy = context is not None and (context.publishes or context.changes)
        alone = result is not None and not busy and not self._source and self._output is not None
        if alone and type(result) not in _SPECIAL:
            outcome.payload = self._encode(result)
            outcome.plain = True
            if self._forward:
                message = outcome.message
                key = message.partition_key()
                outcome.key = key if key or message.has_partition_key() else None
            return
        publishes = list(context.publishes) if context is not None else []
        if result is not None:
            several = inspect.isgenerator(result) or type(result) is _Several
            for value in result if several else (result,):
                if value is not None:
                    self._add(publishes, outcome.message, value)
        outcome.publishes = publishes
        if context is not None and context.changes:
            state = self._shared.state
            assert state is not None
            outcome.changes = state.commit(context.changes)

    def _add(self, publishes: list[Publish], message: Any, value: Any) -> None:
        given = value if type(value) is Output else Output(value)
        topic = given.topic or self._output
        if topic is None:
            if type(value) is Output:
                raise InvalidMessage("the function has no output topic and its Output names none")
            return
        options: dict[str, Any] = {
            name: getattr(given, name)
            for name in ("ordering_key", "event_timestamp")
            if getattr(given, name) is not None
        }
        key = given.key
        if key is None and self._forward and message.has_partition_key():
            key = message.partition_key()
        if key is not None:
            options["partition_key"] = key
        if given.deliver_after_ms is not None:
            from datetime import timedelta

            options["deliver_after"] = timedelta(milliseconds=given.deliver_after_ms)
        properties = dict(given.properties or {})
        if self._source:
            import base64

            serialized = message.message_id().serialize()
            properties.setdefault("__pfn_input_topic__", message.topic_name())
            properties.setdefault("__pfn_input_msg_id__", base64.urlsafe_b64encode(serialized).decode())
        if properties:
            options["properties"] = properties
        payload = None if given.value is None else self._encode(given.value)
        publish = Publish(topic, payload, options)
        if options or given.topic:
            publish.check()
        publishes.append(publish)


async def uncancelled() -> bool:
    """Undo a cancellation of the current task; return whether there was one. Runs on the event loop."""
    task = asyncio.current_task()
    assert task is not None
    if not task.cancelling():
        return False
    while task.cancelling():
        task.uncancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)  # a pending cancellation is raised here
    return True


class _Several(list[Any]):
    """List of the values of an async generator, to distinguish them from a list as one value."""


_SPECIAL = frozenset((Output, _Several, types.GeneratorType))
