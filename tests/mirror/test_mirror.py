"""Mirrors between two brokers in this process: the target equals the source."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import eventually, eventually_async

import geminga
from geminga.client.options.crypto import CryptoKeyReader
from geminga.errors import InvalidConfiguration
from geminga.mirror import Cluster
from geminga.mirror.cursors import CursorMirror
from geminga.mirror.mirror import _Run
from geminga.mirror.pairing import PAIR_PROPERTY
from geminga.mirror.partition import PartitionMirror
from geminga.mirror.topics import SourceTopic, TopicMaker
from geminga.testing.apache_pulsar import free_ports
from tests.mirror.helpers import failure, left, mirror, mirrored, stored

KEYS = Path(__file__).parent.parent / "vectors" / "keys"
Earliest = geminga.InitialPosition.Earliest


class Two:
    """A source and a target with clients and admins."""

    def __init__(self, brokers: tuple[Any, Any], clients: tuple[Any, Any], admins: tuple[Any, Any]) -> None:
        self.brokers = brokers
        self.source, self.target = clients
        self.source_admin, self.target_admin = admins


def two_clusters(source: geminga.EmbeddedBroker, target: geminga.EmbeddedBroker) -> Iterator[Two]:
    with geminga.Admin(source.admin_url) as here, geminga.Admin(target.admin_url) as there:
        yield Two((source, target), (source.client(), target.client()), (here, there))


@pytest.fixture
def two():
    settings = {"batch_index_ack": True}
    with geminga.embedded(**settings) as source, geminga.embedded(**settings) as target:
        yield from two_clusters(source, target)


def fill(
    client: geminga.Client, topic: str, count: int, *, batch: int = 0, start: int = 0, **options: Any
) -> None:
    producer = client.create_producer(
        topic, batching_enabled=batch > 0, batching_max_messages=batch or 1000,
        batching_max_publish_delay_ms=10_000, block_if_queue_full=True, **options,
    )  # fmt: skip
    for n in range(start, start + count):
        producer.send_async(b"%d" % n, None)
    producer.flush()
    producer.close()


def copy(two: Two, count: int) -> None:
    fill(two.source, "t", count)
    mirrored(*two.brokers)


# --- messages ---
def test_entries_of_every_compression_are_copied(two):
    ways = [(one, batch) for one in geminga.CompressionType for batch in (0, 7)]
    for compression, batch in ways:
        fill(two.source, f"{compression.name}-{batch}", 50, batch=batch, compression_type=compression)
    mirrored(*two.brokers)
    for compression, batch in ways:
        topic = f"{compression.name}-{batch}"
        assert stored(two.target, topic) == stored(two.source, topic)
        got = left(two.brokers[1], topic, "s", initial_position=Earliest)
        assert got == [b"%d" % n for n in range(50)]


def test_all_fields_of_a_message_are_copied(two):
    producer = two.source.create_producer("t", producer_name="the-writer", initial_sequence_id=41)
    producer.send(
        b"v", properties={"a": "b"}, partition_key="k", ordering_key="o", event_timestamp=1_234,
        sequence_id=77,
    )  # fmt: skip
    producer.send(b"later", deliver_after=__import__("datetime").timedelta(hours=1))
    mirrored(*two.brokers)
    assert stored(two.target, "t") == stored(two.source, "t")
    message = two.target.subscribe("t", "s", initial_position=Earliest).receive(30_000)
    assert (message.data(), message.properties(), message.partition_key()) == (b"v", {"a": "b"}, "k")
    assert (message.event_timestamp(), message.producer_name()) == (1_234, "the-writer")
    assert message.publish_timestamp() == stored(two.source, "t")[0][0].publish_time


def test_chunks_and_encrypted_messages_are_passed_on(two):
    pytest.importorskip("cryptography")
    reader = CryptoKeyReader(str(KEYS / "k1_public.pem"), str(KEYS / "k1_private_pkcs1.pem"))
    large = bytes(range(256)) * 50_000  # 12.8 MB: three chunks
    chunking = two.source.create_producer("t", chunking_enabled=True, batching_enabled=False)
    chunking.send(large)
    sealed = two.source.create_producer(
        "t", encryption_key="k1", crypto_key_reader=reader, batching_enabled=True
    )
    sealed.send_async(b"secret-1", None)
    sealed.send_async(b"secret-2", None)
    sealed.flush()
    chunking.send(large[::-1], properties={"b": "c"})
    mirrored(*two.brokers)
    assert stored(two.target, "t") == stored(two.source, "t")
    consumer = two.target.subscribe("t", "s", initial_position=Earliest, crypto_key_reader=reader)
    got = [consumer.receive(60_000).data() for _ in range(4)]
    assert got == [large, b"secret-1", b"secret-2", large[::-1]]


def test_partitions_keep_their_order_and_new_ones_are_followed(two):
    two.source_admin.topics.create("p", partitions=3)
    fill(two.source, "p", 300, batch=10)
    with mirror(*two.brokers) as running:
        assert running.wait_until_caught_up(60)
        two.source_admin.topics.update_partitions("p", 5)
        fill(two.source, "new", 20)
        eventually(lambda: len(running.status().partitions) == 6)
        fill(two.source, "p", 300, batch=10, start=300)
        eventually(lambda: running.status().messages == 620)
    assert two.target_admin.topics.partitions("p") == 5
    for index in range(5):
        name = f"p-partition-{index}"
        assert stored(two.target, name) == stored(two.source, name)
    assert stored(two.target, "new") == stored(two.source, "new")


def test_topics_of_several_namespaces(two):
    admin = two.source_admin
    for tenant in ("eu", "us"):
        admin.tenants.create(tenant)
        admin.namespaces.create(f"{tenant}/shop")
        fill(two.source, f"{tenant}/shop/orders", 3)
        fill(two.source, f"{tenant}/shop/else", 3)
    admin.namespaces.retention.set("eu/shop", geminga.admin.Retention(minutes=60, megabytes=-1))
    admin.topic_policies.max_consumers.set("eu/shop/orders", 7)
    admin.topics.update_properties("eu/shop/orders", {"owner": "x"})
    mirrored(*two.brokers, ".*/shop/orders")
    there = two.target_admin
    assert there.namespaces.retention.get("eu/shop").minutes == 60
    assert there.topic_policies.max_consumers.get("eu/shop/orders") == 7
    assert there.topics.properties("eu/shop/orders")["owner"] == "x"
    assert there.topics.list("us/shop") == ["persistent://us/shop/orders"]


# --- schemas ---
def _record(*names: str) -> Any:
    from geminga.schema import Integer, Record

    return type("Row", (Record,), {name: Integer() for name in names})


def test_all_versions_of_schemas_and_messages_that_name_them(two):
    rows = [_record("a"), _record("a", "b"), _record("a", "b", "c")]
    for admin in (two.source_admin, two.target_admin):
        admin.namespaces.schema_compatibility.set("public/default", "ALWAYS_COMPATIBLE")
    for number, row in enumerate(rows):
        producer = two.source.create_producer("t", schema=geminga.schema.AvroSchema(row))
        producer.send(row(a=number))
        producer.close()
    mirrored(*two.brokers)
    versions = [two.source_admin.schemas.get("t", n) for n in range(3)]
    assert [one.data for one in two.target_admin.schemas.versions("t")] == [one.data for one in versions]
    assert stored(two.target, "t") == stored(two.source, "t")


def test_versions_that_have_other_numbers_in_the_target(two):
    first, second, third = _record("a"), _record("a", "b"), _record("a", "b", "c")
    two.target_admin.schemas.upload("t", geminga.schema.AvroSchema(third))
    for admin in (two.source_admin, two.target_admin):
        admin.namespaces.schema_compatibility.set("public/default", "ALWAYS_COMPATIBLE")
    for row in (first, second):
        two.source.create_producer("t", schema=geminga.schema.AvroSchema(row)).send(row(a=5))
    mirrored(*two.brokers)
    names = [m.schema_version for m, _ in stored(two.target, "t")]
    assert [int.from_bytes(name, "big") for name in names] == [1, 2]
    consumer = two.target.subscribe(
        "t", "s", initial_position=Earliest, schema=geminga.schema.AvroSchema(first)
    )
    assert [consumer.receive(30_000).value().a for _ in range(2)] == [5, 5]


def test_a_schema_that_the_target_refuses_stops_the_copying_and_is_reported(two):
    two.target_admin.schemas.upload("t", geminga.schema.AvroSchema(_record("z")))
    two.target_admin.namespaces.schema_compatibility.set("public/default", "ALWAYS_INCOMPATIBLE")
    row = _record("a")
    two.source.create_producer("t", schema=geminga.schema.AvroSchema(row)).send(row(a=1))
    assert "the target refuses the schema" in failure(*two.brokers)
    assert stored(two.target, "t") == []


def test_schemas_of_a_recreated_topic_are_copied_again(two):
    """The same numbers mean other schemas now."""
    first, second = _record("a"), _record("b", "c")
    for admin in (two.source_admin, two.target_admin):
        admin.namespaces.schema_compatibility.set("public/default", "ALWAYS_COMPATIBLE")

    def send(row: Any, **fields: int) -> None:
        producer = two.source.create_producer("t", schema=geminga.schema.AvroSchema(row))
        producer.send(row(**fields))
        producer.close()

    send(first, a=1)
    with mirror(*two.brokers, on_mismatch="restart") as running:
        eventually(lambda: running.status().messages == 1)
        two.source_admin.topics.delete("t", force=True)
        send(second, b=2, c=3)
        eventually(lambda: len(stored(two.target, "t")) == 2)
    versions = [int.from_bytes(one.schema_version, "big") for one, _ in stored(two.target, "t")]
    there = [two.target_admin.schemas.get("t", version).data for version in versions]
    assert ['"b"' in str(data) for data in there] == [False, True]


# --- subscriptions ---
def test_subscriptions_keep_their_positions(two):
    shared = geminga.ConsumerType.Shared
    made = {
        name: two.source.subscribe("t", name, consumer_type=shared, batch_index_ack_enabled=True)
        for name in ("holes", "none", "all")
    }
    through = two.source.subscribe("t", "through", batch_index_ack_enabled=True)
    fill(two.source, "t", 200, batch=10)
    fill(two.source, "t", 20, start=200)
    expected = {name: [b"%d" % n for n in range(220)] for name in ("none",)} | {"all": []}
    kept = []
    for n in range(220):
        message = made["holes"].receive(30_000)
        # Whole batches, single messages of batches, and messages alone.
        if n < 25 or 40 <= n < 60 or n % 3 == 0 or n == 219:
            made["holes"].acknowledge(message)
        else:
            kept.append(message.data())
    expected["holes"] = kept
    for n in range(220):
        made["all"].acknowledge(made["all"].receive(30_000))
        message = through.receive(30_000)
        if n == 136:
            through.acknowledge_cumulative(message)
    expected["through"] = [b"%d" % n for n in range(137, 220)]
    for consumer in (*made.values(), through):
        consumer.close()
    mirrored(*two.brokers)
    for name, messages in expected.items():
        assert left(two.brokers[1], "t", name) == messages, name


def test_ack_holes_beyond_those_in_the_statistics_are_mirrored(two):
    consumer = two.source.subscribe(
        "t", "s", consumer_type=geminga.ConsumerType.Shared, batch_index_ack_enabled=True,
        receiver_queue_size=10_000,
    )  # fmt: skip
    fill(two.source, "t", 1500)
    fill(two.source, "t", 1500, batch=5, start=1500)
    kept = []
    for n in range(3000):
        message = consumer.receive(30_000)
        if n % 2:
            consumer.acknowledge(message)
        else:
            kept.append(message.data())
    consumer.close()
    mirrored(*two.brokers)
    assert left(two.brokers[1], "t", "s") == kept


def test_subscriptions_are_followed_and_found_again_by_the_next_mirror(two):
    shared = geminga.ConsumerType.Shared
    consumer = two.source.subscribe("t", "s", consumer_type=shared)
    copy(two, 500)
    messages = [consumer.receive(30_000) for _ in range(500)]
    for n in (*range(100), *range(120, 140), 400):
        consumer.acknowledge(messages[n])
    consumer.close()
    two.source.subscribe("t", "late", initial_position=geminga.InitialPosition.Latest).close()
    # Another mirror, which has seen none of these entries: the target tells where they are.
    mirrored(*two.brokers)
    wanted = [b"%d" % n for n in range(100, 500) if not 120 <= n < 140 and n != 400]
    assert left(two.brokers[1], "t", "late") == []
    assert left(two.brokers[1], "t", "s") == wanted


def test_a_subscription_that_is_used_in_the_target_is_left_alone(two):
    consumer = two.source.subscribe("t", "s")
    fill(two.source, "t", 10)
    with mirror(*two.brokers) as running:
        assert running.wait_until_caught_up(60)
        user = two.target.subscribe("t", "s")
        assert user.receive(30_000).data() == b"0"
        consumer.acknowledge_cumulative([consumer.receive(30_000) for _ in range(5)][-1])

        def notes() -> list[str]:
            return [one.note for part in running.status().partitions for one in part.subscriptions]

        eventually(lambda: notes() == ["in use in the target"])
        user.close()
        eventually(lambda: notes() == [""])
        assert left(two.brokers[1], "t", "s") == [b"%d" % n for n in range(5, 10)]


def test_acknowledgements_in_the_target_are_kept(two):
    two.source.subscribe("t", "s").close()
    copy(two, 10)
    user = two.target.subscribe("t", "s")
    user.acknowledge_cumulative([user.receive(30_000) for _ in range(7)][-1])
    user.close()
    mirrored(*two.brokers)
    assert left(two.brokers[1], "t", "s") == [b"7", b"8", b"9"]


# --- going on ---
def test_messages_of_target_producers_stay_in_the_backlog(two):
    """Source positions say nothing about entries that never existed."""
    consumer = two.source.subscribe("t", "s")
    copy(two, 3)
    fill(two.target, "t", 3, start=100)
    fill(two.source, "t", 3, start=3)
    messages = [consumer.receive(30_000) for _ in range(6)]
    for message in messages[:5]:
        consumer.acknowledge(message)
    consumer.close()
    for _ in range(2):  # the second has seen none of it, and finds what the first has told
        mirrored(*two.brokers)
        assert left(two.brokers[1], "t", "s") == [b"100", b"101", b"102", b"5"]
    assert two.source_admin.topics.stats("t").subscriptions["s"].messages_in_backlog == 1


def test_the_next_mirror_continues_at_the_last_position(two):
    for part in range(4):
        fill(two.source, "t", 25, start=25 * part, batch=part)
        assert mirrored(*two.brokers).messages == 25
    assert stored(two.target, "t") == stored(two.source, "t")


def test_nothing_is_copied_twice_after_deduplication_lost_its_state(two):
    copy(two, 30)
    # The mirror's own subscription is behind the entries in the target.
    admin, name = two.source_admin, "geminga-mirror.standalone"
    two.target_admin.topic_policies.deduplication.set("t", False)
    admin.subscriptions.reset_to_id("t", name, geminga.MessageId.earliest)
    fill(two.source, "t", 5, start=30)
    two.target.create_producer("t").send(b"somebody else's")
    status = mirrored(*two.brokers)
    assert (status.messages, status.partitions[0].duplicates) == (5, 0)
    got = left(two.brokers[1], "t", "s", initial_position=Earliest)
    assert [one for one in got if one.isdigit()] == [b"%d" % n for n in range(35)]


def test_another_source_under_the_same_name_is_not_taken_for_the_first(two):
    copy(two, 10)
    with geminga.embedded() as other:
        fill(other.client(), "t", 10, start=100)
        assert "this is another source" in failure(other, two.brokers[1])
        assert len(stored(two.target, "t")) == 10
        mirrored(other, two.brokers[1], name="second")
    assert left(two.brokers[1], "t", "s", initial_position=Earliest) == [
        b"%d" % n for n in (*range(10), *range(100, 110))
    ]


def test_a_recreated_target_is_recognised(two):
    copy(two, 10)
    two.target_admin.topics.delete("t", force=True)
    assert "this is another target" in failure(*two.brokers)
    mirrored(*two.brokers, on_mismatch="restart")
    assert stored(two.target, "t") == stored(two.source, "t")


def test_on_mismatch_continue_keeps_copying(two):
    copy(two, 10)
    two.source_admin.subscriptions.delete("t", "geminga-mirror.standalone", force=True)
    fill(two.source, "t", 10, start=10)
    mirrored(*two.brokers, on_mismatch="continue")
    assert left(two.brokers[1], "t", "s", initial_position=Earliest) == [b"%d" % n for n in range(20)]


def test_a_mirror_that_was_killed_before_it_began(two):
    fill(two.source, "t", 3)
    two.target_admin.topics.create("t")
    two.target_admin.topics.update_properties("t", {"geminga-mirror.standalone": "00" * 8})
    mirrored(*two.brokers)
    assert stored(two.target, "t") == stored(two.source, "t")
    properties = two.source_admin.subscriptions.properties("t", "geminga-mirror.standalone")
    assert properties[PAIR_PROPERTY] == "00" * 8


def test_one_cluster_by_two_addresses(two):
    fill(two.source, "t", 3)
    broker = two.brokers[0]
    other = Cluster(
        service_url=broker.service_url.replace("127.0.0.1", "localhost"), admin_url=broker.admin_url
    )
    assert "the same cluster" in failure(broker, other)
    assert len(stored(two.source, "t")) == 3
    assert two.source_admin.topics.properties("t") == {}


# --- both ways ---
@pytest.mark.parametrize("at_once", [False, True])
def test_a_recreated_topic_is_recognised(two, at_once):
    """Also if the consumer of the mirror finds it under the same name, on the same connection."""
    fill(two.source, "t", 3)
    with mirror(*two.brokers, **{"discovery_seconds": 3600} if at_once else {}) as running:
        assert running.wait_until_caught_up(60)
        two.source_admin.topics.delete("t", force=True)
        if not at_once:
            eventually(lambda: not running.status().partitions)
        fill(two.source, "t", 3)
        # It is another topic than the mirrored one: the user has to decide.
        eventually(lambda: running.status().failed)
        assert "this is another source" in running.status().failed[0]
        assert len(stored(two.target, "t")) == 3


def test_a_deleted_subscription_of_the_mirror_is_reported(two):
    """A recreated subscription would start after messages published meanwhile."""
    fill(two.source, "t", 3)
    with mirror(*two.brokers, discovery_seconds=3600) as running:
        assert running.wait_until_caught_up(60)
        two.source_admin.subscriptions.delete("t", "geminga-mirror.standalone", force=True)
        fill(two.source, "t", 3)
        eventually(lambda: running.status().failed)
        assert "has no subscription" in running.status().failed[0]
    mirrored(*two.brokers, on_mismatch="continue")
    assert stored(two.target, "t") == stored(two.source, "t")


def test_a_target_that_requires_encryption_reports_plain_messages(two):
    pytest.importorskip("cryptography")
    reader = CryptoKeyReader(str(KEYS / "k1_public.pem"), str(KEYS / "k1_private_pkcs1.pem"))
    two.source.create_producer("t", encryption_key="k1", crypto_key_reader=reader).send(b"secret")
    two.target_admin.namespaces.encryption_required.set("public/default", True)
    mirrored(*two.brokers)
    assert stored(two.target, "t") == stored(two.source, "t")
    fill(two.source, "t", 1)
    with mirror(*two.brokers) as running:
        eventually(lambda: "must be encrypted" in running.status().partitions[0].error)
    assert len(stored(two.target, "t")) == 1


def test_a_second_mirror_of_the_same_name_waits(two):
    fill(two.source, "t", 20)
    with mirror(*two.brokers) as first:
        assert first.wait_until_caught_up(60)
        with mirror(*two.brokers) as second:
            eventually(lambda: second.status().partitions and second.status().partitions[0].error)
            fill(two.source, "t", 20, start=20)
            eventually(lambda: first.status().messages == 40)
            first.close()
            fill(two.source, "t", 20, start=40)
            eventually(lambda: second.status().messages == 20)
    assert stored(two.target, "t") == stored(two.source, "t")


# --- obstacles and errors ---
def test_a_partitioned_topic_is_not_copied_to_one_without_partitions(two):
    two.source_admin.topics.create("t", partitions=2)
    two.target_admin.topics.create("t")
    fill(two.source, "other", 1)
    assert "none in the target" in failure(*two.brokers)
    assert stored(two.target, "other") == stored(two.source, "other")


def test_a_damaged_entry_is_not_copied(two, monkeypatch):
    from geminga.mirror import entries

    fill(two.source, "t", 3)
    monkeypatch.setattr(entries, "checksum_matches", lambda _: False)
    with mirror(*two.brokers) as running:
        eventually(lambda: "damaged" in running.status().partitions[0].error)
        assert stored(two.target, "t") == []
        monkeypatch.undo()
        assert running.wait_until_caught_up(60)
    assert stored(two.target, "t") == stored(two.source, "t")


def test_wrong_settings():
    with pytest.raises(InvalidConfiguration, match="another cluster"):
        mirror(geminga.client.cluster.Cluster(), geminga.client.cluster.Cluster())
    with geminga.embedded() as broker, pytest.raises(InvalidConfiguration, match="on_mismatch"):
        mirror(broker, geminga.client.cluster.Cluster(), on_mismatch="maybe")


def test_a_target_that_cannot_deduplicate_is_reported(two, monkeypatch):
    from geminga.client.admin.aio.policies import PolicyAt
    from geminga.errors import AdminAuthorizationError

    async def refuse(self: Any, place: str, value: Any) -> None:
        raise AdminAuthorizationError("no", status=403)

    fill(two.source, "t", 3)
    monkeypatch.setattr(PolicyAt, "set", refuse)
    assert "does not deduplicate" in failure(*two.brokers, policies=False)
    assert stored(two.target, "t") == []


def test_metrics_and_status(two):

    fill(two.source, "t", 10)
    with mirror(*two.brokers, metrics_port=0) as running:
        assert running.wait_until_caught_up(60)
        status = running.status()
    assert 'geminga_mirror_messages_total{mirror="standalone",topic="persistent://public/default/t"} 10' in (
        status.exposition()
    )
    assert status.as_dict()["messages"] == 10
    assert "10 messages" in status.line()


def test_the_last_status_counts_what_is_behind_at_the_end(two, monkeypatch):
    fill(two.source, "t", 10)
    opened = _Run._open

    async def with_an_old_lag(run: _Run, topic: str, schemas: Any) -> None:
        await opened(run, topic, schemas)
        run._parts[topic].lag = 17

    monkeypatch.setattr(_Run, "_open", with_an_old_lag)
    status = mirrored(*two.brokers)
    assert status.lag_entries == 0
    assert "0 entries behind; partitions: 1 up to date" in status.line()


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_target_that_keeps_no_acknowledgements_inside_batches_is_warned_of(is_kept):
    with geminga.embedded() as source, geminga.embedded(batch_index_ack=is_kept) as target:
        fill(source.client(), "t", 3)
        warnings = mirrored(source, target).warnings
        assert bool(warnings) is not is_kept
        assert is_kept or "acknowledgmentAtBatchIndexLevelEnabled=false" in warnings[0]
        assert mirrored(source, target, subscriptions=False).warnings == ()


def test_a_target_that_does_not_show_its_configuration_is_warned_of(two, monkeypatch):
    from geminga.client.admin.aio.tenants import Brokers
    from geminga.errors import AdminAuthorizationError

    async def refuse(self: Any) -> Any:
        raise AdminAuthorizationError("not a super user", status=403)

    monkeypatch.setattr(Brokers, "configuration", refuse)
    fill(two.source, "t", 3)
    assert "does not show its acknowledgmentAt" in mirrored(*two.brokers).warnings[0]


def test_a_lost_source_is_down_in_metrics_and_logged_each_time_with_its_return(tmp_path, caplog):
    caplog.set_level(logging.INFO, "geminga.mirror")
    port, web_port = free_ports(2)
    settings = {"port": port, "web_port": web_port}
    source = geminga.embedded(tmp_path, **settings)
    with geminga.embedded() as target:
        fill(source.client(), "t", 3)
        with mirror(source, target) as running:
            assert running.wait_until_caught_up(60)
            for _ in range(2):
                eventually(lambda: running.status().partitions[0].lag_entries == 0)
                caplog.clear()
                source.close()
                eventually(lambda: running.status().partitions[0].state == "waiting to try again")
                (partition,) = running.status().partitions
                assert (partition.lag_entries, bool(partition.error)) == (-1, True)
                assert "geminga_mirror_up{" in (text := running.status().exposition())
                assert text.rstrip().endswith(" 0")
                source = geminga.embedded(tmp_path, **settings)
                eventually(lambda: running.status().partitions[0].state == "copying")
                lines = [one.getMessage() for one in caplog.records if one.getMessage().startswith("persis")]
                assert "/t is not mirrored, retry in " in lines[0]
                assert lines[-1] == "persistent://public/default/t is mirrored again"
                assert len(set(lines)) == len(lines)
        assert running.status().line().endswith("0 entries behind; partitions: 1 up to date")
    source.close()


class Pause:
    """Keeps sessions from beginning, as a target that is down: meanwhile the subscription is moved."""

    def __init__(self, two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
        self._two = two
        self._may_begin = threading.Event()
        self._may_begin.set()
        session = PartitionMirror._session

        async def begin(mirror: PartitionMirror) -> None:
            await eventually_async(lambda: self._may_begin.is_set())
            await session(mirror)

        monkeypatch.setattr(PartitionMirror, "_session", begin)

    def __enter__(self) -> str:
        """Return the mirror's subscription, once the mirror's consumer is disconnected."""
        self._may_begin.clear()
        self._two.target_admin.topics.unload("t")
        mine = "geminga-mirror.standalone"
        eventually(lambda: not self._two.source_admin.topics.stats("t").subscriptions[mine].consumers)
        return mine

    def __exit__(self, *_: object) -> None:
        self._may_begin.set()


def test_messages_that_the_source_skips_are_counted_as_missed(two, monkeypatch, caplog):
    pause = Pause(two, monkeypatch)
    fill(two.source, "t", 10)
    with mirror(*two.brokers) as running:
        assert running.wait_until_caught_up(60)
        assert running.status().partitions[0].missed == 0
        with pause as mine:
            fill(two.source, "t", 20)
            two.source_admin.subscriptions.clear("t", mine)
            fill(two.source, "t", 5)
        eventually(lambda: len(stored(two.target, "t")) == 15)
        (part,) = running.status().partitions
    assert part.missed == 20
    assert "20 entries were not delivered by the source" in running.status().line()
    assert "did not deliver the 20 entries before" in caplog.text


@pytest.fixture
def small_ledgers():
    """A source with ledgers of ten entries."""
    with geminga.embedded(ledger_entries_max=10) as source, geminga.embedded() as target:
        yield from two_clusters(source, target)


@pytest.mark.parametrize(("skipped", "more"), [(36, 5), (36, 0), (40, 7)])
def test_a_skip_that_ends_where_a_ledger_ends_is_counted(small_ledgers, monkeypatch, skipped, more):
    """Also when nothing comes behind it."""
    two = small_ledgers
    two.source.subscribe("t", "keeps", initial_position=Earliest)  # else the ledgers would go at once
    pause = Pause(two, monkeypatch)
    fill(two.source, "t", 4)
    with mirror(*two.brokers, discovery_seconds=3600) as running:
        assert running.wait_until_caught_up(60)
        with pause as mine:
            fill(two.source, "t", skipped)
            two.source_admin.subscriptions.clear("t", mine)
            fill(two.source, "t", more)
        eventually(lambda: len(stored(two.target, "t")) == 4 + more)
        eventually(lambda: running.status().partitions[0].missed == skipped)
        assert not running.status().partitions[0].error
        assert f"{skipped} entries were not delivered" in running.status().line()


@pytest.mark.parametrize("more", [0, 3])
def test_skips_while_copying_are_counted(small_ledgers, monkeypatch, more):
    """The source takes the backlog from under a mirror that is slow."""
    two = small_ledgers
    two.source.subscribe("t", "keeps", initial_position=Earliest)
    two.source.subscribe("t", "s").close()
    fill(two.source, "t", 5)
    monkeypatch.setattr("geminga.mirror.mirror.LAG_SECONDS", 0.1)
    monkeypatch.setattr("geminga.mirror.partition.QUEUE_MESSAGES", 1)
    passed, may_pass = PartitionMirror._pass_on, threading.Event()

    async def slowly(self: PartitionMirror, entry: Any, *rest: Any) -> None:
        await eventually_async(lambda: entry.entry_id != 4 or may_pass.is_set())
        await passed(self, entry, *rest)

    monkeypatch.setattr(PartitionMirror, "_pass_on", slowly)
    with mirror(*two.brokers, discovery_seconds=3600) as running:
        eventually(lambda: running.status().messages == 4)
        fill(two.source, "t", 95, start=5)
        two.source_admin.subscriptions.clear("t", "geminga-mirror.standalone")
        fill(two.source, "t", more, start=100)
        may_pass.set()

        def all_told() -> bool:
            (part,) = running.status().partitions
            return part.messages + part.missed == 100 + more

        eventually(all_told)
        assert len(stored(two.target, "t")) == running.status().messages < 100


def test_creating_many_topics_does_not_delay_discovery(two, monkeypatch):
    """Looking for topics rests longer than it takes; what it takes to make them does not count."""
    rounds: list[tuple[float, float]] = []
    made, discover = TopicMaker.make, _Run._discover

    async def slowly(self: TopicMaker, found: SourceTopic) -> None:
        await asyncio.sleep(0.5)
        await made(self, found)

    async def watched(self: _Run) -> float:
        began = time.monotonic()
        looked = await discover(self)
        rounds.append((looked, time.monotonic() - began))
        return looked

    monkeypatch.setattr(TopicMaker, "make", slowly)
    monkeypatch.setattr(_Run, "_discover", watched)
    copy(two, 1)
    looked, took = rounds[0]
    assert looked <= took - 0.5


@pytest.mark.parametrize("messages", [0, 3])
def test_an_idle_mirror_sends_no_requests(two, monkeypatch, messages):
    """An idle mirror sends no periodic requests for partitions, an empty topic included."""
    looks = 0
    follow = CursorMirror.follow

    async def counted(self: CursorMirror) -> bool:
        nonlocal looks
        looks += 1
        return await follow(self)

    monkeypatch.setattr(CursorMirror, "follow", counted)
    two.source.subscribe("t", "s").close()
    fill(two.source, "t", messages)
    with mirror(*two.brokers, subscription_seconds=3600, discovery_seconds=3600) as running:
        assert running.wait_until_caught_up(60)
        settled = looks
        rounds = threading.Event()
        loop = running._loop
        loop.call_soon_threadsafe(loop.call_later, 1.0, rounds.set)
        assert rounds.wait(60)
        assert looks - settled <= 2
