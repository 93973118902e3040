"""The Java tools of the Apache Pulsar distribution against our broker, unchanged."""

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import geminga

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
admin_matrix: Any = importlib.import_module("admin_matrix")

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]


@pytest.fixture
def tool(broker, tool_of):
    return tool_of(broker)


@pytest.fixture(scope="module")
def admin(broker, pulsar_home):
    """The commands of ``pulsar-admin``, all in one Java process: each start of the tool is seconds of CPU."""
    process = admin_matrix.PulsarAdmin(pulsar_home, broker.admin_url)

    def run(*arguments: str) -> str:
        done = process.run(arguments)
        assert done.succeeded, f"{' '.join(arguments)}\n{done.output[-2000:]}"
        return str(done.output)

    yield run
    process.close()


def test_the_java_client_produces_and_we_consume(tool, broker, topic):
    name = topic("java")
    with broker.client() as client:
        consumer = client.subscribe(name, "ours", initial_position=geminga.InitialPosition.Earliest)
        tool("pulsar-client", "produce", name, "-m", "hello", "-n", "5", "-k", "the-key", "-p", "a=b")
        for _ in range(5):
            message = consumer.receive(60_000)
            assert (message.data(), message.partition_key()) == (b"hello", "the-key")
            assert message.properties() == {"a": "b"}
            consumer.acknowledge(message)


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "Key_Shared"])
def test_we_produce_and_the_java_client_consumes(tool, broker, topic, kind):
    name = topic("to-java")
    with (
        broker.client() as client,
        client.create_producer(name, compression_type=geminga.CompressionType.LZ4) as producer,
    ):
        for i in range(20):
            producer.send_async(f"from python {i}".encode(), None, partition_key=f"k{i}")
        producer.flush()
    output = tool("pulsar-client", "consume", name, "-s", "java", "-t", kind, "-n", "20", "-p", "Earliest")
    assert sorted(re.findall(r"from python (\d+)", output), key=int) == [str(i) for i in range(20)]


def test_pulsar_admin_resets_the_cursor_of_our_consumer(tool, broker, topic):
    name = topic("reset")
    with broker.client() as client:
        with client.create_producer(name) as producer:
            for i in range(5):
                producer.send(f"{i}".encode())
        consumer = client.subscribe(name, "s", initial_position=geminga.InitialPosition.Earliest)
        for _ in range(5):
            consumer.acknowledge(consumer.receive(60_000))
        consumer.close()
        tool("pulsar-admin", "topics", "reset-cursor", name, "-s", "s", "-t", "1h")
        consumer = client.subscribe(name, "s")
        assert [bytes(consumer.receive(60_000).data()) for _ in range(5)] == [
            f"{i}".encode() for i in range(5)
        ]


def test_pulsar_perf_produces_and_consumes(tool, admin, topic, monkeypatch):
    name = topic("perf")
    # Some seconds of messages never get back what the second compiler costs.
    monkeypatch.setenv("PULSAR_EXTRA_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    admin("topics", "create-subscription", "-s", "perf", "-m", "earliest", name)
    output = tool("pulsar-perf", "produce", name, "-r", "20000", "-m", "60000", "-s", "100")
    assert "60000" in re.sub(r"\D", " ", output).split(), output[-1500:]
    output = tool("pulsar-perf", "consume", name, "-ss", "perf", "-sp", "Earliest", "-m", "60000")
    assert "60000" in re.sub(r"\D", " ", output).split(), output[-1500:]
    stats = json.loads(admin("topics", "stats", name))
    # pulsar-perf halts its JVM at the last message, so the acknowledgements of its last 100 ms are lost.
    assert stats["subscriptions"]["perf"]["msgBacklog"] < 6_000
