"""Runs of scripted faults with a broker that can die, topics, one Spark session, and a check of the results.

A `Scenario` names the query, the point and the fault; `Play` runs it, and compares the written rows with the
input rows, and the rows read with those published, as multisets of values with their keys. The official
client reads the topics; the sink keeps each micro-batch of a stream: a repeated one must hold the same rows.
"""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import pulsar
import pyarrow as pa
from broker_process import BrokerProcess
from faulty_source import OF_READING, OF_THE_SINK, OF_THE_SOURCE, OF_WRITING, FaultyDataSource, Script
from waiting import eventually
from withholding import WithholdingProxy

from geminga import Client, InitialPosition
from geminga.client.admin import admin
from geminga.testing.apache_pulsar import ApachePulsar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

PARTITIONS = 2
ROWS = 180
ROWS_PER_TRIGGER = 60
"""Half of them of each partition: a task has one whole piece and a part of another."""
MORE_ROWS = 40
LEDGERS = 3
"""Ledgers of each partition, in a namespace without retention."""
QUERY_SECONDS_MAX = 240
AVAILABLE_NOW = {"availableNow": True}
TOO_SLOW = "Python worker failed to connect back"
"""Spark's error if a Python process did not start within ten seconds, as on a busy machine."""
POINTS = (*OF_THE_SOURCE, *OF_READING, *OF_WRITING, *OF_THE_SINK)
KEEPING, TRIMMING = "public/chaos", "public/chaos-trimmed"

Row = tuple[bytes, str | None]
Rows = Counter[Row]
Shape = Literal["copy", "read", "batch read", "batch write"]
Outcome = Literal["equal", "superset", "subset"]
Strike = Callable[["Play"], None]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One scripted fault.

    ``shape``: a stream from topic to topic, a stream into a sink of this process, a batch query that reads or
    one that writes. ``fault``: what `Script` knows, or what is done from outside while the process at
    ``point`` stands still. ``between`` is done after the first run; the second one begins from the
    checkpoint of the first, after `MORE_ROWS` were published. ``error``: how the first run or, with
    ``between``, the second one has to fail. ``outcome``: what found has to be of what was given.
    """

    name: str
    shape: Shape
    point: str = ""
    hit: int = 0
    fault: str | Strike = ""
    between: Strike | None = None
    exactly_once: bool = True
    outcome: Outcome = "equal"
    error: str = ""
    trims: bool = False
    by_pattern: bool = False
    is_cut: bool = False
    """All connections go through a proxy."""
    source: Mapping[str, str] = field(default_factory=dict)
    sink: Mapping[str, str] = field(default_factory=dict)
    second: Mapping[str, str] = field(default_factory=dict)
    """Further options of the source, from the second run on."""

    def __post_init__(self) -> None:
        assert self.point in ("", *POINTS), self.point

    @property
    def goes_on(self) -> bool:
        """Whether one query takes everything, what is published behind the fault too. The others are begun
        again, from their checkpoint."""
        is_stream = self.shape in ("copy", "read")
        return is_stream and not (self.ends_the_query or self.between or self.error or self.is_cut)

    @property
    def ends_the_query(self) -> bool:
        """Return whether the fault kills a process that a query has only one of, so that the query fails."""
        return isinstance(self.fault, str) and self.point in (*OF_THE_SOURCE, *OF_THE_SINK)


# --- brokers ---
class GemingaBroker(BrokerProcess):
    """Ours, from the command line."""

    def stop(self) -> None:
        self.kill()

    def start_again(self) -> None:
        self.start()
        self.wait_ready()

    def suspend(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


Broker = GemingaBroker | ApachePulsar
"""A broker that is a process: `stop` kills it, `start_again` returns when it answers."""


@dataclass
class Audience:
    """A broker, a client that publishes to it, and the official client that reads the topics."""

    broker: Broker
    client: Client
    witness: pulsar.Client

    @staticmethod
    @contextmanager
    def open(broker: Broker) -> Iterator[Audience]:
        """Deduplication is on in `KEEPING`, which keeps what was read; `TRIMMING` keeps nothing."""
        for namespace, keeps in ((KEEPING, -1), (TRIMMING, 0)):
            path = f"namespaces/{namespace}"
            admin(broker.admin_url, "PUT", path, {})
            retention = {"retentionTimeInMinutes": keeps, "retentionSizeInMB": keeps}
            admin(broker.admin_url, "POST", f"{path}/retention", retention)
            # Deduplication has a cursor of its own, which holds ledgers back.
            admin(broker.admin_url, "POST", f"{path}/deduplication", bool(keeps))
        with Client(broker.service_url) as client:
            logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
            witness = pulsar.Client(broker.service_url, logger=logger)
            try:
                yield Audience(broker, client, witness)
            finally:
                witness.close()

    def admin(self, method: str, topic: str, what: str = "", body: Any = None) -> Any:
        return admin(self.broker.admin_url, method, topic.replace("://", "/") + what, body)

    def make_topic(self, topic: str) -> None:
        self.admin("PUT", topic, "/partitions", PARTITIONS)

    def hold(self, topic: str) -> None:
        """Nothing of the topic is trimmed until `let_go`."""
        self.client.subscribe(topic, "anchor", initial_position=InitialPosition.Earliest).close()

    def let_go(self, topic: str) -> None:
        for partition in self.partitions(topic):
            self.admin("DELETE", partition, "/subscription/anchor")

    def partitions(self, topic: str) -> list[str]:
        return self.client.get_topic_partitions(topic)

    def publish(self, topic: str, rows: Rows) -> None:
        values, keys = zip(*rows.elements(), strict=True)
        table = pa.table({"value": pa.array(values, pa.binary()), "key": pa.array(keys, pa.string())})
        with self.client.create_producer(topic, batching_enabled=True, batching_max_messages=10) as producer:
            producer.send_table(table)

    def found(self, topic: str) -> Rows:
        """All of a topic's messages, as the official client reads them."""
        found: Rows = Counter()
        for partition in self.partitions(topic):
            reader = self.witness.create_reader(partition, pulsar.MessageId.earliest)
            while reader.has_message_available():
                message = reader.read_next(30_000)
                found[message.data(), message.partition_key() or None] += 1
            reader.close()
        return found


