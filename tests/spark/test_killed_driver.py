"""kill -9 of the whole Spark application in the middle of a stream into a topic."""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from waiting import eventually, until_some_moment

from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.client.admin import admin
from geminga.client.sync import Client
from geminga.ids import MessageId
from geminga.spark.datasource import PulsarDataSource, PulsarReader
from geminga.spark.schema import source_schema

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(600)]

ROWS = 6_000
KILLS = int(os.environ.get("GEMINGA_DRIVER_KILLS", "1"))
"""A kill takes a start of Spark: `make long` does one, a soak as many as it likes."""

APPLICATION = """
import sys
import geminga.spark
url, source, target, folder, exactly_once = sys.argv[1:]
spark = geminga.spark.session("local[2]", config={
    "spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
})
frame = (
    spark.readStream.format("pulsar").option("service.url", url).option("topic", source)
    .option("startingOffsets", "earliest").option("columns", "value,__key").option("maxRowsPerTrigger", 800)
    .load()
)
if exactly_once == "true":
    frame = frame.repartition(3)  # the order of rows differs in every attempt
query = (
    frame.writeStream.format("pulsar").option("service.url", url).option("topic", target)
    .option("exactlyOnce", exactly_once).option("checkpointLocation", folder).trigger(availableNow=True)
)
query.start().awaitTermination()
"""


def start(
    broker: EmbeddedBroker, source: str, target: str, folder: Path, *, exactly_once: bool = True
) -> subprocess.Popen[bytes]:
    given = [broker.service_url, source, target, str(folder), str(exactly_once).lower()]
    return subprocess.Popen(
        [sys.executable, "-c", APPLICATION, *given],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill(application: subprocess.Popen[bytes]) -> None:
    """The driver, its JVM and, through the closed sockets, the workers."""
    os.killpg(application.pid, signal.SIGKILL)
    application.wait()


def rows_of(broker: EmbeddedBroker, topic: str) -> Counter[bytes]:
    schema = source_schema(("value",))
    reader = PulsarDataSource({"service.url": broker.service_url, "topic": topic}).reader(schema)
    assert isinstance(reader, PulsarReader)
    found: Counter[bytes] = Counter()
    for part in reader.partitions():
        for batch in reader.read(part):
            found.update(batch.column(0).to_pylist())
    return found


def until_it_writes(
    application: subprocess.Popen[bytes], broker: EmbeddedBroker, topic: str, known: int
) -> None:
    """Wait until the topic has more rows than known, or the application has ended."""
    eventually(lambda: application.poll() is not None or rows_of(broker, topic).total() > known)


def test_no_row_is_lost_or_doubled(pulsar_broker, pulsar_client, pulsar_topic, tmp_path):
    admin(pulsar_broker.admin_url, "POST", "namespaces/public/default/deduplication", True)
    target = f"{pulsar_topic}-out"
    for topic in (pulsar_topic, target):
        admin(pulsar_broker.admin_url, "PUT", topic.replace("://", "/") + "/partitions", 2)
    values = [b"%d" % number for number in range(ROWS)]
    with pulsar_client.create_producer(pulsar_topic, batching_max_messages=20) as producer:
        keys = [f"k{number % 50}" if number % 2 else None for number in range(ROWS)]
        producer.send_table(pa.table({"value": pa.array(values, pa.binary()), "key": keys}))
    seed = random.randrange(1 << 32)
    numbers = random.Random(seed)
    progress = []
    for _ in range(KILLS):
        application = start(pulsar_broker, pulsar_topic, target, tmp_path)
        known = rows_of(pulsar_broker, target).total()
        until_it_writes(application, pulsar_broker, target, known)
        until_some_moment(numbers, 1.5)
        kill(application)
        progress.append(rows_of(pulsar_broker, target).total())
    last = start(pulsar_broker, pulsar_topic, target, tmp_path)
    assert last.wait(300) == 0, f"seed {seed}"
    found = rows_of(pulsar_broker, target)
    assert found == Counter(values), f"seed {seed}, rows after each kill {progress}"
    assert 0 < progress[0] < ROWS, f"seed {seed}: nothing was killed on its way, {progress}"


def last_values(client: Client, topic: str) -> tuple[dict[str, bytes], set[bytes]]:
    """The last value of each key of a topic, and all values."""
    last, values = {}, set()
    for partition in client.get_topic_partitions(topic):
        with client.create_reader(partition, MessageId.earliest) as reader:
            while reader.has_message_available():
                message = reader.read_next(timeout_millis=30_000)
                last[message.partition_key()] = message.data()
                values.add(message.data())
    return last, values


def test_a_killed_copy_ends_with_the_last_value_of_each_key(
    pulsar_broker, pulsar_client, pulsar_topic, tmp_path
):
    """The default sink repeats rows of the micro-batch that was killed, in their order."""
    target = f"{pulsar_topic}-out"
    for topic, partitions in ((pulsar_topic, 2), (target, 3)):
        admin(pulsar_broker.admin_url, "PUT", topic.replace("://", "/") + "/partitions", partitions)
    values = [b"%d" % number for number in range(ROWS)]
    with pulsar_client.create_producer(pulsar_topic, batching_enabled=True, batching_max_messages=20) as p:
        keys = [f"k{number % 50}" for number in range(ROWS)]
        p.send_table(pa.table({"value": pa.array(values, pa.binary()), "key": keys}))
    for _ in range(KILLS):
        known = rows_of(pulsar_broker, target).total()
        application = start(pulsar_broker, pulsar_topic, target, tmp_path, exactly_once=False)
        until_it_writes(application, pulsar_broker, target, known)
        kill(application)
    assert rows_of(pulsar_broker, target).total() < ROWS, "nothing was killed on its way"
    assert start(pulsar_broker, pulsar_topic, target, tmp_path, exactly_once=False).wait(300) == 0
    last, found = last_values(pulsar_client, target)
    assert found == set(values)
    assert last == {f"k{key}": values[key - 50] for key in range(50)}
