import asyncio
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
from scripted_broker import UNSOLICITED, ScriptedBroker, command
from waiting import eventually_async, loop_turns, never_async

from geminga.client.io.pool import ConnectionPool
from geminga.client.options.settings import ClientSettings
from geminga.connection.addresses import Address
from geminga.connection.authentication import TokenCredentials
from geminga.errors import AlreadyClosed, ConnectError, Timeout, TopicNotFound
from geminga.wire.frames import encode_command, encode_message, encode_send
from geminga.wire.proto import pulsar_wire_pb2 as pb

Type = pb.BaseCommand


@asynccontextmanager
async def pooled(**settings):
    """A scripted broker, a pool of connections, and the broker's address."""
    settings.setdefault("connection_timeout_seconds", 5.0)
    async with ScriptedBroker() as broker:
        pool = ConnectionPool(ClientSettings(service_url=broker.url, **settings), asyncio.get_running_loop())
        yield broker, pool, Address("127.0.0.1", broker.port)
        pool.close()


class Recorder:
    """A handle that notes what it gets."""

    def __init__(self):
        self.frames = []
        self.detached = []

    def on_frame(self, frame):
        self.frames.append(frame)

    def on_detached(self, error, assigned):
        self.detached.append((error, assigned))


def producer_command(request_id, topic="t"):
    body = pb.CommandProducer(topic=topic, producer_id=1, request_id=request_id)
    return pb.BaseCommand(type=Type.PRODUCER, producer=body)


async def test_one_connection_is_shared():
    async with pooled() as (broker, pool, address):
        first, second = await asyncio.gather(pool.get(address), pool.get(address))
        assert first is second
        assert first.server_version == "scripted"
        assert first.max_message_size == 5 * 1024 * 1024
        assert len(broker.peers) == 1
        other = await pool.get(address, proxy_to_broker="b:1")
        assert other is not first
        assert broker.peers[1].connect.proxy_to_broker_url == "b:1"
        assert len(pool.connections) == 2


async def test_several_connections_per_broker():
    async with pooled(connections_per_broker=3) as (_broker, pool, address):
        connections = {await pool.get(address) for _ in range(9)}
        assert len(connections) == 3


async def test_a_connection_lost_while_it_opens_is_not_kept(monkeypatch):
    async with pooled() as (_, pool, address):
        lost = await pool.get(address)
        lost.close(ConnectError("lost"))
        monkeypatch.setattr(pool, "_attempt", AsyncMock(return_value=lost))
        assert await pool.get(address) is lost
        monkeypatch.undo()
        assert not (await pool.get(address)).closed


async def test_a_request_times_out():
    async with pooled() as (broker, pool, address):
        broker.answers[Type.PRODUCER] = lambda peer, frame: None
        connection = await pool.get(address)
        with pytest.raises(Timeout, match="did not answer PRODUCER within"):
            await connection.request(producer_command, 0.02)
        assert not connection.closed


async def test_a_lost_connection_fails_its_requests_and_detaches_handles():
    async with pooled() as (broker, pool, address):
        broker.answers[Type.PRODUCER] = lambda peer, frame: peer.drop()
        connection = await pool.get(address)
        handle = Recorder()
        connection.add_producer(1, handle)
        connection.watch(handle, handle.on_detached)
        with pytest.raises(ConnectError, match="lost"):
            await connection.request(producer_command, 5.0)
        ((error, assigned),) = handle.detached
        assert isinstance(error, ConnectError)
        assert assigned is None
        with pytest.raises(ConnectError):
            await connection.request(producer_command, 5.0)
        with pytest.raises(ConnectError):
            await connection.drain()


async def test_frames_reach_their_handle_until_it_is_closed():
    async with pooled() as (broker, pool, address):
        connection = await pool.get(address)
        handle = Recorder()
        connection.add_consumer(4, handle)
        connection.watch(handle, handle.on_detached)
        entry = b"\x00\x00\x00\x00"
        message = encode_message(4, 1, 2, -1, len(entry)) + entry
        stray = encode_message(5, 1, 2, -1, len(entry)) + entry
        ids = {"consumer_id": 4, "request_id": UNSOLICITED}
        close = command(
            Type.CLOSE_CONSUMER, "close_consumer", **ids, assignedBrokerServiceUrl="pulsar://next:6650"
        )
        peer = broker.peers[0]
        peer.transport.write(message + stray + message)
        peer.send(close)
        peer.transport.write(message)
        await eventually_async(lambda: handle.detached)
        await never_async(lambda: len(handle.frames) != 2, 0.01)
        assert [frame.consumer_id for frame in handle.frames] == [4, 4]
        assert handle.detached == [(None, Address("next", 6650))]


