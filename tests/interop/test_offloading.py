"""Offloading as Apache Pulsar's tools and clients meet it, to an object store; Java's batches too."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pulsar
import pyarrow.dataset as ds
import pytest
from insides import server_of
from waiting import eventually

from geminga.broker.serving.embedded import EmbeddedBroker, embedded
from geminga.client.admin import admin, topic_path
from geminga.client.api.entry_reader import EntryReader
from geminga.ids import MessageId, TopicName
from geminga.offload.arrow_storage import ArrowStorage
from geminga.offload.entry_envelope import EntryEnvelope
from geminga.offload.file import LedgerFile
from geminga.offload.manifest import load
from geminga.offload.storage import folder_of
from geminga.testing.apache_pulsar import run_tool
from tests.support.insides import inside
from tests.support.spark_cluster import ObjectStore

pytestmark = pytest.mark.interop

LEDGER_ENTRIES = 10


@pytest.fixture(scope="module")
def location(tmp_path_factory):
    with ObjectStore.start(tmp_path_factory.mktemp("s3")) as store, pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment().items():
            patch.setenv(name, value)
        yield f"s3://{store.bucket}/pulsar?endpoint_override=127.0.0.1:{store.port}&scheme=http"


def start(folder: Path, location: str) -> EmbeddedBroker:
    return embedded(
        folder, offload_location=location, ledger_entries_max=LEDGER_ENTRIES, offload_deletion_lag_seconds=0
    )


def until_gone(broker: EmbeddedBroker, topic: str, kept: int) -> None:
    """Wait until a number of ledgers have their entries in the store."""
    eventually(lambda: len(inside(broker, lambda: server_of(broker).store.tier.local_ledgers(topic))) <= kept)


def test_pulsar_admin_offloads_to_an_object_store_and_pulsar_client_reads_it(
    location, topic, pulsar_home, tmp_path
):
    name = topic("offloaded")
    values = [b"%d" % number for number in range(95)]
    with start(tmp_path / "store", location) as broker:

        def tool(program: str, *arguments: str) -> str:
            found = run_tool(
                pulsar_home, program, *arguments, admin_url=broker.admin_url, service_url=broker.service_url
            )
            return found.stdout + found.stderr

        client = pulsar.Client(broker.service_url)
        client.create_reader(name, pulsar.MessageId.earliest).close()
        producer = client.create_producer(name, batching_enabled=False)
        for value in values:
            producer.send(value, partition_key="k", properties={"n": value.decode()})
        said = tool("pulsar-admin", "topics", "offload", "-s", "0", name)
        assert "Offload triggered" in said
        assert "success" in tool("pulsar-admin", "topics", "offload-status", "-w", name)
        until_gone(broker, name, kept=1)
        internals = admin(broker.admin_url, "GET", f"{name.replace('://', '/')}/internalStats")
        offloaded = [each["offloaded"] for each in internals["ledgers"]]
        assert offloaded == [True] * 9 + [False]
        reader = client.create_reader(name, pulsar.MessageId.earliest)
        assert [reader.read_next(60_000).data() for _ in values] == values
        client.close()
        tool("pulsar-admin", "namespaces", "set-offload-threshold", "-s", "10M", "public/default")
        for policy, wanted in (("offloadThreshold", 10 << 20), ("offloadThresholdInSeconds", -1)):
            assert admin(broker.admin_url, "GET", f"namespaces/public/default/{policy}") == wanted
    place = ArrowStorage(location)
    found = load(place, name)
    assert found is not None
    assert [each.messages for each in found.ledgers] == [LEDGER_ENTRIES] * 9
    files = [f"{place._root}/{folder_of(name)}/{each.file}" for each in found.ledgers]
    table = ds.dataset(files, filesystem=place._files, format="parquet").to_table(columns=["value"])
    assert table["value"].to_pylist() == values[:90]
    with start(tmp_path / "store", location) as broker:
        client = pulsar.Client(broker.service_url)
        reader = client.create_reader(name, pulsar.MessageId.earliest)
        assert [reader.read_next(60_000).data() for _ in values] == values
        reader.close()
        client.close()


@pytest.mark.long
@pytest.mark.parametrize("compression", ["ZLIB", "ZSTD"])
def test_offloaded_batches_of_the_java_client_are_restored_byte_for_byte(
    compression, topic, pulsar_home, tmp_path
):
    """Java's ZLIB can be repeated, so that its bytes are not kept; its ZSTD is a library of its own."""
    name = topic("java")
    with start(tmp_path / "store", str(tmp_path / "tier")) as broker:
        run_tool(
            pulsar_home, "pulsar-perf", "produce", "-m", "20000", "-r", "20000", "-s", "100", "-z",
            compression, name, admin_url=broker.admin_url, service_url=broker.service_url,
        )  # fmt: skip
        with broker.client() as client:
            before = entries(client, name)
            path = f"{name.replace('://', '/')}/offload"
            newest = MessageId.latest.ledger_id
            admin(broker.admin_url, "PUT", path, {"ledgerId": newest, "entryId": 0, "partitionIndex": -1})
            until_gone(broker, name, kept=1)
            assert entries(client, name) == before
        store = server_of(broker).store
        for record in inside(broker, lambda: list(store.offloaded(name))):
            source = store.place.open(f"{folder_of(name)}/{record.file}")
            file = LedgerFile(source)
            for _, _, _, _, at, size, _ in file.summary.groups:
                source.seek(at)
                kept = EntryEnvelope.decode(source.read(size)).whole_sizes > 0
                assert kept.any() == (compression == "ZSTD")
            file.close()


