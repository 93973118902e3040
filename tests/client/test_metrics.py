"""Metrics of clients, seen through OpenTelemetry's in-memory reader."""

import gc
import json
import os
import re
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest
from interpreter import run_python

import geminga
import geminga.asyncio
from geminga.errors import InvalidConfiguration

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.metrics import NoOpHistogram, NoOpMeter, NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Histogram, InMemoryMetricReader, Sum
from waiting import eventually

from geminga.client.observe import metrics

NAMESPACE = {"pulsar.tenant": "public", "pulsar.namespace": "public/default"}

OF_JAVA = json.loads((Path(__file__).parents[1] / "vectors/client_metrics.json").read_text())


def instruments_of(provider):
    return metrics._instruments_of(provider)


class Seen:
    """Values that a reader collects."""

    def __init__(self, *others):
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader, *others])

    def collect(self):
        instruments_of(self.provider)._snapshot_at = float("-inf")  # no look of a moment ago
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        (resource,) = data.resource_metrics
        return {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}

    def value(self, name, **attributes):
        """The value of the one point with these attributes (written with underscores)."""
        wanted = {key.replace("_", "."): value for key, value in attributes.items()}
        points = [p for p in self.points(name) if wanted.items() <= dict(p.attributes).items()]
        assert len(points) <= 1, points
        return points[0].value if points else None

    def points(self, name):
        return list(self.collect()[name].data.data_points)


@pytest.fixture
def seen():
    return Seen()


@pytest.fixture
def client(pulsar_broker, seen):
    with geminga.Client(pulsar_broker.service_url, metrics=seen.provider) as client:
        yield client


def test_names_and_units_are_those_of_the_java_client(client, seen, pulsar_topic):
    consumer = client.subscribe(pulsar_topic, "s")
    client.create_producer(pulsar_topic).send(b"a")
    consumer.acknowledge(consumer.receive(60_000))
    found = seen.collect()
    assert {name: metric.unit for name, metric in found.items() if name.startswith("pulsar.")} == OF_JAVA
    for name, metric in found.items():
        if metric.unit == "s":
            assert isinstance(metric.data, Histogram)
            assert tuple(metric.data.data_points[0].explicit_bounds) == metrics.DURATION_BOUNDS_SECONDS
        else:
            assert isinstance(metric.data, Sum)
            gauge = re.search(r"pending|receive_queue", name)
            assert metric.data.is_monotonic is (gauge is None), name
        assert metric.description


def test_a_producer_counts_messages_bytes_entries_and_durations(client, seen, pulsar_topic):
    producer = client.create_producer(pulsar_topic, batching_enabled=True)
    producer.send_many([b"12345"] * 100)
    producer.send(b"123")
    assert seen.value("pulsar.client.producer.opened", pulsar_namespace="public/default") == 1
    assert seen.value("pulsar.client.producer.message.send.size") == 503
    assert seen.value("geminga.client.producer.message.send.count") == 101
    assert 2 <= seen.value("geminga.client.producer.entry.send.count") <= 101
    assert seen.value("pulsar.client.producer.message.pending.count") == 0
    assert seen.value("pulsar.client.producer.message.pending.size") == 0
    for name in ("message.send.duration", "rpc.send.duration"):
        (point,) = seen.points(f"pulsar.client.producer.{name}")
        assert dict(point.attributes) == {**NAMESPACE, "pulsar.response.status": "success"}
        assert point.count >= 1
        assert 0 < point.sum < 60
    producer.close()
    assert seen.value("pulsar.client.producer.closed") == 1
    client.create_producer(pulsar_topic).send(b"1")
    assert seen.value("pulsar.client.producer.opened") == 2, "those that are gone count on"
    assert seen.value("pulsar.client.producer.message.send.size") == 504


def test_messages_that_wait_for_a_receipt_are_pending(client, seen, pulsar_topic):
    producer = client.create_producer(
        pulsar_topic, batching_enabled=True, batching_max_publish_delay_ms=60_000, send_timeout_millis=0
    )
    for _ in range(3):
        producer.send_async(b"12345", None)
    producer.statistics()  # takes submitted messages off the queue
    assert seen.value("pulsar.client.producer.message.pending.count") == 3
    producer.flush()
    assert seen.value("pulsar.client.producer.message.pending.count") == 0


def test_sends_that_fail(client, seen, pulsar_broker, pulsar_topic):
    producer = client.create_producer(pulsar_topic)
    with geminga.Admin(pulsar_broker.admin_url) as admin:
        admin.topics.terminate(pulsar_topic)
    with pytest.raises(geminga.TopicTerminated):
        producer.send(b"a")
    assert seen.value("geminga.client.producer.message.failed.count") == 1
    (point,) = seen.points("pulsar.client.producer.message.send.duration")
    assert point.attributes["pulsar.response.status"] == "failed"


