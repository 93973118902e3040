"""Our client against a real Apache Pulsar 4.0.4, with pulsar-client as the witness in both directions."""

import datetime as dt
from typing import Any

import pulsar
import pytest
from insides import group_of
from waiting import eventually

import geminga
from geminga.client.cluster import Cluster
from geminga.client.handles import web_address
from geminga.errors import InvalidConfiguration, OperationNotSupported

pytestmark = pytest.mark.interop

COMPRESSIONS = ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY")
WAIT_MS = 60_000
"""For what has to come, however busy the machine is."""


@pytest.fixture(scope="module")
def witness(apache_pulsar):
    client = pulsar.Client(apache_pulsar.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn))
    yield client
    client.close()


def _receive(consumer: Any, count: int) -> list[bytes]:
    messages = [consumer.receive(WAIT_MS) for _ in range(count)]
    for message in messages:
        consumer.acknowledge(message)
    return [bytes(message.data()) for message in messages]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_we_read_what_pulsar_client_publishes(ours, witness, topic, compression):
    name = topic("receive")
    consumer = ours.subscribe(name, "ours", initial_position=geminga.InitialPosition.Earliest)
    producer = witness.create_producer(
        name, compression_type=getattr(pulsar.CompressionType, compression), batching_enabled=True
    )
    sent = [f"message {i}".encode() for i in range(300)]
    for i, content in enumerate(sent):
        producer.send_async(content, lambda *_: None, properties={"i": str(i)}, partition_key=f"k{i}")
    producer.flush()
    for i, content in enumerate(sent):
        message = consumer.receive(WAIT_MS)
        assert message.data() == content
        assert message.properties() == {"i": str(i)}
        assert message.partition_key() == f"k{i}"
        consumer.acknowledge(message)
    consumer.close()
    producer.close()


def test_messages_are_received_as_columns(ours, witness, topic):
    import pyarrow as pa

    name = topic("columns")
    consumer = ours.subscribe(name, "columns", initial_position=geminga.InitialPosition.Earliest)
    other = witness.subscribe(name, "witness", initial_position=pulsar.InitialPosition.Earliest)
    values = [f"row {i}".encode() for i in range(5_000)]
    table = pa.table(
        {"value": pa.array(values, pa.binary()), "key": pa.array([f"k{i % 17}" for i in range(5_000)])}
    )
    with ours.create_producer(name, compression_type=geminga.CompressionType.ZSTD) as producer:
        producer.send_table(table)
    seen = 0
    while seen < len(values):
        part = consumer.receive_table(timeout_millis=WAIT_MS)
        assert part.column("value").to_pylist() == values[seen : seen + part.num_rows]
        consumer.acknowledge_table(part)
        seen += part.num_rows
    for i, value in enumerate(values):
        message = other.receive(WAIT_MS)
        assert (message.data(), message.partition_key()) == (value, f"k{i % 17}")
        other.acknowledge(message)
    consumer.close()
    other.close()


class _Parts:
    """A consumer's listener of its partition's state."""

    def __init__(self) -> None:
        self.heard: list[bool] = []

    def became_active(self, consumer: Any, partition: int) -> None:
        self.heard.append(True)

    def became_inactive(self, consumer: Any, partition: int) -> None:
        self.heard.append(False)


def test_failover_follows_priority_and_notifies_listeners(ours, topic):
    """The consumer with the smallest priority number is active, in any order of arrival."""
    name, low, high = topic("failover"), _Parts(), _Parts()
    options: Any = {"initial_position": geminga.InitialPosition.Earliest}
    second = ours.subscribe(
        name, "s", geminga.ConsumerType.Failover, consumer_name="b", priority_level=1,
        event_listener=low, **options,
    )  # fmt: skip
    eventually(lambda: low.heard[-1:] == [True])
    first = ours.subscribe(
        name, "s", geminga.ConsumerType.Failover, consumer_name="a", priority_level=0,
        event_listener=high, **options,
    )  # fmt: skip
    eventually(lambda: high.heard[-1:] == [True] and low.heard[-1:] == [False])
    with ours.create_producer(name) as producer:
        producer.send_many([b"0", b"1", b"2", b"3"])
    received = [first.receive(WAIT_MS) for _ in range(4)]
    assert [bytes(message.data()) for message in received] == [b"0", b"1", b"2", b"3"]
    first.acknowledge(received[:2])
    # All were received: Apache Pulsar 5.0.1 holds back messages that arrive while the active consumer leaves.
    first.close()
    eventually(lambda: low.heard[-1:] == [True])
    assert _receive(second, 2) == [b"2", b"3"]
    second.close()


def test_statistics_of_a_consumer_show_its_permits(ours, topic):
    consumer = ours.subscribe(
        topic("statistics"), "s", geminga.ConsumerType.Shared, receiver_queue_size=10,
        broker_consumer_stats_cache_time_ms=0,
    )  # fmt: skip
    with ours.create_producer(consumer.topic()) as producer:
        for number in range(5):
            producer.send(b"%d" % number)
    consumer.acknowledge([consumer.receive(WAIT_MS) for _ in range(2)])
    # The broker counts a message as soon as it sends it: it may still be on its way to the queue.
    eventually(lambda: consumer.stats().unacknowledged_messages == 3)
    eventually(lambda: consumer.stats().waiting_messages == 3)
    stats = consumer.stats()
    assert not stats.blocked
    assert stats.available_permits > 0
    consumer.close()


