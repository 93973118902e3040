"""Faults of one cluster: what the mirror logs and reports, and that it continues without loss."""

import logging
import re
from datetime import timedelta
from typing import Any

import pytest
from waiting import eventually

import geminga
from geminga.admin import DelayedDelivery
from geminga.mirror import Cluster, MirrorStatus
from geminga.mirror.mirror import Mirror, MirrorSettings
from geminga.mirror.partition import PartitionMirror
from geminga.mirror.status import PartitionStatus
from geminga.testing.apache_pulsar import free_ports
from tests.mirror.helpers import cluster, mirror, mirrored, stored


@pytest.fixture
def sides():
    with geminga.embedded() as source, geminga.embedded() as target:
        yield source, target


def fill(broker: Any, *numbers: int, size: int = 0) -> None:
    with broker.client() as client:
        producer = client.create_producer("t")
        for number in numbers:
            producer.send(b"%d" % number + b"." * size)


def fill_at_once(broker: Any, *numbers: int, size: int = 0, delay: timedelta | None = None) -> None:
    """Fill without waiting for receipts; multiples of 50 have this size and delay."""
    with broker.client() as client:
        producer = client.create_producer("t")
        for number in numbers:
            is_special = number % 50 == 0
            value = (b"%d" % number).ljust(size if is_special else 50, b".")
            producer.send_async(value, None, deliver_after=delay if is_special else None)
        producer.flush()


def entries(broker: Any) -> list[bytes]:
    with broker.client() as client:
        return [value.rstrip(b".") for _, value in stored(client, "t")]


@pytest.mark.parametrize("side", [0, 1])
def test_an_unloaded_topic_is_not_logged(sides, side, caplog, monkeypatch):
    monkeypatch.setattr("geminga.mirror.partition._STEADY_SECONDS", 0.0)
    caplog.set_level(logging.INFO, "geminga.mirror")
    fill(sides[0], 1)
    with mirror(*sides) as running, geminga.Admin(sides[side].admin_url) as admin:
        assert running.wait_until_caught_up(30)
        caplog.clear()
        admin.topics.unload("t")
        fill(sides[0], 2)
        eventually(lambda: running.status().messages == 2)
        assert [one.getMessage() for one in caplog.records if "public/default/t" in one.getMessage()] == []
    assert entries(sides[1]) == [b"1", b"2"]


@pytest.mark.parametrize("before", [0, 1], ids=["limited before", "limited meanwhile"])
@pytest.mark.parametrize("what", ["size", "delay"])
def test_entries_behind_one_that_the_target_refuses_do_not_hide_it(sides, what, before):
    special: Any = {"size": 5000} if what == "size" else {"delay": timedelta(hours=1)}
    with sides[1].client() as other:
        other.create_producer("t").close()
    with geminga.Admin(sides[1].admin_url) as admin, mirror(*sides) as running:
        policies = admin.topic_policies
        limit: Any = policies.max_message_size if what == "size" else policies.delayed_delivery
        if before:
            fill_at_once(sides[0], 0, **special)
            eventually(lambda: running.status().messages == 1)
        limit.set("t", 2000 if what == "size" else DelayedDelivery(delay_milliseconds_max=60_000))
        fill_at_once(sides[0], *range(1, 300), **special)
        eventually(lambda: re.search("[Ee]xceeds .*(limit|allowed)", str(running.status())))
        eventually(lambda: len(entries(sides[1])) >= before + 49)
        assert entries(sides[1])[before:] == [b"%d" % number for number in range(1, 50)]
        limit.remove("t")
        eventually(lambda: len(entries(sides[1])) >= before + 299)
    assert entries(sides[1])[before:] == [b"%d" % number for number in range(1, 300)]


@pytest.mark.parametrize("days", [0, 1], ids=["no limit", "a day"])
def test_entries_that_are_each_delivered_later_wait_for_no_receipts(sides, days, monkeypatch):
    """With a wait for each, the mirror copied an entry in a round trip."""
    waits, wait = [], PartitionMirror.wait_for_room

    async def counted(self: PartitionMirror, publisher: Any, size: int) -> None:
        waits.append(size)
        await wait(self, publisher, size)

    monkeypatch.setattr(PartitionMirror, "wait_for_room", counted)
    with geminga.Admin(sides[1].admin_url) as admin, sides[0].client() as client:
        longest = DelayedDelivery(delay_milliseconds_max=days * 86_400_000)
        admin.namespaces.delayed_delivery.set("public/default", longest)
        producer = client.create_producer("t")
        for number in range(300):
            producer.send_async(b"%03d" % number, None, deliver_after=timedelta(hours=1, seconds=number))
        producer.flush()
    mirrored(*sides)
    assert len(entries(sides[1])) == 300
    assert waits.count(1) <= 3  # for their size


