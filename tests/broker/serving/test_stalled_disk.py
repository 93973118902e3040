"""A disk that does not answer: nobody's keep-alive is late, and all goes on when it answers again."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from geminga.broker.serving.server import BrokerServer
from geminga.broker.settings import BrokerSettings
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from geminga.testing.faulty_filesystem import FaultyFileSystem, SimulatedDisk
from geminga.wire.frames import FrameDecoder, encode_command, encode_send
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import entry_bytes

Command = pb.BaseCommand
PING_SECONDS_MAX = 0.5
TIMEOUT = 30.0
ENTRIES = 200


class Client:
    """A connection that waits for frames of one type."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()
        self._frames: list[Any] = []

    @classmethod
    async def connect(cls, port: int) -> Client:
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        client.send("connect", client_version="test", protocol_version=21)
        await client.expect(Command.CONNECTED)
        return client

    def send(self, body: str, **fields: Any) -> None:
        command = pb.BaseCommand(type=pb.BaseCommand.DESCRIPTOR.fields_by_name[body].number)  # type: ignore[arg-type]
        message = getattr(command, body)
        message.SetInParent()
        for name, value in fields.items():
            setattr(message, name, value)
        self._writer.write(encode_command(command))

    def publish(self, count: int) -> None:
        for number in range(count):
            entry = entry_bytes(b"m%d" % number, sequence_id=number)
            self._writer.write(encode_send(1, number, 1, None, len(entry)) + entry)

    async def expect(self, kind: int, count: int = 1) -> list[Any]:
        found: list[Any] = []
        async with asyncio.timeout(TIMEOUT):
            while True:
                found += [frame for frame in self._frames if frame.type == kind]
                self._frames = [frame for frame in self._frames if frame.type != kind]
                if len(found) >= count:
                    return found
                data = await self._reader.read(1 << 16)
                assert data, "the broker hung up"
                for frame in self._decoder.feed(data):
                    if frame.type == Command.PING:
                        self.send("pong")
                    else:
                        self._frames.append(frame)

    async def ping(self) -> float:
        began = time.perf_counter()
        self.send("ping")
        await self.expect(Command.PONG)
        return time.perf_counter() - began

    def close(self) -> None:
        self._writer.close()


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
def test_keep_alives_are_answered_while_reads_and_writes_hang(kind: str) -> None:
    asyncio.run(_check(kind))


async def _check(kind: str) -> None:
    filesystem = FaultyFileSystem(SimulatedDisk())
    settings = StoreSettings(cache_bytes=0, preallocate_bytes=0)
    server = BrokerServer(
        BrokerSettings(memory=True, port=0, web_port=0),
        store=lambda wakeup: FileStore.open("/data", filesystem=filesystem, settings=settings, wakeup=wakeup),
    )
    await server.start()
    try:
        producer = await Client.connect(server.settings.port)
        producer.send("producer", topic="t", producer_id=1, request_id=1)
        await producer.expect(Command.PRODUCER_SUCCESS)
        producer.publish(ENTRIES)
        await producer.expect(Command.SEND_RECEIPT, ENTRIES)
        reader, bystander = [await Client.connect(server.settings.port) for _ in range(2)]
        kind_number = pb.CommandSubscribe.SubType.Value(kind)
        reader.send(
            "subscribe", topic="t", subscription="s", consumer_id=1, request_id=2, subType=kind_number,
            initialPosition=1,
        )  # fmt: skip
        await reader.expect(Command.SUCCESS)
        filesystem.answers.clear()
        reader.send("flow", consumer_id=1, messagePermits=1000)
        reader.send("getLastMessageId", consumer_id=1, request_id=3)
        producer.publish(5)
        for _ in range(10):
            assert await bystander.ping() < PING_SECONDS_MAX
            assert await reader.ping() < PING_SECONDS_MAX
        filesystem.answers.set()
        assert len(await reader.expect(Command.MESSAGE, ENTRIES)) >= ENTRIES
        assert await bystander.ping() < PING_SECONDS_MAX
        for client in (producer, reader, bystander):
            client.close()
    finally:
        filesystem.answers.set()
        await server.stop()
