"""Offloading through a whole broker: by command, threshold and age; consumers, restarts, deletion, REST."""

import shutil
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
from insides import server_of
from waiting import eventually, moment_between
from web_requests import ask

import geminga
from geminga.broker.runtime.background_jobs import WorkQueue
from geminga.broker.serving.embedded import EmbeddedBroker, embedded
from geminga.broker.topics import expiry, topic_maintenance
from geminga.broker.topics.offloading import FAILED_RETRY_MS, Offload
from geminga.broker.topics.persistent import PersistentTopic
from geminga.errors import InvalidConfiguration, StoreError
from geminga.ids import TopicName
from geminga.ledger.backup.backup import backup
from geminga.ledger.tier.reading import OffloadedRead, TierReader
from tests.support.insides import inside

pytestmark = pytest.mark.usefixtures("offloading_here")

TOPIC = "persistent://public/default/flights"
PATH = "persistent/public/default/flights"
BORROWED = 'geminga_offload_borrowed{cluster="standalone"} 1'


def start(tmp_path: Path, folder: str = "store", **settings: Any) -> EmbeddedBroker:
    settings = {"ledger_entries_max": 10, "offload_deletion_lag_seconds": 0, **settings}
    return embedded(tmp_path / folder, offload_location=str(tmp_path / "tier"), **settings)


def rest(broker: EmbeddedBroker, method: str, path: str, body: Any = None) -> Any:
    found = ask(f"{broker.admin_url}/admin/v2/{path}", method, body)
    assert found.status < 300, found
    return found.document if found.body else found.status


def metrics(broker: EmbeddedBroker) -> str:
    return ask(f"{broker.admin_url}/metrics").body.decode()


def publish(broker: EmbeddedBroker, first: int, count: int) -> None:
    with broker.client() as client:
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for number in range(first, first + count):
            fields = {"partition_key": f"k{number % 7}", "properties": {"n": str(number)}}
            producer.send_async(b"flight %d" % number, None, **fields)
        producer.flush()


def read(broker: EmbeddedBroker) -> list[bytes]:
    found = []
    with broker.client() as client:
        reader = client.create_reader(TOPIC, geminga.MessageId.earliest)
        while reader.has_message_available():
            found.append(reader.read_next(60_000).data())
    return found


def ledgers(broker: EmbeddedBroker) -> list[dict[str, Any]]:
    return list(rest(broker, "GET", f"{PATH}/internalStats")["ledgers"])


def here(broker: EmbeddedBroker) -> set[int]:
    """The ledgers whose entries the store has."""
    return inside(broker, lambda: server_of(broker).store.tier.local_ledgers(TOPIC))


def command(broker: EmbeddedBroker, ledger_id: int) -> int:
    position = {"ledgerId": ledger_id, "entryId": 0, "partitionIndex": -1}
    return int(rest(broker, "PUT", f"{PATH}/offload", position))


def offload(broker: EmbeddedBroker, outcome: str = "SUCCESS") -> dict[str, Any]:
    """Offload all closed ledgers; return the status when it is the outcome."""
    assert command(broker, ledgers(broker)[-1]["ledgerId"]) == 204

    def status() -> dict[str, Any]:
        return dict(rest(broker, "GET", f"{PATH}/offload"))

    eventually(lambda: status()["status"] == outcome)
    return status()


def messages(count: int) -> list[bytes]:
    return [b"flight %d" % number for number in range(count)]