async def test_what_is_written_after_the_connection_is_lost_is_dropped():
    """uvloop's transport raises then, until it has said that it is lost."""
    async with pooled() as (_broker, pool, address):
        connection = await pool.get(address)
        raised = []

        def closed(data):
            raise RuntimeError("the handler is closed")

        transport = connection._transport
        connection._transport = SimpleNamespace(write=closed, writelines=closed, is_closing=lambda: True)
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
        connection.write(b"one")
        await loop_turns()
        connection.write_many([b"two", b"three"])
        await loop_turns()
        connection._transport = transport
        assert not raised


async def test_back_pressure():
    async with pooled() as (broker, pool, address):
        connection = await pool.get(address)
        broker.peers[0].transport.pause_reading()
        entry = bytes(1024 * 1024)
        for number in range(50):
            connection.write_many([encode_send(1, number, 1, None, len(entry)), entry])
            await loop_turns()
            if not connection.writable:
                break
        assert not connection.writable
        broker.peers[0].transport.resume_reading()
        await asyncio.wait_for(connection.drain(), 60)
        assert connection.writable


async def test_bad_bytes_right_behind_a_good_frame_end_the_connection_at_once():
    async with pooled() as (broker, pool, address):
        connection = await pool.get(address)
        ping = encode_command(pb.BaseCommand(type=Type.PING, ping=pb.CommandPing()))
        broker.peers[0].transport.write(ping + b"HTTP/1.1 400 Bad Request\r\n\r\n")
        async with asyncio.timeout(60):
            await eventually_async(lambda: connection.closed)
        with pytest.raises(ConnectError, match=rf"{address.port}: an HTTP answer came in"):
            await connection.drain()


async def test_a_refusal_without_words_names_the_topic_and_what_to_do():
    async with pooled() as (broker, pool, address):

        def refuse(peer, frame):
            broker.refuse(peer, frame.command.producer.request_id, pb.TopicNotFound, "")

        broker.answers[Type.PRODUCER] = refuse
        connection = await pool.get(address)
        make = partial(producer_command, topic="persistent://a/b/c")
        with pytest.raises(
            TopicNotFound, match=r"^persistent://a/b/c: the topic does not exist .*geminga topics create"
        ):
            await connection.request(make, 5)


async def test_closing_the_pool_ends_the_wait_for_a_connection_with_an_error():
    """A `CancelledError` would look as if the caller itself had been cancelled."""
    async with pooled() as (broker, pool, address):
        broker.answers[Type.CONNECT] = lambda peer, frame: None
        waiting = [asyncio.ensure_future(pool.get(address)) for _ in range(2)]
        await eventually_async(lambda: broker.peers)
        pool.close()
        for waiter in waiting:
            with pytest.raises(AlreadyClosed, match="client is closed"):
                await waiter


async def test_credentials_are_refreshed_from_the_supplier():
    tokens = iter(["first", "second"])

    async with pooled(credentials=TokenCredentials(lambda: next(tokens))) as (broker, pool, address):
        answered = asyncio.get_running_loop().create_future()
        broker.answers[Type.AUTH_RESPONSE] = lambda peer, frame: answered.set_result(
            frame.command.authResponse.response.auth_data
        )
        connection = await pool.get(address)
        assert broker.peers[0].connect.auth_data == b"first"
        challenge = pb.BaseCommand(type=Type.AUTH_CHALLENGE)
        challenge.authChallenge.challenge.auth_method_name = "token"
        challenge.authChallenge.challenge.auth_data = b"PulsarAuthRefresh"
        broker.peers[0].send(challenge)
        assert await answered == b"second"
        assert not connection.closed


async def test_a_request_that_cannot_wait_for_access_keeps_its_time_limit():
    async with pooled() as (broker, pool, address):
        connection = await pool.get(address)
        broker.answers[Type.PRODUCER] = broker.let_wait
        with pytest.raises(ConnectError, match="let a request wait"):
            await asyncio.wait_for(connection.request(producer_command, 1), 60)
        assert connection.closed


async def test_keepalive_closes_a_dead_connection():
    async with pooled(keepalive_interval_seconds=0.05) as (broker, pool, address):
        broker.answers[Type.PING] = lambda peer, frame: None
        connection = await pool.get(address)
        await eventually_async(lambda: connection.closed)
        with pytest.raises(ConnectError, match="sent nothing"):
            await connection.drain()


async def test_a_failing_handle_costs_its_connection_only(caplog):
    class Broken(Recorder):
        def on_frame(self, frame):
            raise KeyError("bug")

    async with pooled() as (broker, pool, address):
        connection = await pool.get(address)
        handle = Broken()
        connection.add_consumer(4, handle)
        connection.watch(handle, handle.on_detached)
        broker.peers[0].transport.write(encode_message(4, 1, 2, -1, 4) + bytes(4))
        await eventually_async(lambda: handle.detached)
        assert connection.closed
        assert not (await pool.get(address)).closed
    assert "unexpected error" in caplog.text
