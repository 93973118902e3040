"""Mistakes that users make: each raises an error that names the remedy, loses no message, harms no other
client and leaves nothing behind.

The tests of each package check its errors in depth; this file covers all packages.
"""

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import pyarrow as pa
import pytest
from waiting import eventually

import geminga
import geminga.asyncio
from geminga import errors
from geminga.cli.main import main
from geminga.client.admin import admin
from geminga.spark.options import read_options, write_options

GEMINGA = [sys.executable, "-m", "geminga.cli.main"]
UNREACHABLE = "pulsar://127.0.0.1:1"
MAX_MESSAGE_SIZE = 64 * 1024


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_behind():
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
def pulsar_settings():
    return {"max_message_size": MAX_MESSAGE_SIZE}


@pytest.fixture(scope="module")
def strict_broker():
    """A broker that makes no topics by itself."""
    with geminga.embedded(auto_create_topics=False) as broker:
        yield broker


@pytest.fixture
def run(capsys, monkeypatch):
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


async def using(url: str, work: Callable[[Any], Awaitable[Any]], **settings: Any) -> Any:
    client = geminga.asyncio.Client(url, **settings)
    try:
        return await work(client)
    finally:
        await client.close()


# --- wrong or unreachable URL ---
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
def test_a_wrong_url(url, message, run):
    with pytest.raises(errors.InvalidUrl, match=message):
        geminga.Client(url)
    with pytest.raises(errors.InvalidUrl, match=message):
        asyncio.run(using(url, lambda client: client.create_producer("t")))
    with pytest.raises(errors.InvalidConfiguration, match=r"service\.url"):
        read_options({"service.url": url, "topic": "t"})
    code, said = run("produce", "t", "-m", "x", "--url", url)
    assert (code, re.search(message, said) is not None) == (2, True), said
    assert "secret" not in said


def test_calls_to_an_unreachable_broker_name_the_cause(run, caplog):
    message = "refused the connection: nothing listens there; is the broker running"
    with geminga.Client(UNREACHABLE, operation_timeout_seconds=0.5) as client:
        for call in (
            lambda: client.create_producer("t"),
            lambda: client.subscribe("t", "s"),
            lambda: client.create_reader("t", geminga.MessageId.earliest),
            lambda: client.get_topic_partitions("t"),
        ):
            with pytest.raises(errors.ConnectError, match=message):
                call()
    with pytest.raises(errors.ConnectError, match=message):
        asyncio.run(
            using(UNREACHABLE, lambda client: client.subscribe("t", "s"), operation_timeout_seconds=0.5)
        )
    assert message in caplog.text  # the server that is waited for
    for command in (("produce", "t", "-m", "x"), ("consume", "t"), ("consume", "t", "-s", "s")):
        code, said = run(*command, "--url", UNREACHABLE, "--timeout", "1")
        assert (code, said.count(message) >= 2) == (3, True), said  # as it begins to wait, and in the end
    code, said = run("topics", "list", "--admin-url", "http://127.0.0.1:1")
    assert (code, "is the broker running" in said) == (1, True), said


def test_an_unknown_host_and_a_listener_that_says_nothing():
    with (
        geminga.Client("pulsar://no-such-host.invalid", operation_timeout_seconds=1) as client,
        pytest.raises(errors.ConnectError, match=r"host name 'no-such-host\.invalid' .* is unknown"),
    ):
        client.create_producer("t")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"pulsar://127.0.0.1:{silent.getsockname()[1]}"
        with (
            geminga.Client(url, connection_timeout_ms=200, operation_timeout_seconds=1) as client,
            pytest.raises(errors.ConnectError, match=r"did not finish the handshake.*is it a Pulsar broker"),
        ):
            client.create_producer("t")


def test_the_other_port_of_a_broker(pulsar_broker, run):
    web_as_binary = pulsar_broker.admin_url.replace("http://", "pulsar://")
    with (
        geminga.Client(web_as_binary, operation_timeout_seconds=1) as client,
        pytest.raises(errors.ProtocolError, match=r"HTTP answer came in: .*\(usually port 6650"),
    ):
        client.create_producer("t")
    binary_as_tls = pulsar_broker.service_url.replace("pulsar://", "pulsar+ssl://")
    with (
        geminga.Client(binary_as_tls, operation_timeout_seconds=1) as client,
        pytest.raises(errors.ConnectError, match="does that port speak TLS"),
    ):
        client.create_producer("t")
    code, said = run("topics", "list", "--admin-url", pulsar_broker.service_url)
    assert (code, "usually port 8080" in said) == (2, True), said


