"""kill -9 of the whole Spark application in the middle of a stream into a topic."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from driven_query import SCHEMA, data_source, values
from readers import available
from waiting import eventually

from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.client.admin import admin
from geminga.client.api.sync import Client
from geminga.ids import MessageId

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(600)]

ROWS = 6_000
KILLS = int(os.environ.get("GEMINGA_DRIVER_KILLS", "1"))
"""A kill takes a start of Spark: `make long` does one, a soak as many as it likes."""

APPLICATION = """
import sys
import geminga.spark
url, source, target, folder = sys.argv[1:]
spark = geminga.spark.session("local[2]", config={
    "spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
})
frame = (
    spark.readStream.format("pulsar").option("service.url", url).option("topic", source)
    .option("startingOffsets", "earliest").option("columns", "value,__key").option("maxRowsPerTrigger", 800)
    .load()
)
query = (
    frame.writeStream.format("pulsar").option("service.url", url).option("topic", target)
    .option("checkpointLocation", folder).trigger(availableNow=True)
)
query.start().awaitTermination()
"""


def start(broker: EmbeddedBroker, source: str, target: str, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", APPLICATION, broker.service_url, source, target, str(folder)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill(application: subprocess.Popen[bytes]) -> None:
    """The driver, its JVM and, through the closed sockets, the workers."""
    os.killpg(application.pid, signal.SIGKILL)
    application.wait()


def count(broker: EmbeddedBroker, topic: str) -> int:
    return len(values(data_source({"service.url": broker.service_url, "topic": topic}).reader(SCHEMA)))


def until_it_writes(
    application: subprocess.Popen[bytes], broker: EmbeddedBroker, topic: str, known: int
) -> None:
    """Wait until the topic has more rows than known, or the application has ended."""
    eventually(lambda: application.poll() is not None or count(broker, topic) > known)


def last_values(client: Client, topic: str) -> tuple[dict[str, bytes], set[bytes]]:
    """The last value of each key of a topic, and all values."""
    last, found = {}, set()
    for partition in client.get_topic_partitions(topic):
        with client.create_reader(partition, MessageId.earliest) as reader:
            for message in available(reader):
                last[message.partition_key()] = message.data()
                found.add(message.data())
    return last, found


def test_a_killed_copy_ends_with_the_last_value_of_each_key(
    pulsar_broker, pulsar_client, pulsar_topic, tmp_path
):
    """The default sink repeats rows of the micro-batch that was killed, in their order."""
    target = f"{pulsar_topic}-out"
    for topic, partitions in ((pulsar_topic, 2), (target, 3)):
        admin(pulsar_broker.admin_url, "PUT", topic.replace("://", "/") + "/partitions", partitions)
    sent = [b"%d" % number for number in range(ROWS)]
    with pulsar_client.create_producer(pulsar_topic, batching_enabled=True, batching_max_messages=20) as p:
        keys = [f"k{number % 50}" for number in range(ROWS)]
        p.send_table(pa.table({"value": pa.array(sent, pa.binary()), "key": keys}))
    for _ in range(KILLS):
        known = count(pulsar_broker, target)
        application = start(pulsar_broker, pulsar_topic, target, tmp_path)
        until_it_writes(application, pulsar_broker, target, known)
        kill(application)
    assert count(pulsar_broker, target) < ROWS, "nothing was killed on its way"
    assert start(pulsar_broker, pulsar_topic, target, tmp_path).wait(300) == 0
    last, found = last_values(pulsar_client, target)
    assert found == set(sent)
    assert last == {f"k{key}": sent[key - 50] for key in range(50)}
