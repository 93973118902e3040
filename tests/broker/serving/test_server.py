"""The broker's sockets: start, stop, back-pressure, caps, bad peers, idleness."""

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from doubles import raising
from insides import server_of
from servers import new_server, serving
from waiting import eventually, eventually_async, eventually_awaited, never_async
from web_requests import ask

from geminga.broker.commands.session import SessionState
from geminga.broker.commands.table import TABLE
from geminga.broker.runtime.rate_limited_logger import LINES_MAX
from geminga.broker.serving.embedded import embedded
from geminga.broker.serving.listening import PortInUse, bind
from geminga.broker.serving.server import PeerConnection
from geminga.errors import StoreStopped, UsageError
from geminga.ids import TopicName
from geminga.ledger.api import Buffer, Done
from geminga.ledger.memory import MemoryStore
from geminga.wire.frames import FrameDecoder, encode_send
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import encoded, encoded_ack, entry_bytes
from tests.support.insides import inside

CONNECT = encoded("connect", client_version="test", protocol_version=19)
PING = encoded("ping")


class Peer:
    """A blocking connection that speaks frames."""

    def __init__(self, port: int, *, handshake: bool = True) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.decoder = FrameDecoder()
        self.frames: list[Any] = []
        if handshake:
            self.socket.sendall(CONNECT)
            assert self.next().type == pb.BaseCommand.CONNECTED

    def next(self) -> Any:
        """The next frame; EOFError when the broker closed."""
        while not self.frames:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self.frames += self.decoder.feed(data)
        return self.frames.pop(0)

    def answers(self) -> bool:
        self.socket.sendall(PING)
        return bool(self.next().type == pb.BaseCommand.PONG)

    def is_closed(self) -> bool:
        try:
            while True:
                self.next()
        except (EOFError, ConnectionError):
            return True

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def peers():
    made: list[Peer] = []

    def new(port: int, **options: Any) -> Peer:
        made.append(Peer(port, **options))
        return made[-1]

    yield new
    for peer in made:
        peer.close()


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"port {port} is in use.*--port 0"):
            embedded(port=port)
        with pytest.raises(PortInUse, match="--web-port"):
            embedded(web_port=port)


def test_a_failed_start_leaves_nothing_open(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PortInUse):
        embedded(tmp_path / "s", web_port=taken.getsockname()[1])
    with embedded(tmp_path / "s"):
        pass


def test_a_host_of_another_machine_is_refused():
    for host in ("192.0.2.1", "no-such-host.invalid"):
        with pytest.raises(UsageError, match="no address of this machine"):
            bind(host, 0, "port")


def test_a_wildcard_host_serves_ipv4_and_ipv6(peers):
    with embedded(host="0.0.0.0", web_port=None) as broker:
        assert peers(broker.settings.port).answers()
        if socket.has_dualstack_ipv6():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("::1", broker.settings.port), 60) as six,
            ):
                six.sendall(CONNECT)
                assert six.recv(100)


def test_a_protocol_error_closes_only_its_connection(peers, caplog):
    with embedded(web_port=None, handshake_seconds=1.0) as broker:
        good = peers(broker.settings.port)
        for junk in (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
            b"\xff\xff\xff\xff" + b"x" * 100,
            b"\x00\x00\x00\x00\x00\x00\x00\x00",
            b"\x00\x00\x00\x05\x00\x00\x00\x09hello",
            b"\x00\x00\x00\x05\x00\x00\x00\x00\x00",
            b"\x00\x00\x00\x06\x00\x00\x00\x02\x08\x12",
            b"\x00\x00\x00\x06\x00\x00\x00\x02\xff\xff",
            b"\x00\x00\x00\x08\x00\x00\x00\x04\xff\xff\xff\xff",
            CONNECT + CONNECT,
            PING[:5],
        ):
            bad = peers(broker.settings.port, handshake=False)
            bad.socket.sendall(junk)
            assert bad.is_closed(), junk
            assert good.answers()
        silent = peers(broker.settings.port, handshake=False)
        assert silent.is_closed()
        assert good.answers()
    errors = [r for r in caplog.records if r.levelno >= logging.ERROR and r.name.startswith("geminga.broker")]
    assert not errors, "a peer's fault is not our error"


def test_an_internal_error_closes_one_connection_and_is_counted(peers, caplog, monkeypatch):
    monkeypatch.setitem(TABLE.handlers, pb.BaseCommand.PONG, raising(KeyError("a fault of ours")))
    with embedded(web_port=None) as broker:
        bystander = peers(broker.settings.port)
        for _ in range(3):
            victim = peers(broker.settings.port)
            victim.socket.sendall(encoded("pong"))
            assert victim.is_closed()
        assert bystander.answers()
        assert server_of(broker).broker.scheduler.failures["session"] == 3
    assert caplog.text.count("session failed") == 1, "one line for a peer that comes again and again"
    assert "127.0.0.1" in caplog.text


