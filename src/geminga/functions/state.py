"""A function's state: values and counters in memory, stored in a keyed topic.

The newest message of a key holds its value, so that the topic can be compacted; without compaction the whole
topic is replayed. A durable subscription (`geminga.functions.state_topic.KEEPER`) retains the messages that
are not compacted yet.

Values have keys ``value/<key>``: the last writer of several instances wins. A counter is the sum of
``counter/<key>/<instance>`` over the instances; each instance writes only its own part. An instance number is
reserved by the name of the state's producer, which a broker admits only once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from geminga import ConsumerType, InitialPosition, MessageId, PartitionsRoutingMode
from geminga.asyncio import Admin, Client
from geminga.errors import CorruptPayload, MessageTooBig, ProducerBusy, PulsarException
from geminga.functions.result_producers import payload_bytes_max
from geminga.functions.state_topic import KEEPER, keep_bounded

INSTANCES_MAX = 4096

Change = tuple[str, "bytes | int | None"]
"""``value/<key>`` with its bytes, or ``counter/<key>`` with the number to add; None removes either."""


class State:
    """This instance's copy of a function's state. `commit` may be called on any thread."""

    def __init__(self, producer: Any, reader: Any, slot: int) -> None:
        self.producer = producer
        self._reader = reader
        self._slot = slot
        self._values: dict[str, bytes] = {}
        self._parts: dict[str, dict[int, int]] = {}
        self._unsettled: dict[str, int] = {}
        """Number of own writes per key that were not read back yet; values read meanwhile are older."""
        self._lock = threading.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._size_max = payload_bytes_max(producer)

    @staticmethod
    async def open(
        client: Client,
        topic: str,
        name: str,
        instance_id: int,
        failed: Callable[[Exception], None],
        open_admin: Callable[[], Awaitable[Admin]],
    ) -> State:
        """Open the state in ``topic`` and read it to its end. Raises errors of client and broker. ``failed``
        is called with the error if reading fails later. ``open_admin`` opens admin REST, by which the topic
        is compacted and trimmed."""
        keeper = await client.subscribe(
            topic,
            KEEPER,
            consumer_type=ConsumerType.Shared,
            initial_position=InitialPosition.Earliest,
            receiver_queue_size=1,
        )
        await keeper.close()
        slot = instance_id
        while True:
            try:
                producer = await client.create_producer(
                    topic, f"{name}-state-{slot}", send_timeout_millis=0, batching_enabled=True,
                    batching_max_publish_delay_ms=1, block_if_queue_full=True,
                    message_routing_mode=PartitionsRoutingMode.UseSinglePartition,
                )  # fmt: skip
                break
            except ProducerBusy:
                slot += 1
                if slot >= instance_id + INSTANCES_MAX:
                    raise
        reader = None
        try:
            reader = await client.create_reader(topic, MessageId.earliest, is_read_compacted=True)
            state = State(producer, reader, slot)
            while await reader.has_message_available():
                state._replay(await reader.read_next())
            names = await client.get_topic_partitions(topic)
        except BaseException:
            # A retry must not find the producer name taken by this attempt.
            for each in (reader, producer):
                if each is not None:
                    with contextlib.suppress(PulsarException):
                        await each.close()
            raise
        loop = asyncio.get_running_loop()
        state._tasks.append(loop.create_task(state._follow(failed)))
        state._tasks.append(loop.create_task(keep_bounded(open_admin, names)))
        return state

    async def _follow(self, failed: Callable[[Exception], None]) -> None:
        try:
            while True:
                self._replay(await self._reader.read_next())
        except Exception as error:  # also messages of other writers
            failed(error)

    def _replay(self, message: Any) -> None:
        key = message.partition_key()
        payload = None if message.has_null_value() else bytes(message.data())
        with self._lock:
            waiting = self._unsettled.get(key)
            if waiting is not None:
                if message.producer_name() == self.producer.producer_name():
                    if waiting > 1:
                        self._unsettled[key] = waiting - 1
                    else:
                        del self._unsettled[key]
                elif key.startswith("value/"):
                    return  # our write follows in the topic and wins
            self._set(key, payload)

    def _set(self, key: str, payload: bytes | None) -> None:
        kind, _, name = key.partition("/")
        if kind == "value":
            if payload is None:
                self._values.pop(name, None)
            else:
                self._values[name] = payload
        elif kind == "counter":
            name, _, slot = name.rpartition("/")
            if not slot.isdecimal() or (int(slot) == self._slot and key in self._unsettled):
                return
            parts = self._parts.setdefault(name, {})
            if payload is None:
                parts.pop(int(slot), None)
                if not parts:
                    del self._parts[name]
            else:
                try:
                    parts[int(slot)] = int(payload)
                except ValueError:
                    raise CorruptPayload(
                        f"the state's {key} is {payload[:80]!r}, not a whole number"
                    ) from None

    def value(self, key: str) -> bytes | None:
        with self._lock:
            return self._values.get(key)

    def counter(self, key: str) -> int:
        with self._lock:
            return sum(self._parts.get(key, {}).values())

    def commit(self, changes: list[Change]) -> list[tuple[str, bytes | None]]:
        """Apply the changes, and return keys and payloads of the messages to publish. Raises `MessageTooBig`
        for a value that exceeds the topic's limit, without applying any change."""
        for key, change in changes:
            if isinstance(change, bytes) and len(change) > self._size_max:
                raise MessageTooBig(
                    f"the state of {key.partition('/')[2]!r} has {len(change)} bytes; the broker takes "
                    f"{self._size_max}"
                )
        messages: list[tuple[str, bytes | None]] = []
        with self._lock:
            for key, change in changes:
                kind, _, name = key.partition("/")
                if kind == "value":
                    assert not isinstance(change, int)
                    self._note(messages, key, change)
                elif change is None:
                    for slot in list(self._parts.get(name, {})):
                        self._note(messages, f"counter/{name}/{slot}", None)
                    self._parts.pop(name, None)
                else:
                    assert isinstance(change, int)
                    parts = self._parts.setdefault(name, {})
                    parts[self._slot] = parts.get(self._slot, 0) + change
                    self._note(messages, f"counter/{name}/{self._slot}", str(parts[self._slot]).encode())
        return messages

    def _note(self, messages: list[tuple[str, bytes | None]], key: str, payload: bytes | None) -> None:
        if key.startswith("value/"):
            self._set(key, payload)
        self._unsettled[key] = self._unsettled.get(key, 0) + 1
        messages.append((key, payload))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(PulsarException):
            await self._reader.close()
        with contextlib.suppress(PulsarException):
            await self.producer.close()