def test_a_consumer_counts_messages_bytes_and_its_queue(client, seen, pulsar_topic):
    consumer = client.subscribe(
        pulsar_topic, "work", geminga.ConsumerType.Shared, negative_ack_redelivery_delay_ms=1,
        dead_letter_policy=geminga.ConsumerDeadLetterPolicy(1, f"{pulsar_topic}-dead"),
    )  # fmt: skip
    client.create_producer(pulsar_topic).send_many([b"12345"] * 10)
    first = consumer.receive(60_000)
    while seen.value("pulsar.client.consumer.receive_queue.count", pulsar_subscription="work") < 9:
        pass
    assert seen.value("pulsar.client.consumer.message.received.count") == 1
    assert seen.value("pulsar.client.consumer.message.received.size") == 5
    assert seen.value("pulsar.client.consumer.receive_queue.size") == 45
    consumer.acknowledge(first)
    for _ in range(8):
        consumer.acknowledge(consumer.receive(60_000))
    consumer.negative_acknowledge(consumer.receive(60_000))
    again = consumer.receive(60_000)
    assert again.redelivery_count() == 1
    consumer.negative_acknowledge(again)
    dead = client.subscribe(f"{pulsar_topic}-dead", "s", initial_position=geminga.InitialPosition.Earliest)
    dead.receive(60_000)
    while seen.value("pulsar.client.consumer.message.ack", pulsar_subscription="work") < 10:
        pass
    assert seen.value("pulsar.client.consumer.message.dlq", pulsar_subscription="work") == 1
    own = {"pulsar_subscription": "work", "pulsar_tenant": "public"}
    assert seen.value("pulsar.client.consumer.message.received.count", **own) == 11
    assert seen.value("pulsar.client.consumer.message.nack", **own) == 2
    assert seen.value("pulsar.client.consumer.message.ack", **own) == 10, "that of the dead one, too"
    assert seen.value("pulsar.client.consumer.opened", **own) == 1
    consumer.close()
    assert seen.value("pulsar.client.consumer.closed", **own) == 1
    assert seen.value("pulsar.client.consumer.message.received.count", **own) == 11


def test_messages_that_were_taken_back_were_not_received(client, seen, pulsar_topic):
    consumer = client.subscribe(pulsar_topic, "s", geminga.ConsumerType.Shared)
    client.create_producer(pulsar_topic).send_many([b"a"] * 10)
    consumer.receive(60_000)
    while seen.value("pulsar.client.consumer.receive_queue.count") < 9:
        pass
    consumer.redeliver_unacknowledged_messages()
    for _ in range(10):
        consumer.acknowledge(consumer.receive(60_000))
    assert seen.value("pulsar.client.consumer.message.received.count") == 11
    assert seen.value("pulsar.client.consumer.receive_queue.count") == 0


def test_connections_and_lookups(seen, pulsar_broker, pulsar_topic):
    with geminga.Client(pulsar_broker.service_url, metrics=seen.provider) as client:
        client.create_producer(pulsar_topic)
        assert seen.value("pulsar.client.connection.opened") == 1
        assert seen.value("pulsar.client.connection.closed") == 0
        kinds = {p.attributes["pulsar.lookup.type"]: p for p in seen.points("pulsar.client.lookup.duration")}
        assert kinds.keys() == {"topic", "metadata"}
        assert kinds["topic"].attributes["pulsar.lookup.transport-type"] == "binary"
        assert kinds["topic"].attributes["pulsar.response.status"] == "success"
    assert seen.value("pulsar.client.connection.closed") == 1
    with (
        geminga.Client("pulsar://127.0.0.1:1", operation_timeout_seconds=1, metrics=seen.provider) as client,
        pytest.raises(geminga.PulsarException),
    ):
        client.create_producer(pulsar_topic)
    assert seen.value("pulsar.client.connection.failed", pulsar_failure_type="tcp-failed") >= 1


def test_by_topic(seen, pulsar_broker, pulsar_topic, pulsar_admin):
    pulsar_admin.topics.create(pulsar_topic, partitions=2)
    with geminga.Client(pulsar_broker.service_url, metrics=seen.provider, metrics_by_topic=True) as client:
        client.subscribe(pulsar_topic, "s")
        points = seen.points("pulsar.client.consumer.opened")
    assert [dict(p.attributes) for p in sorted(points, key=lambda p: p.attributes["pulsar.partition"])] == [
        {**NAMESPACE, "pulsar.topic": pulsar_topic, "pulsar.partition": n, "pulsar.subscription": "s"}
        for n in (0, 1)
    ]


def test_clients_of_one_provider_are_summed_for_each_reader(pulsar_broker, pulsar_topic):
    other = InMemoryMetricReader()
    seen = Seen(other)
    for _ in range(2):
        with geminga.Client(pulsar_broker.service_url, metrics=seen.provider) as client:
            client.create_producer(pulsar_topic).send(b"a")
            other.collect()
    assert seen.value("geminga.client.producer.message.send.count") == 2
    assert seen.value("geminga.client.producer.message.send.count") == 2