def test_ledgers_offloaded_by_command_are_read_after_a_restart(tmp_path):
    with start(tmp_path, retention_minutes=-1) as broker:
        publish(broker, 0, 45)
        status = rest(broker, "GET", f"{PATH}/offload")
        assert (status["status"], status["lastError"]) == ("NOT_RUN", "")
        last = ledgers(broker)[-1]["ledgerId"]
        assert offload(broker)["firstUnoffloadedMessage"]["ledgerId"] == last
        found = ledgers(broker)
        assert [each["offloaded"] for each in found] == [True] * (len(found) - 1) + [False]
        stats = rest(broker, "GET", f"{PATH}/stats")
        assert stats["offloadedStorageSize"] == sum(each["size"] for each in found[:-1])
        assert stats["lastOffloadLedgerId"] == found[-2]["ledgerId"]
        assert stats["lastOffloadSuccessTimeStamp"] > 0
        eventually(lambda: here(broker) == {last})
        assert read(broker) == messages(45)
        eventually(lambda: command(broker, last) == 204)  # there is nothing to do, which is well
    with start(tmp_path, retention_minutes=-1) as broker:
        assert read(broker) == messages(45)
        assert [each["offloaded"] for each in ledgers(broker)][:4] == [True] * 4
        publish(broker, 45, 5)
        assert read(broker) == messages(50)
        with broker.client() as client:
            reader = client.create_reader(TOPIC, geminga.MessageId.earliest)
            assert reader.read_next(60_000).properties() == {"n": "0"}
        files = sorted((tmp_path / "tier").rglob("*.parquet"))
        values = [pq.read_table(file, columns=["value"])["value"].to_pylist() for file in files]
        assert [*chain(*values)] == messages(sum(map(len, values)))
        assert rest(broker, "DELETE", f"{PATH}?force=true") == 204
        eventually(lambda: not [each for each in (tmp_path / "tier" / "public").rglob("*") if each.is_file()])


def test_ledgers_offloaded_by_threshold_are_trimmed_with_their_files(tmp_path, monkeypatch):
    monkeypatch.setattr(topic_maintenance, "ROUND_SECONDS", 0.2)
    with start(tmp_path, retention_minutes=-1) as broker:
        rest(broker, "PUT", "namespaces/public/default/offloadThreshold", 0)
        with broker.client() as client:
            consumer = client.subscribe(TOPIC, "s")
            publish(broker, 0, 35)
            eventually(lambda: len(list((tmp_path / "tier").rglob("*.parquet"))) == 3)
            eventually(lambda: len(here(broker)) == 1)
            got = [consumer.receive(60_000) for _ in range(35)]
            assert [each.data() for each in got] == messages(35)
            for each in got:
                consumer.acknowledge(each)
        nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        rest(broker, "POST", "namespaces/public/default/retention", nothing)
        eventually(lambda: not list((tmp_path / "tier").rglob("*.parquet")))


def test_offloading_without_a_location_is_refused(tmp_path):
    with embedded(tmp_path / "store") as broker:
        publish(broker, 0, 1)
        with pytest.raises(AssertionError, match=r"status=501.*--offload-location"):
            command(broker, 5)
    with pytest.raises(InvalidConfiguration, match="offload_location"):
        embedded(None, offload_location="/x")


def test_the_configuration_shows_the_location_without_its_secrets(tmp_path):
    with embedded(tmp_path / "store", offload_location="mock://user:password@place/x") as broker:
        shown = rest(broker, "GET", "brokers/configuration/runtime")
    assert shown["offload_location"] == "mock://place/x"
    assert shown["offload_rate_bytes"] == str(16 << 20)


def test_a_store_with_offloaded_ledgers_needs_its_location(tmp_path):
    with start(tmp_path, retention_minutes=-1) as broker:
        publish(broker, 0, 15)
        offload(broker)
    with pytest.raises(StoreError, match="name their storage location with offload_location"):
        embedded(tmp_path / "store")


@pytest.mark.parametrize("place", ["tier", "tier/public"])
def test_failures_are_in_the_status_and_nothing_is_lost(tmp_path, place):
    no_folder = tmp_path / place
    no_folder.parent.mkdir(exist_ok=True)
    no_folder.write_text("no folder")
    with start(tmp_path, retention_minutes=-1) as broker:
        publish(broker, 0, 25)
        assert str(no_folder) in offload(broker, "ERROR")["lastError"]
        assert read(broker) == messages(25)
        no_folder.unlink()
        offload(broker)
        assert read(broker) == messages(25)


