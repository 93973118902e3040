"""A disk that hangs: keep-alives stay in time, and all work resumes when the disk responds."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from servers import new_server

from geminga.broker.serving.server import BrokerServer
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from geminga.wire.frames import FrameDecoder, encode_send
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import SUBSCRIBE, Command, encoded, entry_bytes
from tests.support.faulty_filesystem import FaultyFileSystem, SimulatedDisk

PING_SECONDS_MAX = 20.0
"""A disk that does not answer does so for ever: who waited for it would wait for more than `TIMEOUT`."""
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
        await client.call(Command.CONNECTED, "connect", client_version="test", protocol_version=21)
        return client

    def send(self, body: str, **fields: Any) -> None:
        self._writer.write(encoded(body, **fields))

    def publish(self, count: int) -> None:
        for number in range(count):
            entry = entry_bytes(b"m%d" % number, sequence_id=number)
            self._writer.write(encode_send(1, number, 1, None, len(entry)) + entry)

    async def call(self, kind: int, *words: Any, **fields: Any) -> list[Any]:
        self.send(*words, **fields)
        return await self.expect(kind)

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
        await self.call(Command.PONG, "ping")
        return time.perf_counter() - began

    def close(self) -> None:
        self._writer.close()


async def check_keep_alives(*clients: Client) -> None:
    """Each is answered in time."""
    for _ in range(10):
        for client in clients:
            assert await client.ping() < PING_SECONDS_MAX


def server_on(files: FaultyFileSystem) -> BrokerServer:
    settings = StoreSettings(cache_bytes=0, preallocate_bytes=0)
    return new_server(
        lambda wakeup: FileStore.open("/data", filesystem=files, settings=settings, wakeup=wakeup)
    )


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
async def test_keep_alives_are_answered_while_reads_and_writes_hang(kind):
    filesystem = FaultyFileSystem(SimulatedDisk())
    server = server_on(filesystem)
    await server.start()
    try:
        producer = await Client.connect(server.settings.port)
        await producer.call(Command.PRODUCER_SUCCESS, "producer", topic="t", producer_id=1, request_id=1)
        producer.publish(ENTRIES)
        await producer.expect(Command.SEND_RECEIPT, ENTRIES)
        reader, bystander = [await Client.connect(server.settings.port) for _ in range(2)]
        fields = {"subType": pb.CommandSubscribe.SubType.Value(kind), "initialPosition": 1}
        reader.send("subscribe", **(SUBSCRIBE | fields), request_id=2)
        await reader.expect(Command.SUCCESS)
        filesystem.answers.clear()
        reader.send("flow", consumer_id=1, messagePermits=1000)
        reader.send("getLastMessageId", consumer_id=1, request_id=3)
        producer.publish(5)
        await check_keep_alives(bystander, reader)
        filesystem.answers.set()
        assert len(await reader.expect(Command.MESSAGE, ENTRIES)) >= ENTRIES
        assert await bystander.ping() < PING_SECONDS_MAX
        for client in (producer, reader, bystander):
            client.close()
    finally:
        filesystem.answers.set()
        await server.stop()


# --- topics that are loaded from a disk that does not answer ---
class Stalling:
    """A broker on a simulated disk that knows some topics from an earlier life and has none in memory."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.filesystem: FaultyFileSystem
        self.server: BrokerServer

    async def start(self) -> None:
        self.filesystem = FaultyFileSystem(self.disk)
        self.server = server_on(self.filesystem)
        await self.server.start()
        self.server.start_web()
        await self.server.web_ready.wait()

    async def __aenter__(self) -> Stalling:
        await self.start()
        client = await self.connect()
        for number, topic in enumerate(("t", "other", "doomed")):
            fields = {"topic": topic, "request_id": number}
            client.send("producer", producer_id=number, **fields)
            client.send("subscribe", subscription="s", consumer_id=number, subType=1, **fields)
        await client.expect(Command.PRODUCER_SUCCESS, 3)
        await client.expect(Command.SUCCESS, 3)
        client.close()
        await self.server.stop()
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.filesystem.answers.set()
        await self.server.stop()

    async def connect(self) -> Client:
        return await Client.connect(self.server.settings.port)

    async def web(self, method: str, path: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.settings.web_port)
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        async with asyncio.timeout(TIMEOUT):
            answer = await reader.read()
        writer.close()
        return answer


