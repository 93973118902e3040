"""The broker as a process: start line, promises, exit codes, signals, speed of the first answer."""

import asyncio
import contextlib
import errno
import io
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import eventually_async
from web_requests import ask

import geminga
from geminga.broker.serving.server import BrokerServer
from geminga.broker.serving.standalone import EXIT_STORE, EXIT_USAGE, SYNC_PROMISES, _main
from geminga.broker.settings import BrokerSettings
from geminga.errors import InvalidConfiguration
from geminga.ledger.store import FileStore
from geminga.testing.apache_pulsar import free_ports
from geminga.tuning.measuring import host
from geminga.wire.metadata import parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.serving.test_stalled_disk import Client
from tests.support.faulty_filesystem import Fate, FaultyFileSystem, SimulatedDisk

PROGRAM = """
import sys
from geminga.broker.settings import BrokerSettings
from geminga.broker.serving.standalone import run
sys.exit(run(BrokerSettings(**eval(sys.argv[1]))))
"""


class Process:
    def __init__(self, before: str = "", **settings: object) -> None:
        values = {"port": 0, "web_port": 0, **settings}
        self.popen = subprocess.Popen(
            [sys.executable, "-c", before + PROGRAM, repr(values)], stderr=subprocess.PIPE, text=True
        )
        self.log = ""

    def line_with(self, text: str) -> str:
        """Return the next line of the log that contains a text, from there on."""
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.log += line
            if text in line:
                return line[line.index(text) :]
        raise AssertionError(self.log)

    def first_line(self) -> str:
        return self.line_with("geminga broker ready")

    def wait(self) -> tuple[int, str]:
        """Exit code and log."""
        self.log += self.popen.stderr.read()
        return self.popen.wait(timeout=120), self.log

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.popen.send_signal(number)
        return self.wait()

    def close(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        self.popen.stderr.close()


@pytest.fixture
def started():
    with contextlib.ExitStack() as stack:
        yield lambda *words, **settings: stack.enter_context(contextlib.closing(Process(*words, **settings)))


def addresses(line: str) -> tuple[str, str]:
    words = line.split()
    service, web = ([word for word in words if word.startswith(f"{each}://")] for each in ("pulsar", "http"))
    return service[0], web[0]


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_broker_starts_serves_and_stops(started, tmp_path, number):
    process = started(data_dir=str(tmp_path / "s"))
    service, web = addresses(process.first_line())
    with socket.create_connection(("127.0.0.1", port_of(service)), 60):
        pass
    assert ask(f"{web}/admin/v2/brokers/health").body == b"ok"
    code, log = process.end(number)
    assert code == 0, log
    assert SYNC_PROMISES["always"] in log
    assert "everything receipted is kept" in log
    assert "WARNING" not in log


def full_pipe() -> tuple[io.FileIO, int]:
    """A pipe that takes no byte more: its ends for reading and writing."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x")
    os.set_blocking(writer, True)
    return io.FileIO(reader), writer


@pytest.mark.parametrize("device", ["pipe", "full pipe", "full disk"])
def test_a_broker_stops_on_sigterm_when_its_output_cannot_be_written(tmp_path, device):
    """On the first signal, with a clean end and exit code 0."""
    if device == "pipe":
        reader, writer = os.pipe()
        os.close(reader)
    elif device == "full pipe":
        _reader, writer = full_pipe()
    else:
        writer = os.open("/dev/full", os.O_WRONLY)
    settings = {"data_dir": str(tmp_path / "s"), "port": 0, "web_port": 0}
    (settings["port"],) = free_ports(1)
    command = [sys.executable, "-c", PROGRAM, repr(settings)]
    with subprocess.Popen(command, stdout=writer, stderr=writer) as popen:
        os.close(writer)
        try:
            client = geminga.Client(f"pulsar://127.0.0.1:{settings['port']}")
            client.create_producer("topic").send(b"x")
            client.close()
            popen.send_signal(signal.SIGTERM)
            assert popen.wait(timeout=60) == 0
        finally:
            popen.kill()
    with FileStore.open(tmp_path / "s", threads=False) as store:
        assert store.state.ledgers.count() > 0


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_without_a_meaning_is_logged_and_ignored(started, number):
    process = started(memory=True, web_port=None)
    service = process.first_line().split()[3]
    process.popen.send_signal(number)
    with socket.create_connection(("127.0.0.1", port_of(service)), 60):
        pass
    code, err = process.end()
    assert code == 0
    assert f"{signal.Signals(number).name} is ignored" in err


@pytest.mark.parametrize("sync", ["interval", "never"])
def test_a_weaker_sync_prints_a_warning(started, tmp_path, sync):
    process = started(data_dir=str(tmp_path / "s"), sync=sync, web_port=None)
    process.first_line()
    code, err = process.end()
    assert code == 0
    assert f"WARNING geminga.broker: sync {sync}" in err
    assert "power cut" in err


def test_storage_in_memory_prints_a_warning(started):
    process = started(memory=True, web_port=None)
    assert "in memory" in process.first_line()
    assert "WARNING geminga.broker: messages are kept in memory only" in process.end()[1]


def test_a_port_in_use_is_an_error(started):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = started(memory=True, port=port)
        code, err = process.wait()
        assert code == EXIT_USAGE
        assert f"port {port} is in use" in err
        assert "Traceback" not in err


def test_the_first_answer_is_fast_and_memory_is_small(started, tmp_path):
    """The goals are 0.12 s and 45 MB; the bounds here leave room for a busy machine."""
    process = started(data_dir=str(tmp_path / "s"))
    service, web = addresses(process.first_line())
    with socket.create_connection(("127.0.0.1", port_of(service)), 60):
        cpu_seconds = host.cpu_seconds(process.popen.pid)
    place = Path("/proc", str(process.popen.pid))

    def resident() -> int:
        return int((place / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    idle = resident()
    with geminga.Client(service) as client:
        consumer, producer = client.subscribe("t", "s"), client.create_producer("t")
        for _ in range(100):
            producer.send(b"a message")
            consumer.acknowledge(consumer.receive())
    served = resident()
    heavy = ("aiohttp", "pyarrow", "numpy", "numba")
    assert not [each for each in heavy if f"/{each}/" in (place / "maps").read_text()]
    assert ask(f"{web}/admin/v2/brokers/health").status == 200
    assert cpu_seconds < 2.0
    assert idle < 60_000_000
    assert served < idle + 10_000_000
    assert resident() < 85_000_000  # the web server is loaded for the first who asks
    assert process.end()[0] == 0


def test_an_aborted_web_request_leaves_no_error_at_the_stop(started):
    process = started(memory=True)
    port = int(process.first_line().partition("admin http://127.0.0.1:")[2].split()[0])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
        peer.sendall(
            b"PUT /admin/v2/tenants/x HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 40000000\r\n\r\n" + bytes(17_000_000)
        )
        assert b"413" in peer.recv(100)
    code, err = process.end()
    assert code == 0
    last = [line.partition("broker: ")[2] for line in err.splitlines()[-2:]]
    assert last == ["SIGTERM, stopping", "stopped"]


def test_listening_beyond_loopback_requires_a_choice_of_authentication(tmp_path):
    from click.testing import CliRunner

    from geminga.cli.standalone import command

    refused = CliRunner().invoke(command, ["--memory", "--host", "0.0.0.0"])
    assert isinstance(refused.exception, InvalidConfiguration)
    assert "--anonymous" in str(refused.exception)
    both = CliRunner().invoke(command, ["--memory", "--anonymous", "--token-secret-key", "A" * 44])
    assert "--anonymous is for a broker without authentication" in str(both.exception)


class SyncsFail(FaultyFileSystem):
    """From some moment on no sync succeeds any more."""

    code = 0

    def step(self, what: str, path: str) -> int:
        if self.code and what == "sync":
            raise OSError(self.code, os.strerror(self.code), path)
        return super().step(what, path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
async def test_a_failed_sync_ends_the_broker_without_losing_receipted_messages(code, caplog):
    caplog.set_level("INFO")
    disk = SimulatedDisk()
    filesystem = SyncsFail(disk)
    server = BrokerServer(
        BrokerSettings(memory=True, port=0, web_port=None),
        store=lambda wakeup: FileStore.open("/data", filesystem=filesystem, wakeup=wakeup),
    )
    ending = asyncio.ensure_future(_main(server, lambda: None))
    async with asyncio.timeout(50):
        await eventually_async(lambda: "ready" in caplog.text)
        client = await Client.connect(server.settings.port)
        client.send("producer", topic="t", producer_id=1, request_id=1)
        await client.expect(pb.BaseCommand.PRODUCER_SUCCESS)
        client.publish(20)
        await client.expect(pb.BaseCommand.SEND_RECEIPT, 20)
        filesystem.code = code
        client.publish(5)
        refused = await client.expect(pb.BaseCommand.SEND_ERROR)
        assert refused[0].command.send_error.error == pb.PersistenceError
        assert await ending == EXIT_STORE
        with pytest.raises(AssertionError, match="hung up"):
            await client.expect(pb.BaseCommand.SEND_RECEIPT)
        client.close()
    assert os.strerror(code) in caplog.text
    assert "confirmed writes are safe" in caplog.text
    with FileStore.open("/data", filesystem=FaultyFileSystem(disk.crash(Fate())), threads=False) as store:
        assert store.damage.found == []
        ids = [info.ledger_id for info in store.ledgers("persistent://public/default/t")]
        runs = [store.read(each, 0, entries_max=1000, bytes_max=1 << 20) for each in ids]
        kept = [parse_entry(entry).payload for entries in runs for entry in entries]
    assert kept[:20] == [b"m%d" % number for number in range(20)]


HOLDS_THE_LOOP = """
import sys, threading
from geminga.broker.serving.server import BrokerServer

async def stop(server):
    print("the store is being closed", file=sys.stderr, flush=True)
    threading.Event().wait(100)

BrokerServer.stop = stop
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_the_second_signal_ends_a_broker_whose_store_holds_the_loop(started, number):
    """Closing a store whose offload storage does not answer blocks the loop for 10 s."""
    process = started(HOLDS_THE_LOOP, memory=True, web_port=None)
    process.first_line()
    process.popen.send_signal(signal.SIGTERM)
    process.line_with("the store is being closed")
    assert process.end(number)[0] == 128 + number
