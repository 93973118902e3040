"""Everything at once on the same topics: offloading, compaction, retention, deduplication, kills.

Each is tried by itself elsewhere. Here a seed decides what is done next to a broker in a process of its own,
and a plain model says what has to be there: every receipted message, once where that is promised, with its
id and in its order; acknowledged ones never again; of each key the newest value in what is compacted.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from random import Random
from typing import Any

import pytest

import geminga
from geminga import CompressionType, ConsumerType
from geminga.ledger.inspection import inspect
from geminga.ledger.tier_storage import place_at
from geminga.testing.apache_pulsar import free_ports

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SECONDS = 60.0
PRODUCERS: tuple[dict[str, Any], ...] = (
    {"batching_enabled": False},
    {"batching_enabled": True, "batching_max_messages": 7, "compression_type": CompressionType.ZSTD},
    {"batching_enabled": True, "batching_max_messages": 4, "compression_type": CompressionType.LZ4},
    {"batching_enabled": False, "chunking_enabled": True, "chunk_max_message_size": 900},
)
KINDS = {
    "shared": ConsumerType.Shared, "exclusive": ConsumerType.Exclusive, "keyed": ConsumerType.KeyShared,
    "failover": ConsumerType.Failover,
}  # fmt: skip


class Process:
    """The broker, which is killed and started again with other settings."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder, self.random = folder, random
        self.port, self.web_port = free_ports(2)
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self, **fixed: Any) -> None:
        choice = self.random.choice
        settings = {
            "data_dir": str(self.folder / "store"), "offload_location": str(self.folder / "tier"),
            "port": self.port, "web_port": self.web_port, "ledger_entries_max": choice([3, 7, 25]),
            "offload_threshold_bytes": choice([0, 0, -1, 3000]), "retention_minutes": -1,
            "offload_deletion_lag_seconds": 0, "place_seconds": choice([0, 0.03, 0.12]), **fixed,
        }  # fmt: skip
        command = [sys.executable, "-m", "tests.broker.together_broker", json.dumps(settings)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def end(self, how: int) -> None:
        assert self.process is not None
        self.process.send_signal(how)
        assert self.process.wait(60) in (0, -signal.SIGKILL)

    def rest(self, method: str, path: str, body: Any = None) -> Any:
        """Asked again while the broker is away or busy."""
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.web_port}/admin/v2/{path}"
        headers = {"Content-Type": "application/json"}
        deadline = time.monotonic() + 60
        while True:
            request = urllib.request.Request(url, data, headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    raw = answer.read()
                    return json.loads(raw) if raw else None
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 409:
                        return None  # it is being done already
                    if error.code not in (500, 503) or time.monotonic() > deadline:
                        raise AssertionError((path, error.code, error.read())) from error
            except OSError:
                assert time.monotonic() < deadline, path
            time.sleep(0.2)


class Sent:
    """A message: its number, its id as receipted, and whether a kill may have doubled it."""

    def __init__(self, number: int, key: str | None, *, is_null: bool, may_double: bool) -> None:
        self.number, self.key, self.is_null, self.may_double = number, key, is_null, may_double
        self.id = (-1, -1, -1)


class Topic:
    def __init__(self, name: str, broker: Process, **policies: Any) -> None:
        self.path = f"persistent/public/default/{name}"
        self.name = name
        self.url = f"persistent://public/default/{name}"
        self.keeps_all = "retention" not in policies
        self.is_deduplicated = bool(policies.get("deduplicationEnabled"))
        self.sent: list[Sent] = []
        self.acknowledged: dict[str, set[int]] = {name: set() for name in KINDS}
        self.uncertain: dict[str, set[int]] = {name: set() for name in KINDS}
        self.producers: dict[int, geminga.Producer[bytes]] = {}
        broker.rest("PUT", self.path)
        for policy, value in policies.items():
            broker.rest("POST", f"{self.path}/{policy}", value)
        for subscription in KINDS:
            broker.rest("PUT", f"{self.path}/subscription/{subscription}", {"ledgerId": -1, "entryId": -1})

    @property
    def newest(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for each in self.sent:
            if each.key is not None:
                found.pop(each.key, None)
                if not each.is_null:
                    found[each.key] = each.number
        return found


class Driver:
    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.broker = Process(folder, self.random)
        self.client = geminga.Client(f"pulsar://127.0.0.1:{self.broker.port}", max_backoff_interval_ms=300)
        none = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        self.topics = [
            Topic("keep", self.broker, compactionThreshold=2000),
            Topic("keep-once", self.broker, compactionThreshold=500, deduplicationEnabled=True),
            Topic("trim", self.broker, retention=none, compactionThreshold=800),
            Topic("once", self.broker, retention=none, compactionThreshold=3000, deduplicationEnabled=True),
        ]  # fmt: skip
        self.numbers = 0
        self.is_dying = False

    # --- what is done ---
    def publish(self, topic: Topic) -> None:
        random, kind = self.random, self.random.randrange(len(PRODUCERS))
        producer = topic.producers.get(kind)
        if producer is None:
            producer = topic.producers[kind] = self.client.create_producer(
                topic.url, send_timeout_millis=0, **PRODUCERS[kind]
            )
        sent, results = list[Sent](), list[geminga.Result]()
        for _ in range(random.choice([1, 3, 10, 40])):
            self.numbers += 1
            key = random.choice([f"k{random.randrange(6)}", f"w{random.randrange(300)}", None])
            is_null = key is not None and random.random() < 0.12
            each = Sent(
                self.numbers, key, is_null=is_null, may_double=self.is_dying and not topic.is_deduplicated
            )
            sent.append(each)

            def told(result: geminga.Result, found: Any, each: Sent = each) -> None:
                results.append(result)
                each.id = (found.ledger_id(), found.entry_id(), found.batch_index())

            value = (
                None if is_null else b"%d|" % self.numbers + random.randbytes(random.choice([3, 60, 2500]))
            )
            producer.send_async(value, told, partition_key=key, properties={"n": str(self.numbers)})
        producer.flush()
        assert results == [geminga.Result.Ok] * len(sent)
        topic.sent += sent

    def consume(self, topic: Topic, name: str, *, all_of_it: bool = False) -> None:
        by_number = {each.number: each for each in topic.sent}
        consumer = self.client.subscribe(
            topic.url, name, KINDS[name], ack_receipt_enabled=True,
            ack_grouping_time_ms=0, receiver_queue_size=self.random.choice([1, 10, 1000]),
            negative_ack_redelivery_delay_ms=50,
        )  # fmt: skip
        done, uncertain = topic.acknowledged[name], topic.uncertain[name]
        before, comes_again, count = set(done), False, 0
        try:
            while all_of_it or count < 60:
                is_more = all_of_it and not by_number.keys() <= done | uncertain
                try:
                    message = consumer.receive(60_000 if is_more else 500)
                except geminga.Timeout:
                    break
                count += 1
                # A connection that ends, or a refusal of another message, has what the consumer holds sent
                # again; that may wait here when it is acknowledged.
                comes_again = comes_again or self.is_dying
                number = int(message.properties()["n"])
                each = by_number[number]
                self.check(topic, each, message)
                is_done = number in (before if comes_again else done)
                assert each.may_double or not is_done or number in uncertain, (topic.name, name, each.id)
                if all_of_it or self.random.random() < 0.5:
                    uncertain.add(number)
                    consumer.acknowledge(message)
                    uncertain.discard(number)
                    done.add(number)
                elif self.random.random() < 0.2:
                    consumer.negative_acknowledge(message)
                    comes_again = True
        except geminga.PulsarException:
            assert self.is_dying
        finally:
            consumer.close()

    @staticmethod
    def check(topic: Topic, each: Sent, message: Any) -> None:
        found = message.message_id()
        assert message.data() == b"" if each.is_null else message.data().startswith(b"%d|" % each.number)
        if not each.may_double and each.id[0] >= 0:
            assert (found.ledger_id(), found.entry_id()) == each.id[:2], topic.name

    def administer(self, topic: Topic) -> None:
        match self.random.randrange(5):
            case 0:
                self.broker.rest("PUT", f"{topic.path}/unload")
            case 1:
                self.broker.rest("PUT", f"{topic.path}/offload", {"ledgerId": 1 << 40, "entryId": 0})
            case 2:
                self.broker.rest("PUT", f"{topic.path}/compaction")
            case 3:
                self.broker.rest("POST", f"{topic.path}/trim")
            case _:
                rate = self.random.choice([300, -1])
                limit = {"dispatchThrottlingRateInMsg": rate, "ratePeriodInSecond": 1}
                self.broker.rest("POST", f"{topic.path}/dispatchRate", limit)

    def some(self, seconds: float) -> None:
        """Work during which the broker may end."""
        killer = None
        if self.random.random() < 0.6:
            self.is_dying = True
            how = self.random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
            killer = threading.Timer(self.random.random() * seconds, self._kill, [how])
            killer.start()
        for _ in range(self.random.randrange(5, 20)):
            topic, kind = self.random.choice(self.topics), self.random.random()
            if kind < 0.5:
                self.publish(topic)
            elif kind < 0.75:
                self.consume(topic, self.random.choice([*KINDS]))
            else:
                self.administer(topic)
        if killer is not None:
            killer.join(120)
            assert not killer.is_alive()
        self.is_dying = False

    def _kill(self, how: int) -> None:
        self.broker.end(how)
        self.broker.start()

    # --- what there is ---
    def read(self, topic: Topic, *, compacted: bool) -> list[Any]:
        reader = self.client.create_reader(
            topic.url, geminga.MessageId.earliest,
            is_read_compacted=compacted,
        )  # fmt: skip
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(20_000))
        reader.close()
        return found

    def audit(self) -> None:
        for topic in self.topics:
            by_number = {each.number: each for each in topic.sent}
            newest: dict[str, int] = {}
            for message in self.read(topic, compacted=True):
                each = by_number[int(message.properties()["n"])]
                self.check(topic, each, message)
                if each.key is not None:
                    newest.pop(each.key, None)
                    if not each.is_null:
                        newest[each.key] = each.number
            assert newest == topic.newest, topic.name
            if topic.keeps_all:
                numbers = list[int]()
                for message in self.read(topic, compacted=False):
                    number = int(message.properties()["n"])
                    self.check(topic, by_number[number], message)
                    if number not in numbers or not by_number[number].may_double:
                        numbers.append(number)
                assert numbers == [each.number for each in topic.sent], topic.name

    def audit_subscriptions(self) -> None:
        for topic in self.topics:
            stats = self.broker.rest("GET", f"{topic.path}/stats")["subscriptions"]
            is_exact = not any(each.may_double for each in topic.sent)
            for name in KINDS:
                done = topic.acknowledged[name]
                if is_exact and not topic.uncertain[name]:
                    assert stats[name]["messagesInBacklog"] == len(topic.sent) - len(done), (topic.name, name)
                self.consume(topic, name, all_of_it=True)
                left = {each.number for each in topic.sent} - done - topic.uncertain[name]
                assert not left, (topic.name, name)

    def audit_place(self, folder: Path) -> None:
        """Check that each offloaded ledger has one file, and that there are no other files."""
        # Offloads in flight are abandoned; the next start deletes their files and begins no new ones. It may
        # take a minute until it owns the offload storage.
        self.broker.end(signal.SIGTERM)
        self.broker.start(offload_threshold_bytes=-1)
        deadline, looks = time.monotonic() + 150, list[tuple[int, int]]()
        while True:
            ledgers = [
                each
                for topic in self.topics
                for each in self.broker.rest("GET", f"{topic.path}/internalStats")["ledgers"]
                if each["offloaded"]
            ]
            files = list((folder / "tier").rglob("*.parquet"))
            looks.append((len(files), len(ledgers)))
            if looks[-3:] == [(len(ledgers), len(ledgers))] * 3:
                return
            assert time.monotonic() < deadline, (files, ledgers)
            time.sleep(0.5)


@pytest.mark.parametrize("seed", range(4))
def test_all_features_work_together_under_kills(tmp_path: Path, seed: int) -> None:
    driver = Driver(tmp_path, seed)
    try:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            driver.some(1.5)
            if driver.random.random() < 0.4:
                driver.audit()
        driver.audit()
        driver.audit_subscriptions()
        driver.audit_place(tmp_path)
        driver.client.close()
        driver.broker.end(signal.SIGTERM)
    finally:
        assert driver.broker.process is not None
        driver.broker.process.kill()
    report = inspect(tmp_path / "store", place=place_at(str(tmp_path / "tier")))
    assert (report.findings, report.tier_findings) == ([], [])
