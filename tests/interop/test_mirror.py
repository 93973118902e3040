"""Mirrors to and from a real Apache Pulsar; pulsar-client reads on where the subscriptions stood."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import until_accepted, until_some_moment

import geminga
from geminga.testing.apache_pulsar import ApachePulsar
from tests.mirror.helpers import cluster, mirrored, stored
from tests.mirror.test_kills import BrokerProcess, Load, MirrorProcess, prepare, reached

pytestmark = pytest.mark.interop
Shared = geminga.ConsumerType.Shared
Earliest = geminga.InitialPosition.Earliest


@pytest.fixture
def broker():
    with geminga.embedded(batch_index_ack=True, cluster="home") as broker:
        yield broker


def _fill(client: geminga.Client, topic: str) -> list[bytes]:
    """Batches in every compression, single messages, keys, a message in chunks, and what encrypts them."""
    sent = []
    for number, compression in enumerate(geminga.CompressionType):
        producer = client.create_producer(
            topic, batching_enabled=True, batching_max_messages=10, compression_type=compression,
            batching_max_publish_delay_ms=10_000, producer_name=f"writer-{number}",
        )  # fmt: skip
        for n in range(60):
            sent.append(b"%d-%d" % (number, n))
            producer.send_async(
                sent[-1], None, properties={"n": str(n)}, partition_key=str(n % 3), event_timestamp=n + 1
            )
        producer.flush()
        producer.close()
    single = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    for value in (b"single", random.Random(1).randbytes(11_000_000), b"last"):
        sent.append(value)
        single.send(value)
    single.close()
    return sent


def _acknowledge_some(client: geminga.Client, topic: str, sent: list[bytes]) -> dict[str, list[bytes]]:
    """Return the backlog of each subscription."""
    left = {"holes": [], "behind": sent[137:]}
    holes = client.subscribe(topic, "holes", Shared, initial_position=Earliest, batch_index_ack_enabled=True)
    for n, value in enumerate(sent):
        message = holes.receive(60_000)
        assert message.data() == value
        # Whole batches; of others some messages; and the chunked one not.
        if n < 43 or 100 <= n < 120 or n % 4 == 0:
            holes.acknowledge(message)
        else:
            left["holes"].append(value)
    holes.close()
    behind = client.subscribe(topic, "behind", initial_position=Earliest, batch_index_ack_enabled=True)
    behind.acknowledge_cumulative([behind.receive(60_000) for _ in range(137)][-1])
    behind.close()
    return left


def _read_on(url: str, topic: str, subscription: str, count: int, **options: Any) -> list[bytes]:
    """By the official client: ``count`` messages, and then none."""
    pulsar = pytest.importorskip("pulsar")
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        consumer = client.subscribe(topic, subscription, **options)
        found = [consumer.receive(60_000).data() for _ in range(count)]
        with pytest.raises(pulsar.Timeout):
            consumer.receive(500)
        return found
    finally:
        client.close()


def test_a_topic_is_mirrored_to_apache_pulsar_and_back(apache_pulsar, broker, topic):
    pulsar = pytest.importorskip("pulsar")
    name = topic("mirror")
    pattern = name.removeprefix("persistent://")
    apache = cluster(apache_pulsar)
    with broker.client() as here, apache.client() as there:
        sent = _fill(here, name)
        left = _acknowledge_some(here, name, sent)
        row = _record()
        here.create_producer(name + "-json", schema=geminga.schema.JsonSchema(row)).send(row(a=7))
        with geminga.Admin(broker.admin_url) as admin:
            admin.topics.create(name + "-parts", partitions=2)
        parts = here.create_producer(name + "-parts")
        for n in range(20):
            parts.send(b"%d" % n, partition_key=str(n))
        assert len(mirrored(broker, apache, pattern + ".*").partitions) == 4
        for one in (name, name + "-json", f"{name}-parts-partition-0", f"{name}-parts-partition-1"):
            assert stored(there, one) == stored(here, one)
        url = apache_pulsar.service_url
        shared = {"consumer_type": pulsar.ConsumerType.Shared}
        # A Shared subscription may give a chunked message after those behind it.
        assert sorted(_read_on(url, name, "holes", len(left["holes"]), **shared)) == sorted(left["holes"])
        assert _read_on(url, name, "behind", len(left["behind"])) == left["behind"]
        # Only messages of other producers are mirrored back.
        producer = there.create_producer(name)
        for n in range(5):
            producer.send(b"there %d" % n)
        back = mirrored(apache, broker, pattern)
        assert (back.messages, back.partitions[0].skipped) == (5, _messages(here, name))
        assert mirrored(broker, apache, pattern).messages == 0
        consumer = here.subscribe(name, "reads on", initial_position=Earliest)
        assert [consumer.receive(60_000).data() for _ in range(len(sent) + 5)][-5:] == [
            b"there %d" % n for n in range(5)
        ]


def _messages(client: geminga.Client, topic: str) -> int:
    """As brokers count them: each chunk is one."""
    own = [
        metadata for metadata, _ in stored(client, topic) if not metadata.producer_name.startswith("there")
    ]
    return sum(metadata.num_messages_in_batch for metadata in own) - 5


def _record() -> Any:
    from geminga.schema import Integer, Record

    return type("Row", (Record,), {"a": Integer()})


def test_a_topic_of_apache_pulsar_is_mirrored_to_geminga(apache_pulsar, broker, topic):
    name = topic("mirror-from")
    apache = cluster(apache_pulsar)
    with broker.client() as there, apache.client() as here:
        sent = _fill(here, name)
        holes = here.subscribe(name, "holes", Shared, initial_position=Earliest)
        left = []
        for n, value in enumerate(sent):
            message = holes.receive(60_000)
            if n // 10 % 2 and n < 300:  # whole batches: Apache Pulsar tells of no others
                holes.acknowledge(message)
            else:
                left.append(value)
        holes.close()
        mirrored(apache, broker, name.removeprefix("persistent://"))
        assert stored(there, name) == stored(here, name)
        found = _read_shared(broker.service_url, name, len(left))
        assert sorted(found) == sorted(left)


def _read_shared(url: str, topic: str, count: int) -> list[bytes]:
    pulsar = pytest.importorskip("pulsar")
    return _read_on(url, topic, "holes", count, consumer_type=pulsar.ConsumerType.Shared)


def _with_kills(
    apache: ApachePulsar, folder: Path, seed: int, kills: int, kill: Callable[[str], None]
) -> None:
    """``kill`` gets the namespace, which does not deduplicate: the mirror has it done by the topic."""
    chance = random.Random(seed)
    namespace = f"public/kills-{seed}-{time.time_ns():x}"
    name = f"{namespace}/t"
    with geminga.Admin(apache.admin_url) as admin:
        admin.namespaces.create(namespace)
        admin.namespaces.deduplication.set(namespace, False)
    source = BrokerProcess(folder / "source")
    with source:
        prepare(source, name)
        with source.client() as here:
            # Without a subscription Apache Pulsar deletes what it has, a ledger at a time.
            here.subscribe(name, "keeps").close()
        running = MirrorProcess(source, apache, name)
        with running, Load(source, name, 0.005):
            for number in range(1, kills + 1):
                reached(apache, name, 200 * number)
                until_some_moment(chance, 0.05)
                if number % 2:
                    running.again()
                else:
                    kill(namespace)
        mirrored(cluster(source), cluster(apache), name)
        with source.client() as here, geminga.Client(apache.service_url) as there:
            for index in range(2):
                part = f"{name}-partition-{index}"
                assert stored(there, part) == stored(here, part)


def test_a_killed_mirror_to_apache_pulsar_continues(apache_pulsar, tmp_path):
    def unload(namespace: str) -> None:
        with geminga.Admin(apache_pulsar.admin_url) as admin:
            until_accepted(lambda: admin.namespaces.unload(namespace))

    _with_kills(apache_pulsar, tmp_path, 2, 2, unload)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(3))
def test_a_mirror_continues_after_apache_pulsar_was_killed(pulsar_home, tmp_path, seed):
    with ApachePulsar.start(pulsar_home, tmp_path / "apache") as apache:

        def kill(_: str) -> None:
            apache.stop()
            apache.start_again()

        _with_kills(apache, tmp_path, 10 + seed, 8, kill)