def test_connections_beyond_the_limit_are_refused(peers):
    with embedded(web_port=None, connections_max=2) as broker:
        first, second = peers(broker.settings.port), peers(broker.settings.port)
        assert peers(broker.settings.port, handshake=False).is_closed()
        assert first.answers()
        second.close()

        def is_served() -> bool:
            with contextlib.suppress(EOFError, ConnectionError):
                return peers(broker.settings.port).answers()
            return False

        eventually(is_served)


async def test_the_memory_for_a_peer_that_never_reads_is_bounded():
    limits = {"write_buffer_high_bytes": 20_000, "write_buffer_low_bytes": 1_000}
    async with serving(web_port=None, **limits, write_buffer_limit_bytes=1_000_000) as server:
        loop = asyncio.get_running_loop()
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            # Small kernel buffers, which accepted connections inherit: they are full sooner.
            server._listeners[0].sockets[0].setsockopt(socket.SOL_SOCKET, option, 65_536)
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.setblocking(False)
        await loop.sock_connect(peer, ("127.0.0.1", server.settings.port))
        await loop.sock_sendall(peer, CONNECT)
        # The broker answers each PING, and the peer does not read the PONGs. At some point the broker
        # stops reading too, and then the kernel takes no more from the sender.
        sent, flood = 0, PING * 2000
        await eventually_async(lambda: server.connections)
        (connection,) = server.connections
        while sent < 200_000_000:
            sending = asyncio.ensure_future(loop.sock_sendall(peer, flood))
            done, _ = await asyncio.wait([sending], timeout=0.7)
            while not done and connection.writable:  # it was this process that stood still
                done, _ = await asyncio.wait([sending], timeout=0.7)
            if not done:
                sending.cancel()
                break
            sent += len(flood)
        transport = connection._transport
        assert transport.get_write_buffer_size() < 1_000_000
        assert not connection.writable
        # When the peer reads at last, the connection continues.
        got = 0
        while got < sent:
            got += len(await asyncio.wait_for(loop.sock_recv(peer, 1 << 20), 60))
        async with asyncio.timeout(60):
            while not connection.writable:
                await loop.sock_recv(peer, 1 << 20)
        peer.close()


async def test_beyond_the_limit_of_unread_bytes_only_peers_that_read_are_written_to():
    async with serving(web_port=None, unsent_bytes_max=65_536) as server:
        reader, _ = await asyncio.open_connection("127.0.0.1", server.settings.port)
        await eventually_async(lambda: server.connections)
        (slow,) = server.connections
        await asyncio.open_connection("127.0.0.1", server.settings.port)
        await eventually_async(lambda: len(server.connections) == 2)
        other = next(each for each in server.connections if each is not slow)
        slow.write(bytes(20_000_000))
        slow.flush()
        assert server.unsent.is_full
        assert other.writable
        assert not slow.writable
        await reader.readexactly(20_000_000)
        await eventually_async(lambda: slow.writable)
        assert not server.unsent.is_full


@pytest.mark.parametrize("step", ["_stop_accepting", "_take_in_what_came", "_drain_connections"])
async def test_a_cancelled_stop_closes_the_store(step, tmp_path, monkeypatch):
    server = new_server(memory=False, data_dir=tmp_path / "data", web_port=None)
    await server.start()
    stopping = asyncio.ensure_future(server.stop())

    async def cancelled() -> None:
        stopping.cancel()
        await asyncio.Event().wait()

    monkeypatch.setattr(server, step, cancelled)
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert isinstance(server.store.failure, StoreStopped)
    await server.stop()


async def test_a_stop_that_is_cancelled_while_the_web_server_starts_stops_it(tmp_path):
    server = new_server()
    await server.start()
    server.start_web()
    stopping = asyncio.ensure_future(server.stop())
    asyncio.get_running_loop().call_soon(stopping.cancel)
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await server.web_ready.wait()

    async def is_closed() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", server.settings.web_port)
        except OSError:
            return True
        writer.close()
        await writer.wait_closed()
        return False

    await eventually_awaited(is_closed)


class Stuffed(asyncio.Transport):
    """A transport whose peer reads nothing."""

    is_aborted = False

    def write(self, data: Any) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0 if self.is_aborted else 1 << 30

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_aborted

    def pause_reading(self) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True


async def test_peers_that_never_read_do_not_fill_the_log(caplog):
    async with serving(web_port=None) as server:
        for _ in range(LINES_MAX + 200):
            connection, transport = PeerConnection(server), Stuffed()
            connection.connection_made(transport)
            connection.pause_writing()
            connection.write(b"an answer")
            connection.flush()
            assert transport.is_closing()
            connection.connection_lost(None)
        assert server.broker.rate_limited_log.total == LINES_MAX + 200
    assert caplog.text.count("leaves too much unread and is disconnected") == LINES_MAX