async def test_clients_do_not_wait_for_topics_that_others_load_from_a_hanging_disk():
    async with Stalling() as broker:
        one, two, gone, bystander = [await broker.connect() for _ in range(4)]
        broker.filesystem.answers.clear()
        for peer in (one, two):
            peer.send("producer", topic="t", producer_id=1, request_id=1)
            peer.send("subscribe", topic="t", subscription="s", consumer_id=1, request_id=2, subType=1)
            peer.send("partitionMetadata", topic="t", request_id=3)
            peer.send("getSchema", topic="t", request_id=4)
        one.send("subscribe", topic="fresh", subscription="s", consumer_id=2, request_id=5, subType=1)
        one.send("producer", topic="other", producer_id=2, request_id=6)
        one.send("close_producer", producer_id=2, request_id=7)
        gone.send("producer", topic="other", producer_id=1, request_id=1)
        base = "/admin/v2/persistent/public/default"
        asked = [
            asyncio.create_task(broker.web(*each))
            for each in (
                ("GET", f"{base}/t/stats"), ("GET", f"{base}/nowhere/stats"),
                ("DELETE", f"{base}/doomed"), ("PUT", f"{base}/made"),
            )
        ]  # fmt: skip
        for _ in range(2):
            await check_keep_alives(bystander, one)
            gone.close()
        assert not broker.server.broker.topics.loaded()
        broker.filesystem.answers.set()
        for peer in (one, two):
            await peer.expect(Command.PRODUCER_SUCCESS)
            await peer.expect(Command.PARTITIONED_METADATA_RESPONSE)
            await peer.expect(Command.GET_SCHEMA_RESPONSE)
        successes = await one.expect(Command.SUCCESS, 3)
        answered = {each.command.success.request_id for each in successes}
        assert answered == {2, 5, 7}
        statuses = [answer.split(b" ", 2)[1] for answer in await asyncio.gather(*asked)]
        assert statuses == [b"200", b"404", b"204", b"204"]
        topics = broker.server.broker.topics
        loaded = {name.local: topics.in_memory(name) for name in topics.loaded()}
        assert len(loaded["t"].access.producers) == 2
        assert "doomed" not in loaded
        assert not loaded["other"].access.producers, "one closed its producer, the other has gone"


async def test_clients_do_not_wait_for_lists_that_others_read_from_a_hanging_disk():
    async with Stalling() as broker:
        one, two, bystander = [await broker.connect() for _ in range(3)]
        broker.filesystem.answers.clear()
        place = "public/default"
        one.send("getTopicsOfNamespace", namespace=place, request_id=1)
        two.send("watchTopicList", namespace=place, topics_pattern=".*", watcher_id=1, request_id=2)
        lists = [
            asyncio.create_task(broker.web("GET", f"/admin/v2/{path}"))
            for path in (
                f"namespaces/{place}/topics", f"persistent/{place}", f"persistent/{place}/partitioned",
            )
        ]  # fmt: skip
        removal = asyncio.create_task(broker.web("DELETE", f"/admin/v2/namespaces/{place}"))
        await check_keep_alives(bystander)
        broker.filesystem.answers.set()
        (listed,) = await one.expect(Command.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        names = [f"persistent://{place}/{name}" for name in ("doomed", "other", "t")]
        assert list(listed.command.getTopicsOfNamespaceResponse.topics) == names
        (watched,) = await two.expect(Command.WATCH_TOPIC_LIST_SUCCESS)
        assert list(watched.command.watchTopicListSuccess.topic) == names
        answers = await asyncio.gather(*lists)
        assert [answer.count(b"persistent://") for answer in answers] == [3, 3, 0]
        assert b"Cannot delete non empty namespace" in await removal


async def test_an_unreadable_catalog_is_reported_to_its_requesters_alone():
    async with Stalling() as broker:
        peer, bystander = await broker.connect(), await broker.connect()
        await bystander.call(Command.PRODUCER_SUCCESS, "producer", topic="t", producer_id=1, request_id=1)
        broker.filesystem.database_errors.extend(["disk I/O error"] * 10_000)
        for number, topic in enumerate(("other", "doomed", "fresh") * 10):
            peer.send("producer", topic=topic, producer_id=number, request_id=number)
        peer.send("getTopicsOfNamespace", namespace="public/default", request_id=100)
        errors = await peer.expect(Command.ERROR, 31)
        assert {each.command.error.error for each in errors} == {pb.PersistenceError}
        asked = (broker.web("GET", "/admin/v2/persistent/public/default") for _ in range(5))
        answers = await asyncio.gather(*asked)
        assert {answer.split(b" ", 2)[1] for answer in answers} == {b"503"}
        bystander.publish(20)
        await bystander.expect(Command.SEND_RECEIPT, 20)
        assert await bystander.ping() < PING_SECONDS_MAX
        assert broker.server.store.failure is None
        broker.filesystem.database_errors.clear()
        await peer.call(Command.PRODUCER_SUCCESS, "producer", topic="other", producer_id=200, request_id=200)
        await peer.call(Command.PRODUCER_SUCCESS, "producer", topic="fresh", producer_id=201, request_id=201)


async def test_a_broker_stops_while_topics_are_loaded_from_a_disk_that_hangs():
    async with Stalling() as broker:
        peer = await broker.connect()
        broker.filesystem.answers.clear()
        for number in range(600):
            peer.send("producer", topic=f"t-{number}", producer_id=number, request_id=number)
        await peer.ping()
        asyncio.get_running_loop().call_later(0.3, broker.filesystem.answers.set)
