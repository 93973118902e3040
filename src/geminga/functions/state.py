"""A function's state: values and counters in a keyed topic, all of them in memory too.

The newest message of a key is what counts, so that the topic may be compacted; without compaction it is
replayed as a whole. A durable subscription (`geminga.functions.state_topic.KEEPER`) keeps the messages that
compaction has not covered.

Values are under ``value/<key>``: of several instances the last writer wins. A counter is the sum of
``counter/<key>/<instance>`` over the instances, each of which writes its own part alone: additions of
several instances add up. Which instance one is, is settled by the name of the state's producer, of which
a broker lets only one in.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from geminga.errors import MessageTooBig, ProducerBusy, PulsarException
from geminga.functions.sending import METADATA_BYTES
from geminga.functions.state_topic import KEEPER, keep_bounded

if TYPE_CHECKING:
    from geminga.asyncio import Admin, Client

INSTANCES_MAX = 4096

Change = tuple[str, "bytes | int | None"]
"""``value/<key>`` with its bytes, None to remove it; ``counter/<key>`` with what is added, None to remove."""


class State:
    """The state of one function, as this instance knows it. `commit` may be called on any thread."""

    def __init__(self, producer: Any, reader: Any, slot: int) -> None:
        self.producer = producer
        self._reader = reader
        self._slot = slot
        self._values: dict[str, bytes] = {}
        self._parts: dict[str, dict[int, int]] = {}
        self._unsettled: dict[str, int] = {}
        """Keys with writes of ours that did not come back yet: what is read meanwhile is older."""
        self._lock = threading.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._size_max = min(p.max_message_size for p in producer._state.partitions) - METADATA_BYTES

    @staticmethod
    async def open(
        client: Client,
        topic: str,
        name: str,
        instance_id: int,
        failed: Callable[[Exception], None],
        open_admin: Callable[[], Awaitable[Admin]],
    ) -> State:
        """The state in ``topic``, read to its end. Raises what client and broker report; ``failed`` is told
        why it cannot be followed any more. ``open_admin`` opens admin REST, which keeps the
        topic small."""
        import geminga

        keeper = await client.subscribe(
            topic,
            KEEPER,
            consumer_type=geminga.ConsumerType.Shared,
            initial_position=geminga.InitialPosition.Earliest,
            receiver_queue_size=1,
        )
        await keeper.close()
        slot = instance_id
        while True:
            try:
                producer = await client.create_producer(
                    topic, f"{name}-state-{slot}", send_timeout_millis=0, batching_enabled=True,
                    batching_max_publish_delay_ms=1, block_if_queue_full=True,
                    message_routing_mode=geminga.PartitionsRoutingMode.UseSinglePartition,
                )  # fmt: skip
                break
            except ProducerBusy:
                slot += 1
                if slot >= instance_id + INSTANCES_MAX:
                    raise
        reader = None
        try:
            reader = await client.create_reader(topic, geminga.MessageId.earliest, is_read_compacted=True)
            state = State(producer, reader, slot)
            while await reader.has_message_available():
                state._replay(await reader.read_next())
            names = await client.get_topic_partitions(topic)
        except BaseException:
            # Who asks again must not find the name taken by what is left of this.
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
        except Exception as error:  # a message that is none of ours, too
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
                    return  # ours is behind it in the topic, and is what everybody will have
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
            if not slot.isdigit() or (int(slot) == self._slot and key in self._unsettled):
                return
            parts = self._parts.setdefault(name, {})
            if payload is None:
                parts.pop(int(slot), None)
                if not parts:
                    del self._parts[name]
            else:
                parts[int(slot)] = int(payload)

    def value(self, key: str) -> bytes | None:
        with self._lock:
            return self._values.get(key)

    def counter(self, key: str) -> int:
        with self._lock:
            return sum(self._parts.get(key, {}).values())

    def commit(self, changes: list[Change]) -> list[tuple[str, bytes | None]]:
        """The changes hold from now on; keys and payloads of the messages that are to be published. Raises
        `MessageTooBig` for a value that the topic cannot hold, and then none of them does."""
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