def entries(client: Any, topic: str) -> list[bytes]:
    reader = EntryReader.open(client, topic, MessageId.earliest)
    found: list[bytes] = []
    while reader.has_message_available():
        found += [bytes(each.entry) for each in reader.read(1000, 60)]
    reader.close()
    return found


READS = """
import json, os, sys
import geminga.spark
spark = geminga.spark.session("local[2]", "snapshot", json.loads(os.environ["SPARK_SETTINGS"]))
options = json.loads(os.environ["PULSAR_OPTIONS"])
found = geminga.spark.snapshot(spark, options)
plain = spark.read.format("pulsar").options(**options).load()
rows = [sorted(map(repr, frame.collect())) for frame in (found.frame, plain)]
print(json.dumps([found.files, len(rows[0]), rows[0] == rows[1]]), flush=True)
spark.stop()
"""


@pytest.mark.usefixtures("package_cache")
@pytest.mark.timeout(900)
def test_spark_reads_a_snapshot_from_an_object_store_by_its_own_connector(topic, tmp_path):
    """The storage is `s3:` with an endpoint for Arrow, and `s3a:` with the session's settings for Spark."""
    name = topic("snapshot")
    with ObjectStore.start(tmp_path / "s3") as store, pytest.MonkeyPatch.context() as patch:
        for key, value in store.environment().items():
            patch.setenv(key, value)
        place = f"s3://{store.bucket}/pulsar?endpoint_override=127.0.0.1:{store.port}&scheme=http"
        with start(tmp_path / "store", place) as broker:
            with broker.client() as client:
                producer = client.create_producer(name, batching_enabled=False)
                for number in range(45):
                    producer.send_async(b"%d" % number, None, partition_key="k")
                producer.flush()
            path = topic_path(TopicName.parse(name))
            admin(
                broker.admin_url,
                "PUT",
                f"{path}/offload",
                {"ledgerId": 1 << 60, "entryId": 0, "partitionIndex": -1},
            )
            until_gone(broker, name, kept=1)
            options = {"service.url": broker.service_url, "topic": name, "offloadLocation": place}
            environment = {
                **os.environ, "PULSAR_OPTIONS": json.dumps(options),
                "SPARK_SETTINGS": json.dumps({"spark.ui.enabled": "false", **store.spark_settings()}),
            }  # fmt: skip
            run = subprocess.run(
                [sys.executable, "-c", READS], env=environment, capture_output=True, text=True, timeout=480
            )
    assert run.returncode == 0, run.stderr[-3000:]
    assert json.loads(run.stdout.splitlines()[-1]) == [4, 45, True]


def test_backups_are_kept_in_an_object_store_verified_and_restored(location, tmp_path):
    def store(*arguments: str) -> str:
        """Return the output; empty after an error, such as that of two backups in one second."""
        command = [sys.executable, "-m", "geminga", "store", *arguments]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60).stdout

    data, backups = str(tmp_path / "data"), location.replace("/pulsar", "/backups")
    with embedded(data) as broker, broker.client() as client:
        producer = client.create_producer("orders")
        for text in (b"one", b"two", b"three"):
            producer.send(text)
            eventually(lambda: "all is well" in store("backup", data, backups, "--keep", "2", "--verify"), 60)
    assert "all is well" in store("check", backups)
    assert "s3://lake/backups/2" in store("restore", "--json", backups, str(tmp_path / "again"))
    with embedded(tmp_path / "again") as broker, broker.client() as client:
        reader = client.create_reader("orders", MessageId.earliest)
        assert [reader.read_next(60_000).data() for _ in range(3)] == [b"one", b"two", b"three"]
    assert len([name for name in ArrowStorage(backups).names("") if name.endswith(".json")]) == 2
