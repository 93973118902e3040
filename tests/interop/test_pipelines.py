"""The pipeline templates that ``make test`` has no time for, with Spark, a broker and real data.

One broker holds a topic of flights; a table that `ingest` made of it, through a kill -9, is where `replay`
and `backfill` begin.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from readers import available

import geminga
from geminga.client.admin import admin
from geminga.spark.pipelines import lake
from geminga.spark.pipelines.project import configuration, create, read_spec
from geminga.spark.pipelines.running import Outcome, run

pytestmark = pytest.mark.interop
TOPIC = "persistent://public/default/flights"
SCHEMA = (
    "carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, scheduled_departure STRING, "
    "departure_delay DOUBLE, arrival_delay DOUBLE, air_time DOUBLE, distance INT"
)
NAMES = [column.split()[0] for column in SCHEMA.split(", ")]
TOO_SLOW = "to connect back"
"""Part of Spark's error if a Python process did not start within ten seconds, as on a busy machine."""
KILLS = int(os.environ.get("GEMINGA_PIPELINE_KILLS", "2"))
FLIGHTS = 6000
"""Number of flights, a sample of the year's 336,776."""


def successful(outcome: Outcome) -> Outcome:
    assert outcome.exit_code == 0, "\n".join([outcome.error, *outcome.output[-60:]])
    return outcome


@dataclass
class World:
    """The broker, and what was published to it so far."""

    broker: geminga.EmbeddedBroker
    client: Any
    flights: list[dict[str, Any]]
    published: list[dict[str, Any]] = field(default_factory=list)
    project: Path = Path()

    def publish(self, count: int) -> None:
        """Publish the next flights, keyed by carrier, the hour as event time, and one malformed message."""
        producer = self.client.create_producer(
            TOPIC, batching_enabled=True, batching_max_messages=50, block_if_queue_full=True
        )
        for flight in self.flights[len(self.published) : len(self.published) + count]:
            at = int(flight["at"])
            row = {name: value for name, value in flight.items() if name != "at"}
            producer.send_async(
                json.dumps(row).encode(), lambda r, m: None, partition_key=flight["carrier"],
                event_timestamp=at, properties={"hour": str(at)},
            )  # fmt: skip
            self.published.append(row)
        producer.send_async(b"no flight", lambda r, m: None, partition_key="none")
        producer.flush()
        producer.close()

    @property
    def rows(self) -> Counter[str]:
        return multiset(self.published)