class Agenda:
    """Time that stands still, and what is to be done at once."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self._soon: list[Callable[..., Any]] = []

    def after(self, seconds: float, work: Callable[..., Any], who: object) -> None:
        self._soon.append(work)

    def isolated(self, kind: str, who: object, work: Callable[..., Any], *arguments: Any) -> None:
        work(*arguments)

    def run(self) -> None:
        while self._soon:
            self._soon.pop(0)()


class Tier:
    """Offload storage that refuses requests on demand, and records them."""

    borrowed = location = ""

    def __init__(self, scheduler: Agenda) -> None:
        self._scheduler = scheduler
        self._records: dict[int, Any] = {}
        self.refused: set[tuple[str, int]] = set()
        self.tried: list[tuple[str, int]] = []

    def offloaded(self, owner: str) -> list[Any]:
        return list(self._records.values())

    def local_ledgers(self, owner: str) -> set[int]:
        return {1, 2, 3, 4}

    def record(self, ledger_id: int) -> Any:
        return self._records.get(ledger_id)

    def sweep(self) -> None: ...

    def offload(self, owner: str, ledger_id: int, now_ms: int, done: Callable[..., None], **_: int) -> None:
        if not self._is_refused("offload", ledger_id, done):
            self._records[ledger_id] = SimpleNamespace(ledger=ledger_id, offloaded_ms=now_ms, entry_bytes=9)
            done(None)

    def drop_local(self, owner: str, ledger_id: int, done: Callable[..., None]) -> None:
        if not self._is_refused("drop", ledger_id, done):
            done(None)

    def _is_refused(self, what: str, ledger_id: int, done: Callable[..., None]) -> bool:
        self.tried.append((what, ledger_id))
        is_refused = (what, ledger_id) in self.refused
        if is_refused:
            done(StoreError(f"{what} {ledger_id} is refused"))
        return is_refused


class Retried:
    """A topic with four closed ledgers of a message each, all of which are to go at once."""

    def __init__(self, lag_ms: int = 0) -> None:
        self.scheduler = Agenda()
        self.tier = Tier(self.scheduler)
        segments = [
            SimpleNamespace(ledger_id=n, base=n, end=n + 1, entries=1, size_bytes=9) for n in range(1, 5)
        ]
        topic = SimpleNamespace(
            text=TOPIC, scheduler=self.scheduler, touch=lambda: None,
            services=SimpleNamespace(offloads=WorkQueue()), cover=lambda segment: None,
            policies=SimpleNamespace(
                offload_threshold_bytes=0, offload_threshold_seconds=-1, offload_deletion_lag_ms=lag_ms
            ),
            ledger=SimpleNamespace(
                segments=segments, confirmed=9, damaged=(), aborted=None, is_open=lambda each: False,
                segment=lambda number: segments[number - 1],
            ),
        )  # fmt: skip
        self.offload: Any = Offload(topic, self.tier)

    def check(self) -> list[tuple[str, int]]:
        """Return the operations that a check tries by itself."""
        self.offload.check()
        return self.then()

    def then(self) -> list[tuple[str, int]]:
        self.scheduler.run()
        found = self.tier.tried[:]
        self.tier.tried.clear()
        return found


def test_local_copies_are_deleted_although_another_ledger_fails():
    topic = Retried()
    topic.tier.refused = {("offload", 3)}
    going = [("offload", 1), ("offload", 2), ("offload", 3)]
    assert topic.check() == [*going, ("drop", 1), ("drop", 2)]
    status = topic.offload.status, topic.offload.last_error
    assert status == ("ERROR", "offload 3 is refused"), "what was let go of since says nothing of it"
    assert topic.check() == []
    topic.tier.refused.clear()
    topic.scheduler.now_ms = topic.offload.due_ms
    assert topic.scheduler.now_ms == 1_000_000 + FAILED_RETRY_MS
    assert topic.check() == [("offload", 3), ("offload", 4), ("drop", 3), ("drop", 4)]
    assert (topic.offload.status, topic.offload.last_error) == ("SUCCESS", "")
    assert topic.offload.due_ms > topic.scheduler.now_ms + 1_000_000


def test_work_resumes_after_an_administrators_repair():
    topic = Retried(lag_ms=1000)
    topic.tier.refused = {("offload", 1)}
    assert topic.check() == [("offload", 1)]
    topic.tier.refused.clear()
    topic.offload.start(2)
    assert topic.then() == [("offload", 1), ("offload", 2), ("offload", 3), ("offload", 4)]
    assert topic.offload.status == "SUCCESS"
    assert topic.offload.due_ms == topic.scheduler.now_ms + 1000


def test_a_file_with_wrong_contents_is_rewritten_after_a_delay():
    """Without the delay, offload storage that loses files would be written to without a break."""
    topic = Retried()
    topic.tier.refused = {("drop", 1)}
    went = [("offload", number) for number in range(1, 5)]
    assert topic.check() == [*went, ("drop", 1)]
    del topic.tier._records[1]
    topic.offload.deleted([1])
    topic.tier.refused.clear()
    assert topic.check() == []
    topic.scheduler.now_ms += FAILED_RETRY_MS
    assert topic.check() == [("drop", 2), ("drop", 3), ("drop", 4), ("offload", 1), ("drop", 1)]
    assert topic.offload.status == "SUCCESS"


def test_a_temporarily_unreadable_record_delays_no_other_topic(monkeypatch):
    topic = Retried()
    read, unread = topic.tier.record, [StoreError("the store's catalog cannot be read")]

    def record(ledger_id: int) -> Any:
        if unread:
            raise unread.pop()
        return read(ledger_id)

    monkeypatch.setattr(topic.tier, "record", record)
    assert topic.check() == [("offload", 1), ("drop", 1)]
    assert (topic.offload.status, topic.offload.last_error) == ("ERROR", "the store's catalog cannot be read")
    assert not topic.offload.is_running
    topic.scheduler.now_ms = topic.offload.due_ms
    assert [number for what, number in topic.check() if what == "offload"] == [2, 3, 4]
    assert topic.offload.status == "SUCCESS"


def test_topic_names_cannot_leave_the_offload_folder():
    from geminga.offload.storage import folder_of

    for name in ("..", ".", "%2E%2E", "x\\y", "a b", "é"):
        path = folder_of(str(TopicName.parse(f"persistent://public/default/{name}")))
        assert path.count("/") == 3
        assert ".." not in path.split("/")


def test_slow_searches_delay_no_other_request(tmp_path, monkeypatch):
    with start(tmp_path, retention_minutes=-1) as broker, broker.client() as client:
        producer = client.create_producer(TOPIC, batching_enabled=False)
        times = []
        for number in range(41):
            producer.send(b"flight %d" % number)
            times.append(moment_between())
        command(broker, ledgers(broker)[-1]["ledgerId"])
        eventually(lambda: len(here(broker)) == 1)
        load = TierReader._load

        def slowly(*arguments: Any) -> Any:
            time.sleep(0.3)
            return load(*arguments)

        monkeypatch.setattr(TierReader, "_load", slowly)
        monkeypatch.setattr("geminga.ledger.tier.reading.GROUPS_BYTES_MAX", 1)
        reader = client.create_reader(TOPIC, geminga.MessageId.latest)
        reader.seek(times[17] + 1)
        assert reader.read_next(60_000).data() == b"flight 18"
        found = rest(broker, "GET", f"{PATH}/messageid/{times[5] + 1}")
        entry = f"{PATH}/ledger/{found['ledgerId']}/entry/{found['entryId']}"
        assert ask(f"{broker.admin_url}/admin/v2/{entry}").body == b"flight 6"


def test_a_full_disk_frees_local_copies_of_offloaded_ledgers_first(tmp_path):
    with start(tmp_path, retention_minutes=-1, offload_deletion_lag_seconds=-1) as broker:
        publish(broker, 0, 35)
        offload(broker)
        assert len(here(broker)) == 4
        inside(broker, lambda: server_of(broker).broker.retention_evictor.go(1 << 30))
        eventually(lambda: len(here(broker)) == 1)
        assert len(ledgers(broker)) == 4
        assert read(broker) == messages(35)


def test_a_full_disk_keeps_ledgers_that_are_only_offloaded(tmp_path):
    with start(tmp_path, retention_minutes=60) as broker:
        publish(broker, 0, 45)
        last = ledgers(broker)[-1]["ledgerId"]
        assert command(broker, last) == 204
        eventually(lambda: len(here(broker)) == 1)
        first = ledgers(broker)[0]["ledgerId"]

        def give_up() -> bool:
            topic = server_of(broker).broker.topics.find(TopicName.parse(TOPIC))
            assert isinstance(topic, PersistentTopic)
            return expiry.give_up(topic, first)

        # The ledger was still local when the ledgers to delete were listed.
        assert not inside(broker, give_up)
        assert ledgers(broker)[0]["ledgerId"] == first
        assert read(broker) == messages(45)


def test_acknowledging_and_counting_work_without_the_offload_storage(tmp_path, monkeypatch):
    """Acknowledging, counting and deduplication work while the offload storage does not answer."""
    settings: dict[str, Any] = {"retention_minutes": -1, "deduplication": True}
    with start(tmp_path, **settings) as broker:
        service_url, admin_url = broker.service_url, broker.admin_url
        ports = {"port": urlsplit(service_url).port, "web_port": urlsplit(admin_url).port}
        client = geminga.Client(service_url, max_backoff_interval_ms=200)
        consumer = client.subscribe(
            TOPIC, "s", geminga.ConsumerType.Shared, ack_receipt_enabled=True, ack_grouping_time_ms=0
        )
        producer = client.create_producer(TOPIC, "p", batching_enabled=False, max_pending_messages=100)
        for number in range(45):
            producer.send_async(b"flight %d" % number, None)
        producer.flush()
        got = [consumer.receive(60_000) for _ in range(45)]
        command(broker, ledgers(broker)[-1]["ledgerId"])
        eventually(lambda: len(here(broker)) == 1)
    away = OffloadedRead([], error=StoreError("the place is away"))
    monkeypatch.setattr(TierReader, "_read", lambda *_: away)
    with start(tmp_path, **settings, **ports) as broker:
        assert producer.send(b"flight 45").entry_id() >= 0
        for message in got[1::2]:
            consumer.acknowledge(message)
        stats = rest(broker, "GET", f"{PATH}/stats")["subscriptions"]["s"]
        assert stats["messagesInBacklog"] == 46 - len(got[1::2])
        client.close()


def test_policies_of_namespaces_and_topics_apply(tmp_path, monkeypatch):
    monkeypatch.setattr(topic_maintenance, "ROUND_SECONDS", 0.2)
    with start(tmp_path, retention_minutes=-1) as broker:
        publish(broker, 0, 35)
        policies = {
            "managedLedgerOffloadDriver": "aws-s3",
            "managedLedgerOffloadThresholdInBytes": 0,
            "managedLedgerOffloadDeletionLagInMillis": 3_600_000,
        }
        wrong = {"managedLedgerOffloadThresholdInBytes": "much"}
        with pytest.raises(AssertionError, match="managedLedgerOffloadThresholdInBytes"):
            rest(broker, "POST", "namespaces/public/default/offloadPolicies", wrong)
        rest(broker, "POST", f"{PATH}/offloadPolicies", policies)
        assert rest(broker, "GET", f"{PATH}/offloadPolicies") == policies
        eventually(lambda: len([each for each in ledgers(broker) if each["offloaded"]]) == 3)
        assert len(here(broker)) == 4
        policies["managedLedgerOffloadDeletionLagInMillis"] = 0
        rest(broker, "POST", f"{PATH}/offloadPolicies", policies)
        eventually(lambda: len(here(broker)) == 1)


@pytest.mark.parametrize("by", ["cp", "backup"])
def test_a_copy_of_a_store_deletes_no_files_of_the_original(tmp_path, by):
    def files() -> list[Path]:
        return sorted((tmp_path / "tier" / "public").rglob("*"))

    with start(tmp_path, retention_minutes=-1) as broker:
        publish(broker, 0, 45)
        last = ledgers(broker)[-1]["ledgerId"]
        assert command(broker, last) == 204
        eventually(lambda: here(broker) == {last})
        if by == "cp":
            shutil.copytree(tmp_path / "store", tmp_path / "copy")
        else:
            backup(tmp_path / "store", tmp_path / "copy")
        before = files()
        with start(tmp_path, retention_minutes=-1, folder="copy") as copy:
            eventually(lambda: BORROWED in metrics(copy))
            assert BORROWED not in metrics(broker)
            assert read(copy) == messages(45)
            publish(copy, 1000, 15)
            assert command(copy, 1 << 40) == 204
            eventually(lambda: rest(copy, "GET", f"{PATH}/offload")["status"] == "ERROR")
            assert "another copy" in rest(copy, "GET", f"{PATH}/offload")["lastError"]
            assert rest(copy, "DELETE", f"{PATH}?force=true") == 204
            eventually(lambda: not here(copy))
        assert files() == before
        assert read(broker) == messages(45)
        publish(broker, 45, 15)
        eventually(lambda: command(broker, ledgers(broker)[-1]["ledgerId"]) == 204)
        eventually(lambda: len(here(broker)) == 1)
        assert read(broker) == messages(60)
    with start(tmp_path, retention_minutes=-1) as broker:
        assert read(broker) == messages(60)