# --- topics ---
def test_an_unknown_topic_where_none_are_made(strict_broker, run):
    message = "persistent://public/default/absent: the topic does not exist .*create it first"
    with strict_broker.client() as client:
        for call in (
            lambda: client.create_producer("absent"),
            lambda: client.subscribe("absent", "s"),
            lambda: client.create_reader("absent", geminga.MessageId.earliest),
        ):
            with pytest.raises(errors.TopicNotFound, match=message):
                call()
        with pytest.raises(errors.TopicNotFound, match="persistent://no/such/topic: Namespace not found"):
            client.create_producer("persistent://no/such/topic")
    with pytest.raises(errors.TopicNotFound, match=message):
        asyncio.run(using(strict_broker.service_url, lambda client: client.create_producer("absent")))
    code, said = run("produce", "absent", "-m", "x", "--url", strict_broker.service_url)
    assert (code, "geminga topics create" in said) == (1, True)
    assert run("topics", "create", "absent", "--admin-url", strict_broker.admin_url)[0] == 0
    assert run("produce", "absent", "-m", "x", "--url", strict_broker.service_url)[0] == 0


@pytest.mark.parametrize(
    "name", ["", " ", "a/b", "kafka://a/b/c", "persistent://a/b", "persistent://public/default/"]
)
def test_a_wrong_topic_name(name, pulsar_broker, pulsar_client, run):
    allowed = r"allowed: \[\{persistent\|non-persistent\}://\]tenant/namespace/topic"
    for call in (
        lambda: pulsar_client.create_producer(name),
        lambda: pulsar_client.subscribe(name, "s"),
        lambda: pulsar_client.subscribe(["good", name], "s"),
        lambda: pulsar_client.create_reader(name, geminga.MessageId.earliest),
        lambda: pulsar_client.get_topic_partitions(name),
    ):
        with pytest.raises(errors.InvalidTopicName, match=allowed):
            call()
    for options in (read_options, write_options):
        with pytest.raises(errors.InvalidConfiguration, match="topic"):
            options({"service.url": UNREACHABLE, "topic": name})
    for command in (("produce", name, "-m", "x"), ("consume", name)):
        code, said = run(*command, "--url", pulsar_broker.service_url)
        assert (code, re.search(allowed, said) is not None) == (2, True), said
    assert run("topics", "create", name, "--admin-url", pulsar_broker.admin_url)[0] == 2


def test_a_wrong_topic_name_over_rest(pulsar_broker):
    before = admin(pulsar_broker.admin_url, "GET", "persistent/public/default")
    for name in ("a%2Fb", "%00", "%2e%2e%2f%2e%2e", "x" * 2000):
        with pytest.raises(errors.NotAllowedError, match="HTTP 412"):
            admin(pulsar_broker.admin_url, "PUT", f"persistent/public/default/{name}", {})
    assert admin(pulsar_broker.admin_url, "GET", "persistent/public/default") == before


# --- messages ---
@pytest.mark.parametrize("settings", [{}, {"batching_enabled": False}])
def test_an_oversize_message_fails_alone(pulsar_client, pulsar_topic, settings):
    big = os.urandom(MAX_MESSAGE_SIZE + 1)
    results: list[Any] = []
    with pulsar_client.create_producer(pulsar_topic, **settings) as producer:
        with pytest.raises(errors.MessageTooBig, match=f"max_message_size.{MAX_MESSAGE_SIZE}.*chunking"):
            producer.send(big)
        for content in (b"before", big, b"after"):
            producer.send_async(content, lambda result, _: results.append(result))
        producer.flush()
        with pytest.raises(errors.MessageTooBig, match=f"max_message_size is {MAX_MESSAGE_SIZE}"):
            producer.send_table(pa.table({"value": [big]}))
        producer.send(b"last")
    ok, too_big = geminga.Result.Ok, geminga.Result.MessageTooBig
    assert sorted(results) == sorted([ok, too_big, ok])
    reader = pulsar_client.create_reader(pulsar_topic, geminga.MessageId.earliest)
    assert [reader.read_next(30_000).data() for _ in range(3)] == [b"before", b"after", b"last"]
    assert not reader.has_message_available()


def test_an_oversize_line_is_counted_by_name(pulsar_broker, pulsar_topic, tmp_path):
    lines = tmp_path / "lines"
    lines.write_bytes(b"before\n" + bytes(MAX_MESSAGE_SIZE + 1) + b"\nafter\n")
    done = subprocess.run(
        [*GEMINGA, "produce", pulsar_topic, "-f", str(lines), "--url", pulsar_broker.service_url],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout.startswith("2 messages to ")
    assert done.stdout.endswith("; 1 failed (MessageTooBig)\n")


# --- arguments and signals ---
def test_wrong_arguments_of_the_command_line(run):
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
        (("topics", "list", "a/b/c"), "is not tenant/namespace"),
        (("topics", "list", "public/"), "is not tenant/namespace"),
    ):
        code, said = run(*arguments)
        assert (code, message in said) == (2, True), (arguments, said)