@dataclass
class World:
    """Session, broker and proxy that all plays of a module share."""

    spark: SparkSession
    audience: Audience
    proxy: WithholdingProxy

    @staticmethod
    @contextmanager
    def open(spark: SparkSession, broker: Broker) -> Iterator[World]:
        spark.dataSource.register(FaultyDataSource)
        port = int(broker.service_url.rpartition(":")[2])
        with WithholdingProxy(port) as proxy, Audience.open(broker) as audience:
            yield World(spark, audience, proxy)

    @property
    def broker(self) -> Broker:
        return self.audience.broker


def rows(first: int, count: int) -> Rows:
    """``count`` different ones; every third has no key."""
    return Counter(
        (b"%06d" % number, None if number % 3 == 0 else f"k{number % 7}")
        for number in range(first, first + count)
    )


# --- a play ---
class Play:
    """One scenario on its way.

    ``published``: what is in the source. ``given``: what the sink has to have, each row as often as it was
    given.
    """

    def __init__(self, world: World, scenario: Scenario, folder: Path) -> None:
        self.world = world
        self.audience = world.audience
        self.scenario = scenario
        self.folder = folder
        fault = scenario.fault if isinstance(scenario.fault, str) else "wait"
        self.script = Script(str(folder), scenario.point, scenario.hit, fault)
        namespace = TRIMMING if scenario.trims else KEEPING
        self.source = f"persistent://{namespace}/source-{uuid4().hex[:10]}"
        self.target = f"persistent://{namespace}/target-{uuid4().hex[:10]}"
        self.published: Rows = Counter()
        self.given: Rows = Counter()
        self.more: Mapping[str, str] = {}
        self.is_second = False
        self.kept: dict[int, Rows] = {}
        """Newest rows of each micro-batch, by its number."""
        self.replanned = False
        """A repeated micro-batch may hold other rows, since its plan was removed."""
        self.strike_error: BaseException | None = None

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    # --- helpers of strikes ---
    def go(self) -> None:
        """Let the process that waits at a point continue."""
        (self.folder / "go").touch()

    def publish(self, count: int, topic: str | None = None, *, is_read: bool = True) -> None:
        fresh = rows(self.published.total(), count)
        self.published += fresh
        self.given += fresh if is_read else Counter()
        self.audience.publish(topic or self.source, fresh)

    def unload(self) -> None:
        """Topics begin a new ledger."""
        for topic in (self.source, self.target) if self.scenario.shape == "copy" else (self.source,):
            for partition in self.audience.partitions(topic):
                self.audience.admin("PUT", partition, "/unload")

    # --- the whole ---
    def run(self) -> None:
        self._prepare()
        if self.scenario.goes_on:
            self._watched(self._go_on)
        else:
            self._run_and_run_again()
        assert not self.scenario.point or self.script.has_struck, "the script never struck"
        self._audit()

    def _go_on(self) -> None:
        self._in_time(self._all_and_more)

    def _all_and_more(self) -> None:
        """Process the stored messages and those published meanwhile in one query."""
        query = self.start(self.checkpoint, {"processingTime": "200 milliseconds"})
        try:
            query.processAllAvailable()
            if not self.is_second:
                self.is_second = True
                self.publish(MORE_ROWS)
            query.processAllAvailable()
        finally:
            query.stop()

    def _run_and_run_again(self) -> None:
        expected_now = self.scenario.error if self.scenario.between is None else ""
        self._watched(lambda: self._through(expected_now, restarts=int(self.scenario.ends_the_query)))
        if self.scenario.between is not None:
            self.scenario.between(self)
        if self.scenario.shape in ("copy", "read"):
            self.publish(MORE_ROWS)
            self.more = self.scenario.second
            self._through(self.scenario.error if self.scenario.between is not None else "", restarts=0)

    def _in_time(self, work: Callable[[], None]) -> None:
        """``work()``, again when Spark gave a Python process no more than the ten seconds that it has."""
        deadline = time.monotonic() + QUERY_SECONDS_MAX
        while True:
            try:
                work()
                return
            except Exception as error:
                if TOO_SLOW not in str(error) or time.monotonic() > deadline:
                    raise

    def _prepare(self) -> None:
        for topic in (self.source, self.target):
            self.audience.make_topic(topic)
        if self.scenario.shape == "batch write":
            self.given = rows(0, ROWS)
        elif self.scenario.trims:
            self.audience.hold(self.source)
            for _ in range(LEDGERS):
                self.publish(ROWS // LEDGERS)
                self.unload()
        else:
            self.publish(ROWS)

    def _through(self, error: str, *, restarts: int) -> None:
        """Run the query to its end, and restart it after failures, up to ``restarts`` times."""
        import pytest

        if error:
            with pytest.raises(Exception, match=f"(?s){error}"):
                self._in_time(self.run_once)
            return
        for left in reversed(range(restarts + 1)):
            try:
                self._in_time(self.run_once)
                return
            except Exception:
                if not left:
                    raise

    def _watched(self, work: Callable[[], None]) -> None:
        """Run ``work()``, and in another thread the fault once the scripted process waits at its point."""
        strike = self.scenario.fault
        if isinstance(strike, str):
            work()
            return
        done = threading.Event()
        thread = threading.Thread(target=self._strike, args=(strike, done), daemon=True)
        thread.start()
        try:
            work()
        finally:
            done.set()
            thread.join(QUERY_SECONDS_MAX)
        if self.strike_error is not None:
            raise self.strike_error

    def _strike(self, strike: Strike, done: threading.Event) -> None:
        while not self.script.has_struck:
            if done.wait(0.01):
                return
        try:
            strike(self)
        except BaseException as error:
            self.strike_error = error
        finally:
            self.go()

    # --- the query ---
    def run_once(self) -> None:
        {
            "copy": self._stream,
            "read": self._stream,
            "batch read": self._batch_read,
            "batch write": self._batch_write,
        }[self.scenario.shape]()

    def _options(self) -> dict[str, str]:
        url = self.world.proxy.url if self.scenario.is_cut else self.world.broker.service_url
        return {"service.url": url, "script": self.script.text, "operationTimeoutMs": "60000"}

    def _source_options(self) -> dict[str, str]:
        place = {"topicsPattern": f"{self.source}.*"} if self.scenario.by_pattern else {"topic": self.source}
        return {**self._options(), **place, "columns": "value,__key", "startingOffsets": "earliest"}

    def _stream(self) -> None:
        query = self.start(self.checkpoint)
        if not query.awaitTermination(QUERY_SECONDS_MAX):
            query.stop()
            raise TimeoutError(f"the query did not end: {query.status}")

    def start(self, checkpoint: Path, trigger: Mapping[str, Any] = AVAILABLE_NOW) -> StreamingQuery:
        """Start the scenario's stream.

        Spark looks up the sink's name in the session that is active in the thread, and the source's in the
        session of the data frame. A session that earlier code left active does not know the sink's name.
        """
        from py4j.protocol import Py4JJavaError
        from pyspark.sql import SparkSession

        options = {
            **self._source_options(), "maxRowsPerTrigger": str(ROWS_PER_TRIGGER), **self.scenario.source,
            **self.more,
        }  # fmt: skip
        stream = self.world.spark.readStream.format(FaultyDataSource.name()).options(**options).load()
        if self.scenario.shape == "read":
            writer = stream.writeStream.foreachBatch(self._keep)
        else:
            writer = stream.writeStream.format(FaultyDataSource.name()).options(**self._sink_options())
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(**trigger)
        session = self.world.spark
        SparkSession._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
        try:
            return writer.start()
        except Py4JJavaError as error:
            # Its own text is longer than what reports keep of it.
            told = f"Spark did not begin the query: {_causes(error.java_exception)}"
        raise AssertionError(told)

    def _sink_options(self) -> dict[str, str]:
        exactly = {"exactlyOnce": "true"} if self.scenario.exactly_once else {}
        return {
            **self._options(), "topic": self.target, "batchingMaxMessages": "10", **exactly,
            **{name: value.format(folder=self.folder) for name, value in self.scenario.sink.items()},
        }  # fmt: skip

    def _keep(self, frame: DataFrame, number: int) -> None:
        got = _rows_of(frame)
        known = self.kept.setdefault(number, got)
        if not self.replanned:
            assert got == known, f"micro-batch {number} holds other rows than before"
        self.kept[number] = got

    def _batch_read(self) -> None:
        options = {**self._source_options(), **self.scenario.source}
        read = self.world.spark.read.format(FaultyDataSource.name()).options(**options)
        self.kept = {0: _rows_of(read.load())}

    def _batch_write(self) -> None:
        key = "CASE WHEN id % 3 <> 0 THEN concat('k', id % 7) END AS __key"
        frame = self.world.spark.range(0, ROWS, 1, 2).selectExpr("format_string('%06d', id) AS value", key)
        options = self._sink_options()
        if self.scenario.exactly_once:
            options["stagingLocation"] = str(self.folder / "staging")
        frame.write.format(FaultyDataSource.name()).options(**options).mode("append").save()

    # --- the auditor ---
    def _audit(self) -> None:
        reads = self.scenario.shape in ("read", "batch read")
        found: Rows = sum(self.kept.values(), Counter()) if reads else self.audience.found(self.target)
        if self.scenario.shape == "copy" and not self.scenario.trims and not self.scenario.by_pattern:
            assert self.audience.found(self.source) == self.published, "the source itself changed"
        missing, surplus = self.given - found, found - self.given
        foreign = set(found) - set(self.given)
        assert not foreign, f"{len(foreign)} rows that nobody gave: {sorted(foreign)[:5]}"
        told = f"of {self.given.total()} rows {missing.total()} are lost, {surplus.total()} doubled"
        if self.scenario.outcome != "subset":
            assert not missing, told
        if self.scenario.outcome != "superset":
            assert not surplus, told


def _causes(error: Any) -> str:
    """Return the messages of a Java exception and its causes, with the top of each stack trace."""
    told: list[str] = []
    while error is not None and len(told) < 8:
        places = [place.toString() for place in error.getStackTrace()[:6]]
        told.append(f"{error.toString()} at {' < '.join(places)}")
        error = error.getCause()
    return "; because of ".join(told)


def _rows_of(frame: DataFrame) -> Rows:
    return Counter(
        (bytes(row["value"]), None if row["__key"] is None else bytes(row["__key"]).decode())
        for row in frame.toArrow().to_pylist()
    )


# --- strikes from outside ---
def broker_killed(play: Play) -> None:
    """Kill the broker; the waiting process continues while the broker is down."""
    broker = play.world.broker
    broker.stop()
    play.go()
    time.sleep(0.3)
    broker.start_again()


def broker_suspended(play: Play, seconds: float = 3.0) -> None:
    """Connections stay open and nothing answers."""
    play.world.broker.suspend()
    play.go()
    time.sleep(seconds)
    play.world.broker.resume()


def connections_cut(play: Play) -> None:
    """Cut all connections several times: before the waiting process continues, and after."""
    proxy = play.world.proxy
    proxy.cut_all()
    play.go()
    for _ in range(4):
        time.sleep(0.03)
        proxy.cut_all()
    eventually(lambda: proxy.cuts, detail="nothing was connected")  # the proxy's own thread cuts


def receipts_lost(play: Play) -> None:
    """Drop receipts: the messages are stored, and the producer gets no receipt."""
    play.world.proxy.receipts_to_lose = 2


def topics_unloaded(play: Play) -> None:
    play.unload()
    play.go()
    play.unload()


def messages_withheld(play: Play, seconds: float = 15.0) -> None:
    """The broker answers everything, and no message comes."""
    play.world.proxy.withhold(seconds)
    play.go()
    time.sleep(seconds)


def partitions_added(play: Play) -> None:
    play.audience.admin("POST", play.source, "/partitions", 2 * PARTITIONS)
    play.publish(MORE_ROWS, f"{play.source}-partition-{2 * PARTITIONS - 1}")


def partitions_of_the_target_added(play: Play) -> None:
    play.audience.admin("POST", play.target, "/partitions", 2 * PARTITIONS)


def topic_added(play: Play) -> None:
    play.publish(MORE_ROWS, f"{play.source}-more")


def more_published(play: Play) -> None:
    play.publish(MORE_ROWS)


def published_too_late(play: Play) -> None:
    """Behind the end that a batch query has."""
    play.publish(MORE_ROWS, is_read=False)


def ledgers_trimmed(play: Play) -> None:
    """Trim the ledgers before the position of the query's subscription."""
    before = _first_ledgers(play)
    play.audience.let_go(play.source)
    play.unload()

    def is_trimmed() -> bool:
        for partition in play.audience.partitions(play.source):
            play.audience.admin("POST", partition, "/trim")
        return _first_ledgers(play) != before

    eventually(is_trimmed, detail="no ledger was trimmed")


def _first_ledgers(play: Play) -> list[int]:
    found = (play.audience.admin("GET", p, "/internalStats") for p in play.audience.partitions(play.source))
    return [each["ledgers"][0]["ledgerId"] for each in found]


def topic_truncated(play: Play) -> None:
    """Delete the entries that the query has planned to read."""
    for partition in play.audience.partitions(play.source):
        play.audience.admin("DELETE", partition, "/truncate")


# --- between two runs ---
def _remove_last(folder: Path) -> None:
    last = max((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    last.unlink()
    (folder / f".{last.name}.crc").unlink(missing_ok=True)


def commit_removed(play: Play) -> None:
    """As if Spark had died before it noted the last micro-batch as done."""
    _remove_last(play.checkpoint / "commits")


def plan_removed(play: Play) -> None:
    """Restore an older checkpoint: the last micro-batch is planned again, with the new messages."""
    play.replanned = True
    _remove_last(play.checkpoint / "commits")
    _remove_last(play.checkpoint / "offsets")


def plan_removed_and_nothing_new(play: Play) -> None:
    plan_removed(play)
    play.run_once()


def plans_removed(play: Play) -> None:
    play.replanned = True
    shutil.rmtree(play.checkpoint / "commits")
    shutil.rmtree(play.checkpoint / "offsets")


def staging_removed(play: Play) -> None:
    shutil.rmtree(play.checkpoint / "geminga-sink")


def staging_and_commit_removed(play: Play) -> None:
    staging_removed(play)
    commit_removed(play)


def checkpoint_removed(play: Play) -> None:
    """The staging stays; a new query gives everything again."""
    shutil.rmtree(play.checkpoint)
    play.given += play.given


def another_query(play: Play) -> None:
    """Run a query with the same source, target and staging location, and its own checkpoint."""
    assert play.start(play.folder / "another").awaitTermination(QUERY_SECONDS_MAX)
    play.given += play.given
