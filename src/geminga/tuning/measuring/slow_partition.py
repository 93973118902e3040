"""A slow partition of an otherwise healthy topic: a proxy between producers and a real broker.

Producers connect to the proxy's front instead of the broker. It forwards everything, but rewrites addresses
in lookup responses: the slow partition gets the address of the proxy's gate, all others the broker's. After
`slow_down` the gate forwards a given number of messages per second; responses are not delayed. This works
with any client and broker, without their cooperation.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from geminga.errors import ConnectError, InvalidUrl
from geminga.tuning.measuring.host import host_and_port
from geminga.wire.frames import encode_command, parse_command
from geminga.wire.proto import pulsar_wire_pb2 as pb

START_SECONDS_MAX = 10.0
BUFFER_BYTES = 1 << 16
"""Buffer of the gate; small, so that the producer notices the slow partition."""
Filter = Callable[[bytes], "Coroutine[Any, Any, bytes]"]


class SlowPartition:
    """A running proxy; producers connect to ``service_url``."""

    def __init__(self, service_url: str, partition: int, messages_per_second: float) -> None:
        if service_url.startswith("pulsar+ssl"):
            raise InvalidUrl(
                "a slow partition needs a plain pulsar:// address: what is sealed cannot be relayed"
            )
        self._broker_url = service_url.split(",")[0]
        self._suffix = f"-partition-{partition}"
        self._rate = messages_per_second
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="geminga-relay", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._free_at = 0.0
        self._slow = False
        self.service_url = ""
        self._gate_url = ""

    def __enter__(self) -> SlowPartition:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(START_SECONDS_MAX)
        return self

    def __exit__(self, *exception: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(START_SECONDS_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_SECONDS_MAX)

    def slow_down(self) -> None:
        """Slow the partition down."""
        self._slow = True

    async def _listen(self) -> None:
        self._servers = [
            await asyncio.start_server(self._front, "127.0.0.1", 0),
            await asyncio.start_server(self._gate, "127.0.0.1", 0, limit=BUFFER_BYTES),
        ]
        front, gate = (server.sockets[0].getsockname()[1] for server in self._servers)
        self.service_url, self._gate_url = f"pulsar://127.0.0.1:{front}", f"pulsar://127.0.0.1:{gate}"

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- connections ------------------------------------------------------------------------------

    async def _front(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked: dict[int, str] = {}

        async def remember(frame: bytes) -> bytes:
            if frame[9] == pb.BaseCommand.LOOKUP:
                lookup = _command(frame).lookupTopic
                asked[lookup.request_id] = lookup.topic
            return frame

        async def rewrite(frame: bytes) -> bytes:
            return self._rewritten(frame, asked) if frame[9] == pb.BaseCommand.LOOKUP_RESPONSE else frame

        await self._relay(reader, writer, remember, rewrite)

    async def _gate(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def slow(frame: bytes) -> bytes:
            if frame[9] == pb.BaseCommand.SEND:
                await self._wait_for_room(_command(frame).send.num_messages)
            return frame

        await self._relay(reader, writer, slow, _unchanged)

    async def _wait_for_room(self, messages: int) -> None:
        if not self._slow:
            return
        now = self._loop.time()
        start = max(now, self._free_at)
        self._free_at = start + messages / self._rate
        await asyncio.sleep(start - now)

    def _rewritten(self, frame: bytes, asked: dict[int, str]) -> bytes:
        command = _command(frame)
        answer = command.lookupTopicResponse
        topic = asked.pop(answer.request_id, "")
        if answer.response == pb.CommandLookupTopicResponse.Connect:
            if topic.endswith(self._suffix):
                answer.brokerServiceUrl = self._gate_url
            elif answer.proxy_through_service_url:
                answer.brokerServiceUrl = self._broker_url
            answer.proxy_through_service_url = False
        return encode_command(command)

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        to_broker: Filter,
        to_client: Filter,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._relay_both_ways(reader, writer, to_broker, to_client)
        except asyncio.CancelledError:
            # The measurement is over. Some versions of asyncio report a cancelled handler as a failed one,
            # with a traceback.
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _relay_both_ways(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        to_broker: Filter,
        to_client: Filter,
    ) -> None:
        try:
            broker_reader, broker_writer = await asyncio.open_connection(
                *host_and_port(self._broker_url, 6650)
            )
        except OSError as error:
            raise ConnectError(f"no broker at {self._broker_url}: {error}") from None
        ways = [
            asyncio.ensure_future(_pass_on(reader, broker_writer, to_broker)),
            asyncio.ensure_future(_pass_on(broker_reader, writer, to_client)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            broker_writer.close()


async def _unchanged(frame: bytes) -> bytes:
    return frame


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Filter) -> None:
    """Forward frames from one side to the other until it closes."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            size = await reader.readexactly(4)
            frame = size + await reader.readexactly(int.from_bytes(size, "big"))
            writer.write(await change(frame))
            await writer.drain()


def _command(frame: bytes) -> pb.BaseCommand:
    return parse_command(frame[8 : 8 + int.from_bytes(frame[4:8], "big")])
