"""Planner and tasks against the embedded broker, without Spark: chunks, retention, restarts."""

import base64
import contextlib
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from driven_query import SCHEMA, Query, data_source, numbers, publish, values
from insides import server_of
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from waiting import eventually

from geminga import Client
from geminga.broker.rules.tokens import make_token
from geminga.broker.serving.embedded import EmbeddedBroker, embedded
from geminga.client.admin import admin
from geminga.client.options.crypto import CryptoKeyReader
from geminga.errors import AuthenticationError, AuthorizationError, ConnectError, CryptoError, TopicNotFound
from geminga.ids import TopicName
from geminga.ledger.damage import Damage, DamageLoss, EntriesDamaged
from geminga.spark.datasource import PulsarDataSource, PulsarReader, PulsarStreamReader
from geminga.spark.source.data_loss import DataLossError
from geminga.testing.apache_pulsar import free_ports
from tests.support.certificates import Authority
from tests.support.insides import inside

KEYS = Path(__file__).parent.parent / "vectors/keys"


@pytest.mark.parametrize("fails", [False, True])
def test_a_topic_deleted_after_planning_ends_its_task_unless_data_loss_is_allowed(
    pulsar_broker, pulsar_topic, fails
):
    with pulsar_broker.client() as client:
        for number in range(20):
            publish(client, f"{pulsar_topic}-{number}", number, 1)
    options = {"topicsPattern": f"{pulsar_topic}-.*", "failOnDataLoss": fails}
    reader = data_source({"service.url": pulsar_broker.service_url, **options}).reader(SCHEMA)
    tasks = reader.partitions()
    assert max(len(task.parts) for task in tasks) > 1
    admin(pulsar_broker.admin_url, "DELETE", f"{pulsar_topic}-5".replace("://", "/") + "?force=true")
    with pytest.raises(TopicNotFound, match="-5") if fails else contextlib.nullcontext():
        assert sorted(values(reader, tasks)) == sorted(set(numbers(0, 20)) - {b"5"})


@pytest.mark.parametrize("fails", [False, True])
def test_a_deleted_topic_ends_a_stream_unless_data_loss_is_allowed(pulsar_broker, pulsar_topic, fails):
    """The topic is named, not matched: that it is missing is an error as a query starts, and a loss later."""
    kept, gone = f"{pulsar_topic}-kept", f"{pulsar_topic}-gone"
    options = {"startingOffsets": "earliest", "failOnDataLoss": fails}
    with pulsar_broker.client() as client:
        publish(client, kept, 0, 5)
        query = Query(pulsar_broker, kept, **options)
        query.options["topics"] = f"{query.options.pop('topic')},{gone}"
        query.restart()
        with pytest.raises(TopicNotFound, match=gone):
            query.batch()
        publish(client, gone, 5, 5)
        assert len(query.batch()) == 10
        admin(pulsar_broker.admin_url, "DELETE", gone.replace("://", "/") + "?force=true")
        publish(client, kept, 10, 5)
        if fails:
            with pytest.raises(TopicNotFound, match=gone):
                query.batch()
        else:
            assert len(query.batch()) == 5
            query.restart().prepareForTriggerAvailableNow()
            publish(client, kept, 15, 5)
            assert query.batch() == []


