"""Functions that the tests run, in this process and in others."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

from geminga.functions import Function, Output, SerDe


def shout(value: str) -> str:
    return value + "!"


def plain(value: Any) -> Any:
    """Without a word about its type: values are what `IdentitySerDe` makes of payloads."""
    return value * 2


async def slowly(value: str) -> str:
    """The earlier ones take longer."""
    await asyncio.sleep(0.05 if int(value) % 5 == 0 else 0)
    return value


def words(value: str) -> Iterator[Any]:
    for word in value.split():
        yield Output(word, key=word[0], properties={"of": value})


def odd(value: int) -> int | None:
    return value if int(value) % 2 else None


def two_of_each(value: str) -> Iterator[str]:
    yield value + "a"
    yield value + "b"


class Everything(Function):
    """A function that calls many methods of its context."""

    def process(self, input: Any, context: Any) -> Any:
        context.get_logger().info("got %s", input)
        context.incr_counter("calls", 1)
        context.put_state("last", str(input))
        context.record_metric("length", len(str(input)))
        context.publish(
            context.get_user_config_value("side"),
            str(input) + "?",
            message_conf={
                "properties": {"from": context.get_current_message_topic_name()},
                "partition_key": context.get_partition_key(),
                "event_timestamp": 17,
            },
        )
        assert context.get_message_properties() == {"a": "b"}
        assert context.get_state("last") == str(input).encode()
        assert context.get_counter("calls") >= 1
        assert context.get_secret("token") in (None, "s3cret")
        assert context.get_function_id().count("/") == 2
        return f"{context.get_function_name()}:{input}"


class Pair:
    def __init__(self, a: int = 0, b: int = 0) -> None:
        self.a = a
        self.b = b


class PairSerDe(SerDe):
    def serialize(self, input: Pair) -> bytes:
        return f"{input.a},{input.b}".encode()

    def deserialize(self, input_bytes: bytes) -> Pair:
        a, b = input_bytes.decode().split(",")
        return Pair(int(a), int(b))


class AddToPair(Function):
    def process(self, input: Pair, context: Any) -> Pair:
        return Pair(input.a + 11, input.b + 24)


def fails_on_seven(value: str) -> str:
    if value == "7":
        raise ValueError("seven")
    return value


def hangs(value: str) -> None:
    print("hangs", flush=True)
    threading.Event().wait()


async def fails_on_seven_async(value: str) -> str:
    return fails_on_seven(value)


_seen: dict[str, int] = {}


def fails_twice_on_three(value: str) -> str:
    if value == "3":
        _seen[value] = _seen.get(value, 0) + 1
        if _seen[value] <= 2:
            raise ValueError("not yet")
    return value
