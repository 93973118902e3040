"""The order of rows: of a partition through a stream, and of a key into the topic that it is copied to."""

from collections import defaultdict

import pyarrow as pa
import pytest
from readers import available

from geminga import Client, MessageId
from geminga.broker.serving.embedded import embedded
from geminga.client.admin import admin

pytestmark = [pytest.mark.spark, pytest.mark.timeout(450)]

KEYS = 10
ROWS = 6_000


@pytest.fixture(scope="module")
def broker():
    """A broker with ledgers so small that a partition has many, and with deduplication."""
    with embedded(ledger_entries_max=20) as running:
        admin(running.admin_url, "POST", "namespaces/public/default/deduplication", True)
        yield running


@pytest.mark.rotating(1)
@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_copied_topic_has_the_rows_of_each_key_in_their_order(spark, broker, tmp_path, exactly_once):
    source = f"persistent://public/default/source-{exactly_once}"
    target = f"persistent://public/default/target-{exactly_once}"
    client = broker.client()
    for topic, partitions in ((source, 2), (target, 3)):
        admin(broker.admin_url, "PUT", topic.replace("://", "/") + "/partitions", partitions)
    with client.create_producer(source, batching_enabled=True, batching_max_messages=20) as producer:
        values = pa.array([b"%d" % number for number in range(ROWS)], pa.binary())
        keys = [f"k{number % KEYS}" for number in range(ROWS)]
        producer.send_table(pa.table({"value": values, "key": keys}))
    given = {"service.url": broker.service_url}
    rows = spark.readStream.format("pulsar").options(**given, columns="value,__key")
    writer = (
        rows.option("startingOffsets", "earliest").option("maxRowsPerTrigger", 4000).load(source)
        .writeStream.format("pulsar").options(**given, topic=target).trigger(availableNow=True)
        .option("exactlyOnce", exactly_once).option("checkpointLocation", str(tmp_path))
    )  # fmt: skip
    assert writer.start().awaitTermination(400)
    assert rows_by_key(client, target) == {f"k{key}": list(range(key, ROWS, KEYS)) for key in range(KEYS)}, (
        "rows of a key changed their order"
    )


def rows_by_key(client: Client, topic: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for partition in client.get_topic_partitions(topic):
        with client.create_reader(partition, MessageId.earliest) as reader:
            for message in available(reader):
                found[message.partition_key()].append(int(message.data()))
    return found