@pytest.mark.parametrize("over", ["pulsar", "http"])
def test_ack_holes_are_reported_by_rest(apache_pulsar, topic, over):
    name = topic("holes")
    with geminga.Client(apache_pulsar.service_url if over == "pulsar" else apache_pulsar.admin_url) as client:
        consumer = client.subscribe(
            name, "s", geminga.ConsumerType.Shared, broker_consumer_stats_cache_time_ms=0
        )
        with client.create_producer(name) as producer:
            for number in range(6):
                producer.send(b"%d" % number)
        taken = [consumer.receive(WAIT_MS) for _ in range(6)]
        consumer.acknowledge(taken[1::2])
        if over == "pulsar":
            assert consumer.stats().ack_holes is None, "no command of the protocol tells"
        else:
            eventually(lambda: consumer.stats().ack_holes == 3)
            consumer.acknowledge(taken[::2])
            eventually(lambda: consumer.stats().ack_holes == 0)


def test_shared_consumers_of_a_higher_priority_come_first(ours, topic):
    name = topic("priority")
    high, low = (
        ours.subscribe(
            name, "s", geminga.ConsumerType.Shared, receiver_queue_size=10, priority_level=level,
            broker_consumer_stats_cache_time_ms=0,
        )
        for level in (0, 1)
    )  # fmt: skip
    with ours.create_producer(name) as producer:
        for number in range(10):
            producer.send(b"%d" % number)
        eventually(lambda: high.stats().waiting_messages == 10)
        assert low.stats().waiting_messages == 0
        for number in range(10, 15):
            producer.send(b"%d" % number)
    assert _receive(low, 5) == [b"%d" % number for number in range(10, 15)], "the other one has no permits"
    assert high.drain(0) == 10
    assert sorted(_receive(low, 10)) == [b"%d" % number for number in range(10)]
    low.close()


def test_messages_in_flight_at_a_redelivery_request_are_dropped(ours, topic):
    """Epochs: messages in flight at a request for redelivery are dropped, and none is skipped.

    While a read is in flight Apache Pulsar 4.0.4 skips messages or rewinds twice: `geminga.consumer.rewind`.
    """
    name = topic("epochs")
    consumer = ours.subscribe(name, "s", receiver_queue_size=50)
    with ours.create_producer(name, block_if_queue_full=True) as producer:
        producer.send_many([b"%d" % number for number in range(2000)], callback=lambda _: None)
        producer.flush()
    first = 0
    for round_ in range(9):
        number = first
        while number < (2000 if round_ == 8 else first + 100 + 37 * round_):
            message = consumer.receive(WAIT_MS)
            assert int(message.data()) <= number, "what lies between is skipped"
            number = int(message.data())
            if number == first + 20:
                consumer.acknowledge_cumulative(message)
            number += 1
        first += 21
        consumer.redeliver_unacknowledged_messages()
        assert group_of(consumer).cores()[0].epoch > round_, "one more for each that was asked for again"
    consumer.close()


@pytest.mark.parametrize("told", [False, True], ids=["whole", "by index"])
def test_a_reset_by_an_administrator_redelivers_partly_acknowledged_batches(apache_pulsar, ours, topic, told):
    name = topic("half")
    consumer = ours.subscribe(
        name, "s", geminga.ConsumerType.Shared, batch_index_ack_enabled=told, ack_receipt_enabled=True
    )
    with ours.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=1000) as producer:
        producer.send_many([b"%d" % number for number in range(10)], callback=lambda _: None)
        producer.flush()
    consumer.acknowledge([consumer.receive(WAIT_MS) for _ in range(4)])
    with geminga.Admin(apache_pulsar.admin_url) as admin:
        admin.subscriptions.reset_to_time(name, "s", dt.timedelta(minutes=10))
    wanted, came = [b"%d" % number for number in range(10)], list[bytes]()
    while came[-10:] != wanted:
        # Queued messages may be received before the broker reports the reset.
        assert len(came) < 16, came
        came.append(consumer.receive(WAIT_MS).data())
    consumer.close()


def test_the_web_address_is_confirmed_by_lookups(apache_pulsar, monkeypatch):
    cluster = Cluster(service_url=apache_pulsar.service_url)
    with pytest.raises(InvalidConfiguration, match="--admin-url"):
        cluster.find_admin_url()  # no default port, and Apache Pulsar does not send its web address
    ports = {"pulsar": apache_pulsar.port, "http": apache_pulsar.web_port}
    monkeypatch.setattr(web_address, "DEFAULT_PORTS", ports)
    assert cluster.find_admin_url() == apache_pulsar.admin_url
    with geminga.embedded() as other:
        ports["http"] = int(other.admin_url.rpartition(":")[2])
        with pytest.raises(InvalidConfiguration, match="belongs to another broker"):
            cluster.find_admin_url()


def test_a_broker_without_transactions_is_refused_by_the_name_of_its_setting(ours):
    with pytest.raises(OperationNotSupported, match="transactionCoordinatorEnabled=true"):
        ours.new_transaction()
