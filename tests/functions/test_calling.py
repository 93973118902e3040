"""Exceptions and invalid results are failures of their call: it is retried, then dead-lettered."""

import asyncio
import sys
from typing import Any

import pytest
from waiting import loop_turns

import geminga
from geminga.functions import FunctionRunner, Output
from tests.functions.place import BOTH


class Panic(BaseException):
    """Exception of extensions written in Rust."""


RAISED = {
    "exit": SystemExit(3), "interrupt": KeyboardInterrupt(), "panic": Panic(),
    "cancelled": asyncio.CancelledError(), "closed": GeneratorExit(), "stop": StopIteration(),
    "memory": MemoryError(), "plain": ValueError(),
}  # fmt: skip


def _raises(value: str) -> Any:
    if value in RAISED:
        raise RAISED[value]
    if value == "library":
        sys.exit("usage: ...")
    if value == "midway":
        return _midway()
    return value


def _midway() -> Any:
    yield "half of it"
    raise Panic


async def _raises_async(value: str) -> Any:
    await loop_turns()
    if value == "cancels itself":
        asyncio.current_task().cancel()
        await loop_turns()
    return _raises(value)


@BOTH
@pytest.mark.parametrize("function", [_raises, _raises_async])
def test_any_exception_fails_only_its_call(place, guarantee, function):
    bad = [*RAISED, "library", "midway"]
    if function is _raises_async:
        bad.append("cancels itself")
    settings = place.dead_lettering(function, guarantee=guarantee)
    with FunctionRunner(settings) as runner:
        for value in bad:
            place.send("before " + value, value, batched=False)
        place.send("last")
        assert sorted(place.values(len(bad), "-dead")) == sorted(bad)
        assert sorted(place.values(len(bad) + 1)) == sorted(["last", *("before " + value for value in bad)])
    assert runner.metrics.user_exceptions == 2 * len(bad)
    assert place.backlog(settings.subscription_name) == 0


def test_a_call_that_cancels_itself_and_returns_has_succeeded(place):
    async def cancels(value: str) -> str:
        asyncio.current_task().cancel()
        return value

    with FunctionRunner(place.settings(cancels)):
        place.send(*range(5))
        assert place.values(5) == ["0", "1", "2", "3", "4"]


def _cannot_be_sent(value: str, context: Any) -> Any:
    if value == "topic":
        return Output(value, topic="nowhere://a/b")
    if value == "namespace":
        return Output(value, topic="persistent://no/such/topic")
    if value == "key":
        return Output(value, key=5)
    if value == "properties":
        return Output(value, properties={"a": 1})
    if value == "time":
        return Output(value, event_timestamp="now")
    if value == "value":
        return {1, 2}
    if value == "option":
        context.publish("persistent://public/default/aside", value, message_conf={"bogus": 1})
    if value == "context's topic":
        context.publish("nowhere://a/b", value)
    if value == "context's properties":
        context.publish("persistent://public/default/aside", value, properties={"a": 1})
    if value == "state":
        context.put_state("k", bytes(6_000_000))
    return value


@BOTH
def test_a_result_that_cannot_be_encoded_fails_its_call(place, guarantee):
    """Effectively once it has to be found before the first of a call's results is sent."""
    bad = ["topic", "namespace", "key", "properties", "time", "value", "option", "context's topic",
           "context's properties", "state"]  # fmt: skip
    settings = place.dead_lettering(_cannot_be_sent, guarantee=guarantee)
    with FunctionRunner(settings):
        place.send(*bad, "good", batched=False)
        assert sorted(place.values(len(bad), "-dead")) == sorted(bad)
        assert place.values(1) == ["good"]
    assert place.backlog(settings.subscription_name) == 0


def test_an_exception_of_a_schema_fails_one_call(place):
    class Strange(geminga.schema.StringSchema):
        def encode(self, obj: Any) -> bytes:
            if obj == "7":
                raise RuntimeError("no seven")
            return super().encode(obj)

    settings = place.dead_lettering(
        lambda value: value, output_schema=Strange(), input_schema=geminga.schema.StringSchema()
    )
    producer = place.client.create_producer(place.topic, schema=geminga.schema.StringSchema())
    with FunctionRunner(settings):
        for n in range(10):
            producer.send(str(n))
        assert place.values(1, "-dead") == ["7"]
        assert sorted(place.values(9)) == [str(n) for n in range(10) if n != 7]
