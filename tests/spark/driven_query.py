"""A streaming query as Spark drives its source, without Spark: what tests of checkpoints share."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, StructType

from geminga import Client
from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.client.admin import admin
from geminga.spark.datasource import PulsarDataSource, PulsarStreamReader
from geminga.testing.apache_pulsar import ApachePulsar

SCHEMA = StructType().add("value", BinaryType())


def data_source(options: Mapping[str, Any]) -> PulsarDataSource:
    """Return the data source with options as Spark passes them: names in lower case, values as text."""
    return PulsarDataSource({name.lower(): str(value) for name, value in options.items()})


def values(reader: Any, parts: Iterable[InputPartition] | None = None) -> list[bytes]:
    """Return the first column of ``parts`` (default: those that a batch reader plans now)."""
    planned = reader.partitions() if parts is None else parts
    return [value for part in planned for batch in reader.read(part) for value in batch.column(0).to_pylist()]


class Query:
    """A checkpoint, and readers that come and go."""

    def __init__(self, broker: EmbeddedBroker | ApachePulsar, topic: str, **options: Any) -> None:
        self.topic = topic
        given = {"service.url": broker.service_url, "topic": topic, "operationTimeoutMs": 5000}
        self.options = given | options
        self.broker = broker
        self.log: list[dict[str, Any]] = []
        self.reader = self.restart()

    def restart(self) -> PulsarStreamReader:
        if hasattr(self, "reader"):
            self.reader.stop()
        reader = data_source(self.options).streamReader(SCHEMA)
        self.reader = reader
        return reader

    def latest(self) -> dict[str, Any]:
        start = self.log[-1] if self.log else self.reader.initialOffset()
        return self.reader.latestOffset(start, self.reader.getDefaultReadLimit())

    def batch(self) -> list[bytes]:
        """A micro-batch, from its plan to Spark's commit log."""
        return self.run(self.latest())

    def run(self, end: dict[str, Any]) -> list[bytes]:
        start = self.log[-1] if self.log else self.reader.initialOffset()
        rows = self.rows(self.reader.partitions(start, end))
        self.log.append(end)
        return rows

    def rows(self, parts: Sequence[InputPartition]) -> list[bytes]:
        return values(self.reader, parts)

    def stats(self) -> dict[str, Any]:
        path = self.topic.replace("://", "/")
        found: dict[str, Any] = admin(self.broker.admin_url, "GET", f"{path}/stats")["subscriptions"]
        return {name: each for name, each in found.items() if each.get("isDurable", True)}

    @property
    def lag(self) -> dict[str, Any]:
        reported = self.reader.reportLatestOffset()
        return dict(reported["lag"][self.topic])

    @property
    def backlog(self) -> int:
        (only,) = self.stats().values()
        return int(only["msgBacklog"])


class OlderQuery(Query):
    """A query whose latest offset is requested before its start; Spark does so unless it restarts one."""

    def latest(self) -> dict[str, Any]:
        return self.reader.latestOffset()


def trim(broker: EmbeddedBroker, topic: str) -> None:
    """Have the broker delete the ledgers that it need not keep."""
    admin(broker.admin_url, "POST", f"{topic.replace('://', '/')}/trim")


def publish(client: Client, topic: str, first: int, count: int, batch: int = 1) -> None:
    with client.create_producer(topic, batching_max_messages=batch) as producer:
        values = [b"%d" % number for number in range(first, first + count)]
        producer.send_table(pa.table({"value": pa.array(values, pa.binary())}))


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]