async def test_an_idle_broker_does_not_wake_up():
    async with serving(web_port=None) as server:
        await asyncio.sleep(0.05)
        ticks, tick = list[int](), server.core.tick
        server.core.tick = lambda: ticks.append(1) or tick()
        server.core._arm(server.broker.deadline)
        await never_async(lambda: len(ticks) > 2, 1.0)


class StoppingStore(MemoryStore):
    """Stops like a store whose disk failed."""

    broken: StoreStopped | None = None

    @property
    def failure(self) -> StoreStopped | None:
        return self.broken

    def append(self, ledger_id: int, entry: Buffer, done: Done) -> int:
        if self.broken is not None:
            raise self.broken
        return super().append(ledger_id, entry, done)


async def test_a_stopped_store_is_reported_and_sends_no_receipts(caplog):
    stores: list[StoppingStore] = []

    def open_store(wakeup: Callable[[], None]) -> StoppingStore:
        stores.append(StoppingStore(wakeup))
        return stores[0]

    async with serving(store=open_store) as server:
        stores[0].broken = StoreStopped("fdatasync failed: EIO")
        server.core.wakeup()
        await eventually_async(lambda: server.store_failure)
        url = f"http://127.0.0.1:{server.settings.web_port}/admin/v2/brokers/health"
        answer = await asyncio.to_thread(ask, url)
        assert (answer.status, b"EIO" in answer.body) == (503, True)
        assert isinstance(server.store_failure, StoreStopped)
    assert [r for r in caplog.records if r.levelno == logging.CRITICAL and "EIO" in r.getMessage()]


def test_stop_closes_peers_and_can_be_repeated(peers):
    with embedded(web_port=None) as broker:
        peer = peers(broker.settings.port)
        broker.close()
        assert peer.is_closed()
        broker.close()
        with pytest.raises(OSError, match=r"refused|reset"):
            peers(broker.settings.port)


def test_many_starts_and_stops_leak_nothing():
    with embedded():
        pass
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(10):
        with embedded():
            pass
    # Others of this process may open some, too.
    eventually(lambda: not before or len(os.listdir("/proc/self/fd")) <= before)


def subscribed(peer: Peer, topic: str, permits: int) -> None:
    """A consumer with the id 1."""
    fields = {"subType": pb.CommandSubscribe.Shared, "consumer_id": 1, "request_id": 1}
    peer.socket.sendall(encoded("subscribe", topic=topic, subscription="s", **fields))
    assert peer.next().type == pb.BaseCommand.SUCCESS
    peer.socket.sendall(encoded("flow", consumer_id=1, messagePermits=permits))


def published(peer: Peer, topic: str, count: int) -> list[tuple[int, int]]:
    """Publish ``count`` entries and return their ids after their receipts."""
    peer.socket.sendall(encoded("producer", topic=topic, producer_id=1, request_id=2))
    assert peer.next().type == pb.BaseCommand.PRODUCER_SUCCESS
    entry = entry_bytes(b"x" * 100)
    found: list[tuple[int, int]] = []
    for first in range(0, count, 1_000):
        sends = (encode_send(1, n, 1, None, len(entry)) + entry for n in range(first, first + 1_000))
        peer.socket.sendall(b"".join(sends))
        found += [(each.ledger_id, each.entry_id) for each in (peer.next() for _ in range(1_000))]
    return found


def test_acknowledgements_before_a_disconnect_hold(peers):
    """5,000 ACKs in one write, and the end of the connection right behind them."""
    count, topic = 5_000, "persistent://public/default/left"
    with embedded(web_port=None) as broker:
        consumer = peers(broker.settings.port)
        consumer.socket.settimeout(60)
        subscribed(consumer, topic, count)
        acks = [encoded_ack(*each) for each in published(peers(broker.settings.port), topic, count)]
        for _ in range(count):
            assert consumer.next().type == pb.BaseCommand.MESSAGE
        found = inside(broker, lambda: server_of(broker).broker.topics.find(TopicName.parse(topic)))
        subscription: Any = found.subscriptions["s"]
        assert inside(broker, lambda: subscription.backlog) == count
        consumer.socket.sendall(b"".join(acks))
        consumer.close()
        eventually(lambda: not inside(broker, lambda: bool(subscription.consumers)))
        assert inside(broker, lambda: subscription.backlog) == 0


async def test_nothing_more_is_done_for_a_disconnected_peer():
    """Its connection ends while there was no time for what had come."""
    async with serving(web_port=None) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.settings.port)
        writer.write(CONNECT)
        await reader.read(4096)
        (connection,) = server.connections
        slices = server.broker.slices
        slices._clock = itertools.count(time.monotonic(), 0.005).__next__  # a turn has time for little
        session = connection.session
        assert session is not None
        connection.data_received(PING * 1_000)
        assert slices.waiting
        connection.connection_lost(ConnectionResetError())
        assert not server.connections
        assert session.state is SessionState.CLOSED
        async with asyncio.timeout(60):
            await eventually_async(lambda: not slices.waiting)
        assert not server.broker.sessions
        writer.close()