@pytest.mark.parametrize(
    "options",
    [
        {}, {"minPartitions": 20}, {"maxEntriesPerSplit": 10}, {"maxRowsPerTrigger": 70},
        {"durableSubscription": True},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("when", ["before a micro-batch", "before its tasks", "before a restart"])
def test_a_topic_deleted_at_any_time_does_not_end_a_stream_if_data_loss_is_allowed(
    pulsar_broker, pulsar_topic, options, when
):
    kept, gone = f"{pulsar_topic}-kept", f"{pulsar_topic}-gone"
    with pulsar_broker.client() as client:
        publish(client, kept, 0, 10)
        publish(client, gone, 0, 0)
        query = Query(pulsar_broker, kept, startingOffsets="earliest", failOnDataLoss=False, **options)
        query.options["topics"] = f"{query.options.pop('topic')},{gone}"
        query.restart()
        rows, planned = query.batch(), None
        publish(client, kept, 10, 30)
        publish(client, gone, 0, 40)
        if when == "before a micro-batch":
            query.reader.prepareForTriggerAvailableNow()
        else:
            planned = query.latest()
        admin(pulsar_broker.admin_url, "DELETE", gone.replace("://", "/") + "?force=true")
        if when == "before a restart":
            query.restart()
        rows += query.run(planned or query.latest())
        publish(client, kept, 40, 10)
        query.restart()
        for _ in range(3):
            rows += query.batch()
        assert rows == numbers(0, 50)


def source(url: str, topic: str, **options: Any) -> PulsarDataSource:
    return data_source({"service.url": url, "topic": topic, "pollTimeoutMs": 20_000, **options})


def batch_reader(url: str, topic: str, **options: Any) -> PulsarReader:
    reader = source(url, topic, **options).reader(SCHEMA)
    return reader


def test_chunked_messages_are_read_with_any_split(pulsar_broker, pulsar_client, pulsar_topic):
    large = [bytes([65 + number]) * 3000 for number in range(3)]
    with pulsar_client.create_producer(
        pulsar_topic, batching_enabled=False, chunking_enabled=True, chunk_max_message_size=1000
    ) as producer:
        for value in large:
            producer.send(value)
            producer.send(b"small")
    reader = batch_reader(pulsar_broker.service_url, pulsar_topic, maxEntriesPerSplit=1)
    parts = reader.partitions()
    assert len(parts) >= 12
    assert values(reader, parts) == [value for each in large for value in (each, b"small")]
    whole = batch_reader(pulsar_broker.service_url, pulsar_topic)
    assert values(whole) == values(reader, parts)


def test_entries_skipped_by_the_broker_are_a_loss(pulsar_broker, pulsar_client, pulsar_topic):
    """Damaged entries inside a task's range: the broker delivers the entries after them."""
    publish(pulsar_client, pulsar_topic, 0, 50, 5)

    def damage() -> None:
        found = server_of(pulsar_broker).broker.topics.find(TopicName.parse(pulsar_topic))
        segment = found.ledger.segments[0]
        lost = Damage("log-1", 0, "entries", segment.ledger_id, 3, 5, DamageLoss.ENTRIES)
        found.ledger.damage_found(segment, EntriesDamaged("gone", lost))

    inside(pulsar_broker, damage)
    reader = batch_reader(pulsar_broker.service_url, pulsar_topic)
    with pytest.raises(DataLossError, match=r"the entry \d+:3 of .* store was damaged"):
        values(reader)
    tolerant = batch_reader(pulsar_broker.service_url, pulsar_topic, failOnDataLoss=False)
    assert values(tolerant) == [*numbers(0, 15), *numbers(30, 20)]


def test_an_unavailable_broker_is_waited_for_at_every_step(tmp_path):
    """Each step of driver and task, streams and batches, begins while no broker is there."""
    topic = "persistent://public/default/away"
    (port,) = free_ports(1)
    with embedded(tmp_path / "store", port=port) as broker, broker.client() as client:
        url = broker.service_url
        publish(client, topic, 0, 100, 5)
    stream = source(url, topic, startingOffsets="earliest", maxRowsPerTrigger=60).streamReader(SCHEMA)
    batch = batch_reader(url, topic)
    writer = PulsarDataSource({"service.url": url, "topic": topic}).writer(SCHEMA, False)

    def while_away(work: Callable[[], Any]) -> Any:
        """``work()``, with the broker coming back a while after it began."""
        with ThreadPoolExecutor(1) as thread:
            result = thread.submit(work)
            with pytest.raises(TimeoutError):
                result.result(0.4)
            with embedded(tmp_path / "store", port=port):
                return result.result(60)

    start = while_away(stream.initialOffset)
    end = while_away(lambda: stream.latestOffset(start, stream.getDefaultReadLimit()))
    stream._planner = None
    # A plan of an older release, without the first message's id: the reader asks the broker for it.
    end["query"].pop("first")
    parts = while_away(lambda: stream.partitions(start, end))
    assert while_away(lambda: values(stream, parts)) == numbers(0, 60)
    parts = while_away(batch.partitions)
    assert while_away(lambda: values(batch, parts)) == numbers(0, 100)
    more = pa.record_batch({"value": pa.array(numbers(100, 5), pa.binary())})
    while_away(lambda: writer.write(iter([more])))
    with embedded(tmp_path / "store", port=port):
        whole = batch_reader(url, topic)
        assert values(whole) == numbers(0, 105)
    stream.stop()


def test_encrypted_topics_are_written_and_read(pulsar_broker, pulsar_client, pulsar_topic):
    public, private = str(KEYS / "k1_public.pem"), str(KEYS / "k1_private_pkcs1.pem")
    url = pulsar_broker.service_url
    given = {
        "encryptionKeys": "k",
        "crypto.publicKeyPath": public,
        "compression": "LZ4",
        "batchingMaxMessages": "7",
    }
    writer = PulsarDataSource({"service.url": url, "topic": pulsar_topic, **given}).writer(SCHEMA, False)
    rows = pa.record_batch({"value": pa.array(numbers(0, 50), pa.binary())})
    writer.write(iter([rows]))
    reader_of_keys = CryptoKeyReader(public, private)
    with pulsar_client.create_producer(
        pulsar_topic, encryption_key="k", crypto_key_reader=reader_of_keys, batching_enabled=False,
        chunking_enabled=True, chunk_max_message_size=1000,
    ) as producer:  # fmt: skip
        producer.send(b"large" * 1000)
    publish(pulsar_client, pulsar_topic, 50, 5, 5)
    reader = batch_reader(url, pulsar_topic, maxEntriesPerSplit=4, **{"crypto.privateKeyPath": private})
    assert sorted(values(reader)) == sorted([*numbers(0, 55), b"large" * 1000])
    without = batch_reader(url, pulsar_topic)
    with pytest.raises(CryptoError, match="the entry is encrypted") as caught:
        values(without)
    assert any("crypto.privateKeyPath" in note for note in caught.value.__notes__)
    partly = batch_reader(url, pulsar_topic, cryptoFailureAction="DISCARD")
    assert values(partly) == numbers(50, 5)


def compacted(broker: EmbeddedBroker, topic: str) -> None:
    path = f"persistent/public/default/{topic}/compaction"
    admin(broker.admin_url, "PUT", path)
    eventually(lambda: admin(broker.admin_url, "GET", path)["status"] == "SUCCESS")


def newest_by_key(reader: PulsarReader | PulsarStreamReader, parts: Any) -> dict[str, bytes]:
    """Return the table that results from applying the rows in order; an empty value deletes its key."""
    state: dict[str, bytes] = {}
    for part in parts:
        for batch in reader.read(part):
            for key, value in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                if value:
                    state[key] = value
                else:
                    state.pop(key, None)
    return state


def test_compacted_topics_are_read(tmp_path):
    """Batches, single messages and deletions; a compaction between plan and task; ledgers that are gone."""
    keyed = StructType().add("__key", "string").add("value", "binary")
    with embedded(data_dir=tmp_path) as broker, Client(broker.service_url) as client:
        url = broker.service_url

        def publish_keys(first: int, count: int, keys: int) -> None:
            rows = range(first, first + count)
            values = pa.array([b"" if n % 97 == 0 else b"%d" % n for n in rows], pa.binary())
            with client.create_producer("keyed", batching_max_messages=50) as producer:
                producer.send_table(
                    pa.table({"key": pa.array([f"k{n % keys}" for n in rows]), "value": values})
                )
            expected.update({f"k{n % keys}": b"" if n % 97 == 0 else b"%d" % n for n in rows})

        def wanted() -> dict[str, bytes]:
            return {key: value for key, value in expected.items() if value}

        def rows_of(parts: Any) -> int:
            return sum(batch.num_rows for part in parts for batch in reader.read(part))

        expected: dict[str, bytes] = {}
        publish_keys(1, 3000, 100)
        options = {"readCompacted": "true", "startingOffsets": "earliest"}
        reader = source(url, "keyed", **options).reader(keyed)
        assert rows_of(reader.partitions()) == 3000
        compacted(broker, "keyed")
        parts = reader.partitions()
        assert rows_of(parts) == len(wanted()) <= 100
        stream = source(url, "keyed", **options).streamReader(keyed)
        begin = stream.initialOffset()
        end = stream.latestOffset(begin, ReadAllAvailable())
        planned = stream.partitions(begin, end)
        # Everything that both were to read is replaced by newer messages before they read it.
        publish_keys(3001, 500, 100)
        compacted(broker, "keyed")
        assert newest_by_key(reader, parts) == wanted()
        last = stream.latestOffset(end, ReadAllAvailable())
        assert newest_by_key(stream, [*planned, *stream.partitions(end, last)]) == wanted()
        publish_keys(4001, 40, 7)
        assert newest_by_key(reader, reader.partitions()) == wanted()
        stream.stop()


def test_reads_and_writes_use_tokens_and_tls(tmp_path):
    """Clients with a token or certificate write and read; others are rejected."""
    authority = Authority(tmp_path)
    certificate, key = authority.sign("broker")
    shown, shown_key = authority.sign("admin")
    secret = bytes(range(32))
    settings = {
        "tls_certificate": certificate, "tls_key": key, "tls_trust_certificates": authority.certificate,
        "token_secret_key": f"data:;base64,{base64.b64encode(secret).decode()}",
        "super_user_roles": ("admin",),
    }  # fmt: skip
    trust = {"tls.trustCertsFilePath": authority.certificate}
    token = make_token("admin", secret, "HS256")
    (tmp_path / "token").write_text(token)
    ways: list[dict[str, Any]] = [
        {"auth.token": token},
        {"auth.token": f"file://{tmp_path}/token"},
        {
            "auth.plugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
            "auth.params": f"token:{token}",
        },
        {"auth.plugin": "tls", "tls.certificateFilePath": shown, "tls.keyFilePath": shown_key},
        {"auth.plugin": "tls", "auth.params": f"tlsCertFile:{shown},tlsKeyFile:{shown_key}"},
    ]
    with embedded(**settings) as broker:
        for number, way in enumerate(ways):
            topic, options = f"persistent://public/default/by-{number}", {**trust, **way}
            given = {"service.url": broker.service_url, "topic": topic, **options}
            writer = PulsarDataSource({name: str(value) for name, value in given.items()})
            rows = pa.record_batch({"value": pa.array(numbers(0, 5), pa.binary())})
            writer.writer(SCHEMA, False).write(iter([rows]))
            reader = batch_reader(broker.service_url, topic, **options)
            assert values(reader, pickle.loads(pickle.dumps(reader)).partitions()) == numbers(0, 5)
        with pytest.raises((AuthenticationError, AuthorizationError)):
            batch_reader(broker.service_url, topic, **trust).partitions()
        with pytest.raises(ConnectError, match="certificate"):
            batch_reader(broker.service_url, topic, operationTimeoutMs=500, **way).partitions()


def test_only_committed_messages_are_read_and_read_again(pulsar_broker, pulsar_topic):
    """Aborted ones are gaps in the ledger, which are no lost messages; a replay reads them once more."""
    with pulsar_broker.client() as client, client.create_producer(pulsar_topic) as producer:
        query = Query(pulsar_broker, pulsar_topic, startingOffsets="earliest")
        producer.send_many(numbers(0, 5))
        for end in ("abort", "commit"):
            with client.new_transaction() as txn:
                producer.send_many(numbers(5, 3), txn=txn)
                if end == "abort":
                    txn.abort()
        opened = client.new_transaction()
        producer.send_many(numbers(8, 2), txn=opened)
        producer.send_many(numbers(10, 2))
        assert query.batch() == numbers(0, 8)
        assert query.latest() == query.log[-1]
        opened.commit()
        planned = query.latest()
        parts = query.reader.partitions(query.log[-1], planned)
        assert query.rows(parts) == query.rows(parts) == numbers(8, 4)
        last = client.new_transaction()
        producer.send(b"never", txn=last)
        last.abort()
        assert query.run(planned) == numbers(8, 4)
        producer.send(b"12")
        assert query.batch() == [b"12"]
        options = {"service.url": pulsar_broker.service_url, "topic": pulsar_topic}
        found = values(PulsarDataSource(options).reader(SCHEMA))
        assert sorted(found, key=int) == numbers(0, 13)