def test_durations_are_sampled(seen, client, pulsar_topic):
    producer = client.create_producer(pulsar_topic)
    for _ in range(300):
        producer.send(b"a")
    (point,) = seen.points("pulsar.client.producer.message.send.duration")
    assert 1 <= point.count <= 300
    assert seen.value("geminga.client.producer.message.send.count") == 300


def test_a_histogram_that_raises_harms_no_message(pulsar_broker, pulsar_topic, caplog):
    class Broken(NoOpHistogram):
        def record(self, *arguments, **named):
            raise RuntimeError("the exporter is broken")

    class Meter(NoOpMeter):
        def create_histogram(self, name, *arguments, **named):
            return Broken(name)

    class Provider(NoOpMeterProvider):
        def get_meter(self, *arguments, **named):
            return Meter("broken")

    with geminga.Client(pulsar_broker.service_url, metrics=Provider()) as client:
        producer = client.create_producer(pulsar_topic)
        for _ in range(3):
            producer.send(b"a")
            time.sleep(0.03)  # longer than a sample waits for the next
        assert producer.statistics().acknowledged_messages == 3
    told = [record for record in caplog.records if "could not be recorded" in record.message]
    assert len(told) == len(metrics.HISTOGRAMS)


def test_closed_producers_are_released_without_a_metric_reader(pulsar_broker, pulsar_topic, monkeypatch):
    monkeypatch.setattr(metrics, "PARTS_BEFORE_SWEEP", 10)
    provider = MeterProvider()
    with geminga.Client(pulsar_broker.service_url, metrics=provider) as client:
        for _ in range(100):
            client.create_producer(pulsar_topic).close()
        assert len(instruments_of(provider)._parts) <= 45


@pytest.mark.parametrize("wrong", ["yes", 1, object()])
def test_an_argument_that_is_not_a_meter_provider_is_refused(wrong):
    with pytest.raises(InvalidConfiguration, match=r"metrics=.*MeterProvider"):
        geminga.Client("pulsar://localhost", metrics=wrong)


PROGRAM = """
import sys
{before}
import geminga
with geminga.embedded() as broker, geminga.Client(broker.service_url{argument}) as client:
    client.create_producer("t").send(b"a")
    {after}
    print("opentelemetry" in sys.modules, client.context.metrics is not None)
"""
SET = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
"""
WAKING = """
    (resource,) = reader.get_metrics_data().resource_metrics
    names = {m.name: m for s in resource.scope_metrics for m in s.metrics}
    assert names["pulsar.client.producer.message.send.size"].data.data_points[0].value == 1
"""
WITHOUT = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "opentelemetry" else find(name, *rest)
import geminga
geminga.Client("pulsar://localhost", metrics=True)
"""


@pytest.mark.parametrize(
    ("before", "argument", "after", "expected"),
    [
        ("", "", "", "False False"),
        (SET, "", WAKING, "True True"),
        (SET, ", metrics=False", "", "True False"),
        ("", ", metrics=True", SET.replace("\n", "\n    ") + WAKING, "True True"),
    ],
    ids=["nothing is loaded", "the global provider", "off", "a provider that is set later"],
)
def test_the_global_provider(before, argument, after, expected):
    program = PROGRAM.format(before=before, argument=argument, after=after.strip())
    run = run_python(program)
    assert run.stdout.strip() == expected


def test_without_the_extra_the_error_names_it():
    run = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=120)
    assert "pip install 'geminga[telemetry]'" in run.stderr, run.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_reports_no_metrics_of_its_parent(seen, client, pulsar_topic):
    client.create_producer(pulsar_topic).send(b"a")
    assert seen.value("geminga.client.producer.message.send.count") == 1
    child = os.fork()
    if not child:
        os._exit(len(instruments_of(seen.provider)._parts) + len(instruments_of(seen.provider)._gone))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_metrics_keep_no_closed_client_alive(pulsar_broker, pulsar_topic, seen):
    class Service:
        def __init__(self):
            self.client = geminga.Client(pulsar_broker.service_url, metrics=seen.provider)
            self.client.subscribe(pulsar_topic, "s", message_listener=self.heard)

        def heard(self, consumer, message):
            """Ignore the message."""

    service = Service()
    service.client.create_producer(pulsar_topic).send(b"a")
    service.client.close()
    gone = weakref.ref(service)
    del service
    # The client's thread may hold on to it until it has ended.
    eventually(lambda: gc.collect() is not None and gone() is None)
    assert seen.value("geminga.client.producer.message.send.count") == 1
    assert seen.value("pulsar.client.consumer.closed") == 1
    assert seen.value("pulsar.client.connection.closed") == 1
