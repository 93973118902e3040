"""Advice: from numbers, from a live topic, as text in every form, and as a file that is read again."""

import dataclasses
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result
from waiting import repeating

import geminga
from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.cli.main import command
from geminga.consumer.settings import ConsumerSettings
from geminga.errors import InvalidConfiguration, TopicNotFound
from geminga.producer.settings import CompressionType
from geminga.tuning import render
from geminga.tuning.advise import Advice, advise
from geminga.tuning.consumers import ACK_GROUPING_MS, QUEUE, QUEUES_TOGETHER, consumer_advice
from geminga.tuning.expectation import DELIVERY_P99_SECONDS
from geminga.tuning.formula import formula
from geminga.tuning.observe import observe
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.sample import Sample, standard_sample
from geminga.tuning.stock import JAVA, STOCK
from geminga.tuning.traffic import TrafficProfile

PROFILE = TrafficProfile(rate_messages_per_second=20_000, message_bytes=200, partitions=60)
NUMBERS = ["--rate", "20000", "--message-bytes", "200", "--partitions", "60"]


def advice(profile: TrafficProfile = PROFILE, **chosen: Any) -> Advice:
    values = {"sample": standard_sample(200), "stock": JAVA, **chosen}
    return advise(profile, **values)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["tune", "advise", *arguments])


@pytest.fixture
def broker():
    with geminga.embedded() as running:
        yield running


@pytest.fixture
def busy_topic(broker):
    """A topic of three partitions with a producer whose batching delay is 2 ms."""
    topic = "persistent://public/default/busy"
    with broker.client() as client:
        geminga_admin(broker, "busy", 3)
        consumer = client.subscribe(topic, "reads")
        producer = client.create_producer(
            topic, batching_enabled=True, batching_max_publish_delay_ms=2,
            compression_type=geminga.CompressionType.LZ4, block_if_queue_full=True,
        )  # fmt: skip

        def publish(time: int) -> None:
            for number in range(4 * time, 4 * time + 4):
                producer.send_async(b'{"number":%d,"what":"reading"}' % number, None)

        with repeating(publish, 0.001):
            yield topic
        consumer.close()


def geminga_admin(broker: EmbeddedBroker, topic: str, partitions: int) -> None:
    from geminga.client.admin import admin

    admin(broker.admin_url, "PUT", f"persistent/public/default/{topic}/partitions", partitions)


def test_advice_from_numbers():
    found = advice()
    codec, level = found.settings.producer.compression_type, found.settings.producer.compression_level
    assert (
        found.settings
        == formula(
            PROFILE, compression=codec, compression_level=level, reserve_seconds=DELIVERY_P99_SECONDS
        ).settings
    )
    assert found.after.end_to_end_p99_seconds is not None
    assert found.after.end_to_end_p99_seconds <= PROFILE.latency_budget_seconds * 1.02
    assert found.before.title.startswith("Java client 4.0.4, stock")
    assert found.after.entries_per_second < 0.05 * found.before.entries_per_second
    assert found.after.stored_bytes_per_second < found.before.stored_bytes_per_second
    assert found.findings == ()


def test_defaults_of_consumers_are_those_of_the_client():
    plain = ConsumerSettings()
    assert (
        plain.receiver_queue_size,
        plain.max_total_receiver_queue_size_across_partitions,
        plain.ack_grouping_time_ms,
    ) == (QUEUE, QUEUES_TOGETHER, ACK_GROUPING_MS)


@pytest.mark.parametrize(
    ("partitions", "message_bytes", "queue", "total"),
    [(1, 200, 2000, 50_000), (60, 200, 2000, 120_000), (1, 1_000_000, 134, 50_000)],
)
def test_queues_of_consumers_hold_two_batches(partitions, message_bytes, queue, total):
    profile = PROFILE.changed(partitions=partitions, message_bytes=message_bytes)
    after = dataclasses.replace(advice().after, batch_fill=1000 if message_bytes < 1000 else 1)
    found = {each.name: each.value for each in consumer_advice(profile, after)}
    assert (found["receiver_queue_size"], found["max_total_receiver_queue_size_across_partitions"]) == (
        queue,
        total,
    )


@pytest.mark.parametrize(
    ("changed", "name", "value"),
    [
        ({"keys": 5}, "consumer_type", "KeyShared"),
        ({}, "consumer_type", "Exclusive or Failover"),
        ({"rate_messages_per_second": 10}, "receive", "receive()"),
        ({"rate_messages_per_second": 1e6}, "receive", "receive_table()"),
        ({"subscriptions": 3}, "readers and subscriptions", 3),
    ],
)
def test_advice_for_consumers_follows_the_traffic(changed, name, value):
    found = {each.name: each.value for each in consumer_advice(PROFILE.changed(**changed), advice().after)}
    assert found[name] == value


def test_the_codec_is_chosen_by_bytes_and_cpu():
    assert advice().settings.producer.compression_type is not CompressionType.NONE
    import os

    noise = Sample([os.urandom(200) for _ in range(500)], "noise")
    found = advice(sample=noise)
    assert found.settings.producer.compression_type is CompressionType.NONE
    assert "no codec saves" in found.codec_reason
    assert advice(compression=CompressionType.SNAPPY).settings.producer.compression_type.name == "SNAPPY"
    hard = advice(compression=CompressionType.ZSTD, compression_level=9).settings.producer
    assert (hard.compression_type, hard.compression_level) == (CompressionType.ZSTD, 9)