def multiset(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(json.dumps([row.get(name) for name in NAMES]) for row in rows)


def table(project: Path, name: str) -> list[dict[str, Any]]:
    return lake.table_dataset(str(project / "lake" / name)).to_table().to_pylist()


def delta_table(project: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of the files that the table's log names as present."""
    files: dict[str, None] = {}
    for commit in sorted((project / "lake" / name / "_delta_log").glob("*.json")):
        for action in map(json.loads, commit.read_text().splitlines()):
            if "remove" in action:
                files.pop(action["remove"]["path"], None)
            if "add" in action:
                files[action["add"]["path"]] = None
    return [row for file in files for row in pq.read_table(project / "lake" / name / file).to_pylist()]


def messages_of(world: World, topic: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the keys of a topic's messages, and their JSON with exact numbers."""
    found = []
    with world.client.create_reader(topic, geminga.MessageId.earliest) as reader:
        for message in available(reader):
            found.append((message.partition_key(), json.loads(message.data(), parse_float=Decimal)))
    return found


def killed_run(project: Path, pattern: str, count: int = 1) -> None:
    """Run a project, and kill all its processes at the line number ``count`` that has the pattern."""
    others = set(psutil.Process().children(recursive=True))  # a whole run's Apache Pulsar among them
    lines = []

    def kill(line: str) -> None:
        lines.extend(re.findall(pattern, line))
        if len(lines) >= count:
            for child in set(psutil.Process().children(recursive=True)) - others:
                child.kill()

    assert run(project, kill).exit_code != 0


@pytest.fixture(scope="module")
def world():
    from geminga.demo.flights import events

    table = events()
    chosen = table.take(list(range(0, len(table), len(table) // FLIGHTS))).slice(0, FLIGHTS)
    times = chosen["event_time"].cast("int64").to_pylist()
    values = map(json.loads, chosen["value"].to_pylist())
    records = [{**value, "at": at} for value, at in zip(values, times, strict=True)]
    with geminga.embedded(deduplication=True) as broker, broker.client() as client:
        admin(broker.admin_url, "PUT", "persistent/public/default/flights/partitions", 3)
        yield World(broker, client, records)


@pytest.fixture(scope="module")
def ingested(world, tmp_path_factory):
    """The table of the first 4,000 flights. Spark is killed half-way, and after it has noted what it did."""
    world.project = tmp_path_factory.mktemp("lakes") / "flights_lake"
    create(
        world.project,
        "ingest",
        {"service_url": world.broker.service_url, "topic": TOPIC, "schema": SCHEMA, "table": "flights"},
    )
    definitions = world.project / "transformations/ingest.py"
    limited = definitions.read_text().replace(
        "        .load()", '        .option("maxRowsPerTrigger", 500)\n        .load()'
    )
    definitions.write_text(limited)
    world.publish(4000)
    killed_run(world.project, "flights: micro-batch [1-9]")
    done = successful(run(world.project))
    assert sum(done.lag_messages.values()) == 0
    # As if it had been killed between the table's note of the last micro-batch and the checkpoint's.
    flow = world.project / "checkpoints/_checkpoints/spark_catalog/default/flights/flights/0/commits"
    last = max(int(path.name) for path in flow.iterdir() if path.name.isdigit())
    (flow / str(last)).unlink()
    (flow / f".{last}.crc").unlink(missing_ok=True)
    world.publish(500)
    successful(run(world.project))
    return world


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ingest_equals_the_published_rows_after_kills(ingested):
    rows = table(ingested.project, "flights")
    assert multiset(rows) == ingested.rows
    assert not [row for row in rows if row["__rescued"] is not None]
    assert len({row["__messageId"] for row in rows}) == len(rows)
    dead = table(ingested.project, "flights_dead_letters")
    assert [row["value"] for row in dead] == [b"no flight"] * 2
    before = lake.size(str(ingested.project / "lake/flights"))
    command = [sys.executable, "-m", "geminga.cli.main", "pipeline", "compact", str(ingested.project)]
    done = subprocess.run([*command, "--keep-hours", "0"], capture_output=True, text=True, timeout=120)
    assert f"flights: {before.files} files are now" in done.stdout, done.stderr
    assert multiset(table(ingested.project, "flights")) == ingested.rows


@pytest.mark.long
@pytest.mark.timeout(600)
def test_replay_publishes_the_table_in_the_order_of_its_time(ingested, tmp_path):
    project = tmp_path / "again"
    answers = {
        "service_url": ingested.broker.service_url, "source": str(ingested.project / "lake/flights"),
        "time": "__eventTime", "speed": "max", "topic": "flights-again",
    }  # fmt: skip
    create(project, "replay", answers)
    for _ in range(2):  # the second run finds nothing more to do
        successful(run(project))
    reader = ingested.client.create_reader("flights-again", geminga.MessageId.earliest)
    again, times = [], []
    for message in available(reader):
        again.append(json.loads(message.data()))
        times.append(message.event_timestamp())
        assert message.partition_key() == again[-1]["carrier"]
        assert message.properties() == {"hour": str(message.event_timestamp())}
    assert multiset(again) == ingested.rows
    assert times == sorted(times)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_backfill_has_no_gap_and_no_duplicate_at_the_boundary(ingested, tmp_path):
    ingested.publish(300)
    project = tmp_path / "all"
    answers = {
        "service_url": ingested.broker.service_url, "source": str(ingested.project / "lake/flights"),
        "topic": TOPIC, "schema": SCHEMA, "table": "all_flights",
    }  # fmt: skip
    create(project, "backfill", answers)
    successful(run(project))
    assert multiset(table(project, "all_flights")) == ingested.rows
    # Both sides continue: the table gets the flights after the seam too, and its files are compacted.
    ingested.publish(300)
    successful(run(ingested.project))
    lake.compact(str(ingested.project / "lake/flights"))
    successful(run(project))
    rows = table(project, "all_flights")
    assert multiset(rows) == ingested.rows
    places = Counter(
        (row["__partition"], row["__ledgerId"], row["__entryId"], row["__batchIndex"]) for row in rows
    )
    assert max(places.values()) == 1
    # The seam is behind the newest flight: unreadable messages after it are in the dead letters here too.
    dead = Counter(
        (row["__partition"], row["__ledgerId"], row["__entryId"], row["__batchIndex"])
        for row in table(project, "all_flights_dead_letters")
    )
    assert 2 <= len(dead) <= 3
    assert max(dead.values()) == 1


@pytest.mark.long
@pytest.mark.timeout(600)
def test_changelog_keeps_the_newest_value_of_each_key(world, tmp_path):
    project = tmp_path / "tails"
    expected: dict[str, dict[str, Any]] = {}

    def publish(flights: list[dict[str, Any]]) -> None:
        producer = world.client.create_producer("tails", batching_enabled=True, block_if_queue_full=True)
        for number, flight in enumerate(flights):
            key = flight["tailnum"] or "unknown"
            row = {name: value for name, value in flight.items() if name != "at"}
            if number % 7 == 3:
                expected.pop(key, None)
                producer.send_async(b"", lambda r, m: None, partition_key=key)
            else:
                expected[key] = row
                producer.send_async(json.dumps(row).encode(), lambda r, m: None, partition_key=key)
        producer.send_async(b"without a key", lambda r, m: None)
        producer.flush()
        producer.close()

    answers = {"service_url": world.broker.service_url, "topic": "tails", "schema": SCHEMA, "table": "tails"}
    create(project, "changelog", answers)
    for flights in (world.flights[:2000], world.flights[2000:4000]):
        publish(flights)
        successful(run(project))
        rows = table(project, "tails")
        assert {row["__key"]: multiset([row]) for row in rows} == {
            key: multiset([row]) for key, row in expected.items()
        }
        assert len(rows) == len(expected)
    assert len(table(project, "tails_dead_letters")) == 2


@pytest.mark.long
@pytest.mark.timeout(600)
def test_health_finds_and_draws_the_stuck_subscription(world, tmp_path):
    producer = world.client.create_producer("watched", batching_enabled=True, batching_max_messages=10)
    for number in range(100):
        producer.send_async(b"%d" % number, lambda r, m: None)
    producer.flush()
    for name in ("stuck", "done"):
        consumer = world.client.subscribe(
            "watched", name, consumer_type=geminga.ConsumerType.Shared,
            initial_position=geminga.InitialPosition.Earliest,
        )  # fmt: skip
        for number in range(100):
            message = consumer.receive(60_000)
            if name == "done" or number // 10 in (3, 5):
                consumer.acknowledge(message)
    project = tmp_path / "fleet"
    answers = {
        "admin_url": world.broker.admin_url, "pattern": "watched|idle", "samples": "3", "every": "1 second",
        "stuck_after": "1 second",
    }  # fmt: skip
    create(project, "health", answers)
    world.client.create_producer("idle").close()
    for runs in (1, 2):
        successful(run(project))
        samples = table(project, "samples")
        assert len(samples) == 9 * runs
    newest = {row["subscription"]: row for row in sorted(samples, key=lambda row: row["sampled_at"])}
    assert newest["stuck"]["status"] == "stuck"
    assert newest["stuck"]["ack_holes"] == 2
    assert newest["stuck"]["backlog"] == 8
    assert newest["stuck"]["batch_fill"] == 10
    assert newest["stuck"]["unmoved_seconds"] > 4, "what an earlier run has seen counts"
    assert (newest["done"]["status"], newest["done"]["backlog"]) == ("ok", 0)
    assert newest[""]["status"] == "none"
    assert [row["subscription"] for row in table(project, "alerts")] == ["stuck"]
    done = subprocess.run(
        [sys.executable, "-m", "geminga.cli.main", "pipeline", "report", str(project)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "1 of 3 subscriptions are stuck or growing" in done.stdout, done.stderr
    pictures = list((project / "report").glob("*.png"))
    assert len(pictures) == 4
    assert min(picture.stat().st_size for picture in pictures) > 5000


@pytest.mark.rotating(2, group="whole pipelines")
@pytest.mark.timeout(700)
def test_rollup_writes_the_same_to_lake_and_topic(world, tmp_path):
    producer = world.client.create_producer("events", batching_enabled=True)
    for number in range(600):
        row = {"name": f"n{number % 3}", "at": f"2026-11-02T00:{number // 60:02}:{number % 60:02}Z"}
        producer.send_async(json.dumps(row).encode(), lambda result, message_id: None)
    bad = [b"{ broken", b"[]", b"", b'{"name": "n0"}', b'{"name": "n0", "at": "soon"}', b"\xff"]
    for value in bad:
        producer.send_async(value, lambda result, message_id: None)
    # A missing group is a group, and unknown fields are ignored.
    odd = {"at": "2026-11-02T00:00:30Z", "more": 1}
    producer.send_async(json.dumps(odd).encode(), lambda result, message_id: None)
    producer.flush()
    project = tmp_path / "counted"
    answers = {
        "service_url": world.broker.service_url, "schema": "name STRING, at TIMESTAMP", "window": "1 minute",
        "lateness": "1 minute",
    }  # fmt: skip
    create(project, "rollup", answers)
    successful(run(project))
    found = messages_of(world, "event-counts")
    assert all(key == row.get("name", "") for key, row in found)
    told = [row for _, row in found]
    windows = table(project, "event_counts")
    in_lake = sorted(
        (each["window_start"].isoformat()[:19], each["name"] or "", each["messages"]) for each in windows
    )
    in_topic = sorted((each["window_start"][:19], each.get("name", ""), each["messages"]) for each in told)
    assert in_topic == in_lake
    first = [(name, messages) for start, name, messages in in_lake if start.endswith("00:00:00")]
    assert first == [("", 1), ("n0", 20), ("n1", 20), ("n2", 20)]
    dead = table(project, "event_counts_dead_letters")
    assert Counter(row["value"] for row in dead) == Counter(bad)
    assert all(row["__messageId"] for row in dead)


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_ingest_rollup_and_copy_at_once_lose_and_change_nothing_when_killed(world, tmp_path):
    """Five flows of one Spark, which is killed at another moment of each run."""
    answers = {
        "service_url": world.broker.service_url, "topic": "orders",
        "schema": "id BIGINT, price DECIMAL(38, 18), name STRING, at TIMESTAMP",
    }  # fmt: skip
    choices = {
        "ingest": {"table": "orders"},
        "rollup": {"table": "order_counts", "output_topic": "order-counts", "lateness": "20 minutes"},
        "publish": {"select": "id, price, name, at", "output_topic": "orders-copy"},
    }
    project = tmp_path / "ingest"
    spec: dict[str, Any] = {}
    for template, more in choices.items():
        create(tmp_path / template, template, answers | more)
        definitions = tmp_path / template / f"transformations/{template}.py"
        text = definitions.read_text().replace(".load()", '.option("maxRowsPerTrigger", 150).load()')
        (project / "transformations" / definitions.name).write_text(text)
        spec = {**configuration(tmp_path / template), **spec}
    text = json.dumps({**read_spec(project), "configuration": spec})
    (project / "spark-pipeline.yml").write_text(text)
    published: list[dict[str, Any]] = []
    for kills_left in reversed(range(KILLS + 1)):
        with world.client.create_producer(
            "orders", batching_enabled=True, batching_max_messages=20
        ) as producer:
            for number in range(len(published), len(published) + 900):
                price = f"{number}.{number * 1_000_000_007 % 10**18:018}"
                at = f"2026-11-02T{number // 360:02}:{number // 6 % 60:02}:{number % 6}0Z"
                row = {"id": number, "price": price, "name": f"n{number % 3}", "at": at}
                producer.send_async(json.dumps(row).encode(), None, partition_key=f"k{number % 7}")
                published.append(row)
            producer.flush()
        if kills_left:
            killed_run(project, "micro-batch", count=4 * kills_left)
    while TOO_SLOW in (outcome := run(project)).error:
        pass  # this run, too, ended at some moment
    successful(outcome)

    given = Counter((row["id"], Decimal(row["price"]), row["name"]) for row in published)
    rows = table(project, "orders")
    assert Counter((row["id"], row["price"], row["name"]) for row in rows) == given
    assert {row["__rescued"] for row in rows} == {None}
    copies = messages_of(world, "orders-copy")
    assert Counter((row["id"], Decimal(row["price"]), row["name"]) for _, row in copies) == given
    assert {key: row["id"] for key, row in copies} == {f"k{row['id'] % 7}": row["id"] for row in published}
    in_lake = Counter(
        (each["window_start"].isoformat()[:19], each["name"], each["messages"])
        for each in table(project, "order_counts")
    )
    counts = Counter((f"{row['at'][:15]}0:00", row["name"]) for row in published)
    assert len(in_lake) >= len(counts) - 3 * 4, "the last windows are not closed yet"
    assert in_lake == Counter((*window, counts[window]) for window in {key[:2] for key in in_lake})
    assert in_lake == Counter(
        (row["window_start"][:19], row["name"], row["messages"])
        for _, row in messages_of(world, "order-counts")
    )


@pytest.mark.rotating(2, group="whole pipelines")
def test_a_wrong_schema_is_reported_in_one_line(tmp_path):
    project = tmp_path / "wrong"
    with geminga.embedded(web_port=None) as broker:
        create(project, "ingest", {"schema": "id NUMBERISH", "service_url": broker.service_url})
        outcome = run(project)
    assert outcome.exit_code != 0
    assert outcome.error
    assert outcome.after == {}


@dataclass
class Reading:
    """Initial schema of the registry."""

    station: str
    celsius: float | None = None


@dataclass
class Later(Reading):
    """The next version of it."""

    height: int = 5


Later.__name__ = "Reading"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_columns_and_later_columns_of_a_typed_topic_are_ingested(world, tmp_path):
    from geminga.schema import AvroSchema, BytesSchema

    def publish(codec: Any, values: list[Any]) -> None:
        with world.client.create_producer("readings", schema=codec) as producer:
            for value in values:
                producer.send(value)

    project = tmp_path / "stations"
    create(
        project, "ingest_typed",
        {"service_url": world.broker.service_url, "topic": "readings", "table": "readings"},
    )  # fmt: skip
    publish(AvroSchema(Reading), [Reading("Oslo", -3.5), Reading("Rome")])
    publish(BytesSchema(), [b"garbage"])
    successful(run(project))
    publish(AvroSchema(Later), [Later("Bergen", 4.0, 12)])
    publish(AvroSchema(Reading), [Reading("Bonn", 9.5)])
    successful(run(project))
    rows = sorted((row["station"], row["celsius"], row["height"]) for row in table(project, "readings"))
    # A stored row has no value of a later column; a message that is read later has the column's default.
    assert rows == [
        ("Bergen", 4.0, 12), ("Bonn", 9.5, 5), ("Oslo", -3.5, None), ("Rome", None, None),
    ]  # fmt: skip
    (dead,) = table(project, "readings_dead_letters")
    assert dead["value"] == b"garbage"


@pytest.mark.skipif(
    not version("pyspark").startswith("4.2."), reason="Delta Lake's connector is for Spark 4.2"
)
@pytest.mark.delta
@pytest.mark.timeout(600)
def test_ingest_writes_a_delta_table(world, tmp_path):
    project = tmp_path / "delta_lake"
    answers = {"service_url": world.broker.service_url, "topic": "for-delta", "format": "delta"}
    create(project, "ingest", answers)
    with (project / "transformations/ingest.py").open("a") as definitions:
        definitions.write(
            '@dp.materialized_view(name="seen")\n'
            "def seen() -> DataFrame:\n"
            '    return spark.read.table("events").select("id", "__rescued")\n'
        )
    producer = world.client.create_producer("for-delta", batching_enabled=True)
    for first in (0, 100):
        for number in range(first, first + 100):
            producer.send_async(json.dumps({"id": number}).encode(), lambda result, message_id: None)
        producer.flush()
        successful(run(project))
        assert (project / "lake/events/_delta_log").is_dir()
        for name in ("events", "seen"):
            assert sorted(row["id"] for row in delta_table(project, name)) == list(range(first + 100)), name