@pytest.mark.parametrize("side", ["source", "target"])
def test_an_admin_address_that_does_not_answer_at_the_start_is_reported_at_once(sides, side):
    (port,) = free_ports(1)
    ends = dict(zip(("source", "target"), map(cluster, sides), strict=True))
    ends[side] = Cluster(service_url=ends[side].service_url, admin_url=f"http://127.0.0.1:{port}")
    seen: list[MirrorStatus] = []

    def on_status(status: MirrorStatus) -> None:
        seen.append(status)
        running.stop()

    running = Mirror(MirrorSettings(topics=["t"], once=True, **ends), on_status)
    running.run(signals=False)
    (warning,) = seen[0].warnings
    assert warning.startswith("waiting for up to ")
    assert f" s: the {side}: no answer from http://127.0.0.1:{port}" in warning


def test_a_cluster_that_is_down_at_the_start_is_named_with_its_option(sides):
    (port,) = free_ports(1)
    seen: list[MirrorStatus] = []

    def on_status(status: MirrorStatus) -> None:
        seen.append(status)
        running.stop()

    target = Cluster(service_url=f"pulsar://127.0.0.1:{port}")
    running = Mirror(
        MirrorSettings(topics=["t"], once=True, source=cluster(sides[0]), target=target), on_status
    )
    running.run(signals=False)
    (warning,) = seen[0].warnings
    assert f" s: the target: pulsar://127.0.0.1:{port} " in warning
    assert "give the address: --to-admin-url" in warning


def test_subscriptions_that_cannot_be_mirrored_are_reported(sides, monkeypatch):
    from geminga.errors import ConnectError
    from geminga.mirror import cursors

    with sides[0].client() as client:
        client.subscribe("t", "s").close()
    fill(sides[0], 1)
    with mirror(*sides) as running:
        assert running.wait_until_caught_up(30)

        async def fails(*_: Any) -> Any:
            raise ConnectError("no answer from http://there:8080")

        with monkeypatch.context() as patched:
            patched.setattr(cursors, "source_cursors", fails)
            text = "subscriptions are not mirrored at present: no answer from http://there:8080"
            eventually(lambda: text in running.status().warnings)
        eventually(lambda: text not in running.status().warnings)


@pytest.mark.parametrize(
    ("caught_up", "lag", "error", "expected"),
    [
        (True, 0, "", "1 up to date"),
        (True, -1, "", "1 up to date"),
        (True, 3, "", "1 stopped before the newest message (run the mirror again to copy the rest)"),
        (False, -1, "", "1 stopped before the newest message (run the mirror again to copy the rest)"),
        (True, 3, "no answer", "1 stopped by an error"),
    ],
)
def test_the_last_line_of_the_status_counts_partitions_by_their_end(caught_up, lag, error, expected):
    partition = PartitionStatus("t", "stopped", lag, "", 7, 1, 3 << 20, 0, 0, error=error)
    line = MirrorStatus("", "", "m", caught_up, (partition,)).line()
    assert line.startswith("7 messages (3.0 MiB) mirrored")
    assert line.endswith(f"partitions: {expected}")


@pytest.mark.parametrize("policy", ["producer_request_hold", "producer_exception"])
def test_a_target_whose_backlog_quota_is_reached_gets_the_rest_later(sides, policy):
    source, target = sides
    with geminga.Admin(target.admin_url) as there, target.client() as client:
        there.topics.create("t")
        consumer = client.subscribe("t", "slow")
        quota = geminga.admin.BacklogQuota(policy=policy, limit_bytes=20_000)
        there.topic_policies.set_backlog_quota("t", quota)
        with mirror(source, target, subscriptions=False) as running:
            fill(source, *range(50), size=1_000)
            eventually(lambda: running.status().messages == 50)
            there.call("GET", "brokers/backlog-quota-check")
            fill(source, *range(50, 100), size=1_000)
            eventually(lambda: "quota" in running.status().partitions[0].error.lower())
            for _ in range(50):
                consumer.acknowledge(consumer.receive(60_000))
            eventually(lambda: running.status().messages == 100)
            assert not running.status().failed
        assert entries(target) == [b"%d" % n for n in range(100)]


def test_a_terminated_source_is_copied_to_its_end(sides):
    source, target = sides
    fill(source, 1, 2)
    with mirror(source, target) as running, geminga.Admin(source.admin_url) as admin:
        assert running.wait_until_caught_up(30)
        fill(source, 3)
        admin.topics.terminate("t")
        eventually(lambda: running.status().messages == 3)
        assert not running.status().failed
    assert mirror(source, target, once=True).run(signals=False).caught_up
    assert entries(target) == [b"1", b"2", b"3"]


def test_a_terminated_target_is_reported(sides):
    source, target = sides
    fill(source, 1)
    with mirror(source, target) as running, geminga.Admin(target.admin_url) as admin:
        assert running.wait_until_caught_up(30)
        admin.topics.terminate("t")
        fill(source, 2)
        eventually(lambda: "terminated" in running.status().partitions[0].error)
    assert entries(target) == [b"1"]