def test_more_subscriptions_justify_a_higher_compression_level():
    read_often = advice(profile=PROFILE.changed(subscriptions=10))
    never_read = advice(profile=PROFILE.changed(subscriptions=0))

    def size(found: Advice) -> float:
        chosen = found.settings.producer
        codec = (chosen.compression_type, chosen.compression_level)
        return next(c.entry_bytes for c in found.codecs if (c.compression, c.level) == codec)

    sizes = {(c.compression, c.level): c.entry_bytes for c in read_often.codecs}
    assert size(read_often) <= size(never_read)
    assert size(read_often) < sizes[CompressionType.ZSTD, 0]  # eleven times the bytes are worth CPU


def test_a_live_topic_is_observed_and_advised(broker, busy_topic):
    seen = observe(broker.service_url, broker.admin_url, busy_topic, seconds=1.5)
    assert seen.profile.partitions == 3
    assert (seen.producers, seen.profile.subscriptions) == (1, 1)
    assert 0 < seen.profile.rate_messages_per_second < 6000  # 4,000 on an idle machine
    assert seen.batch_fill > 1
    assert seen.compression is CompressionType.LZ4
    assert seen.compression_ratio > 1.2
    assert 30 < seen.profile.message_bytes < 45
    assert len(seen.entries_per_second_by_partition) == 3
    assert sum(seen.entries_per_second_by_partition.values()) == pytest.approx(seen.entries_per_second)
    assert seen.profile.keys == 0
    assert seen.sample is not None
    found = advise(seen.profile, sample=seen.sample, stock=JAVA, observed=seen)
    assert found.before.title == "now, LZ4"
    assert found.before.entries_per_second == pytest.approx(seen.entries_per_second)
    assert "messages an entry" in render.text(found)
    from geminga.client.admin import admin

    stats = admin(broker.admin_url, "GET", "persistent/public/default/busy/partitioned-stats")
    assert list(stats["subscriptions"]) == ["reads"]  # watching leaves nothing behind


def test_keys_and_encrypted_messages_are_noticed(broker):
    with broker.client() as client:
        producer = client.create_producer("keyed")

        def publish(number: int) -> None:
            producer.send_async(b"x" * 50, None, partition_key=f"key-{number % 7}")

        with repeating(publish, 0.002):
            seen = observe(broker.service_url, broker.admin_url, "keyed", seconds=0.5)
    assert seen.profile.keys == 7
    assert seen.profile.partitions == 1


def test_a_missing_or_idle_topic_is_an_error_without_a_traceback(broker):
    with pytest.raises(TopicNotFound):
        observe(broker.service_url, broker.admin_url, "nothing", seconds=0.1)
    with broker.client() as client:
        client.create_producer("still")
        with pytest.raises(
            InvalidConfiguration, match="nothing was published to persistent://public/default/still"
        ):
            observe(broker.service_url, broker.admin_url, "still", seconds=0.1)


def test_the_command_observes_a_topic_and_writes_a_settings_file(broker, busy_topic, tmp_path):
    path = tmp_path / "tuned.toml"
    result = run(
        "--topic", busy_topic, "--service-url", broker.service_url, "--admin-url", broker.admin_url,
        "--watch", "0.5", "--apply", str(path), "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert told["observed"]["producers"] == 1
    assert told["observed"]["service_url"] == broker.service_url
    tuned = geminga.load_settings(path)
    again = PublishSettings.from_dict(told["settings"])
    assert tuned.client == again.client_arguments()
    assert tuned.producer == again.producer_arguments()
    with geminga.Client(broker.service_url, **tuned.client) as client:
        client.create_producer("tuned", **tuned.producer).send(b"hello")


def test_the_command_explains_its_advice():
    result = run(*NUMBERS, *(f"--format={k}" for k in render.FORMATS))
    assert result.exit_code == 0, result.output
    for word in (
        "max_pending_messages = ", "geminga.Client(", "PulsarClient.builder()",
        "entries a second", "Sizes are measured on", "Consumers and readers:", "receiver_queue_size = ",
    ):  # fmt: skip
        assert word in result.output


def test_every_output_format_has_all_settings():
    settings = formula(PROFILE, compression=CompressionType.ZLib).settings
    python = render.python(settings)
    compile(python, "settings", "exec")
    for name in settings.producer_arguments():
        assert f"    {name}=" in python
    assert "CompressionType.ZLIB" in render.java(settings)
    assert "BatcherBuilder.DEFAULT" in render.java(settings)


def test_the_settings_name_the_observed_topic():
    settings = formula(PROFILE).settings
    place = render.PublishTarget(service_url='pulsar://"x', topic="persistent://a/b/c")
    for kind in render.FORMATS:
        shown = render.settings_as(kind, settings, place)
        assert '"pulsar://\\"x"' in shown
        assert '"persistent://a/b/c"' in shown
        assert '"my-topic"' not in shown
    compile(render.python(settings, place), "settings", "exec")


def test_sizes_and_compression_come_from_a_sample_file(tmp_path):
    file = tmp_path / "sample.jsonl"
    file.write_text("\n".join(json.dumps({"n": n, "text": "same words every time"}) for n in range(300)))
    result = run("--rate", "5000", "--sample", str(file), "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert told["profile"]["message_bytes"] == pytest.approx(42, abs=2)
    assert told["sample"] == str(file)


@pytest.mark.parametrize("name", list(STOCK))
def test_advice_compares_with_any_stock_settings(name):
    result = run(*NUMBERS, "--stock", name)
    assert result.exit_code == 0, result.output
    assert STOCK[name].title in result.output
