"""A target that is an older one than it was: what it gave receipts for and has not got is not passed over."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import geminga
from geminga.mirror import Cluster, Mirror
from geminga.mirror.pairing import RECEIPT_PROPERTY
from geminga.mirror.schemas import SchemaMirror
from geminga.mirror.subscription_properties import MirrorProperties
from tests.mirror.helpers import left, mirror, mirrored, stored
from tests.mirror.test_kills import BrokerProcess, Load, MirrorProcess, prepare
from tests.mirror.test_kills import reached as arrived

MINE = "geminga-mirror.standalone"


def fill(broker: Any, start: int, stop: int, topic: str = "t") -> None:
    client = broker.client()
    producer = client.create_producer(topic)
    for n in range(start, stop):
        producer.send(b"%d" % n)
    client.close()


def payloads(broker: Any, topic: str = "t") -> list[bytes]:
    client = broker.client()
    try:
        return [payload for _, payload in stored(client, topic)]
    finally:
        client.close()


def reached(running: Mirror, messages: int) -> None:
    deadline = time.monotonic() + 60
    while running.status().messages < messages:
        assert time.monotonic() < deadline, running.status()
        time.sleep(0.01)


def numbers(*ranges: range) -> list[bytes]:
    return [b"%d" % n for each in ranges for n in each]


@contextlib.contextmanager
def rolled_back(folder: Path, source: Any, **settings: Any) -> Iterator[Any]:
    """A target with the first ten messages of twenty that it had."""
    fill(source, 0, 10)
    with geminga.embedded(folder / "target") as target:
        mirrored(source, target, **settings)
    shutil.copytree(folder / "target", folder / "backup")
    fill(source, 10, 20)
    with geminga.embedded(folder / "target") as target:
        mirrored(source, target, **settings)
        assert payloads(target) == numbers(range(20))
    with geminga.embedded(folder / "backup") as target:
        yield target


@pytest.mark.parametrize("others", [0, 3, 30])
@pytest.mark.parametrize("more", [False, True])
def test_a_target_that_was_brought_back_is_not_passed_over(tmp_path: Path, others: int, more: bool) -> None:
    with geminga.embedded() as source, rolled_back(tmp_path, source) as target:
        client = target.client()
        producer = client.create_producer("t")
        for _ in range(others):  # other entries at the lost positions
            producer.send(b"other")
        client.close()
        if more:
            fill(source, 20, 23)
        status = mirror(source, target, once=True).run(signals=False)
        assert "brought back from a backup" in status.failed[0]
        assert "--on-mismatch continue" in status.failed[0]
        assert payloads(target) == [*numbers(range(10)), *[b"other"] * others]
        mirrored(source, target, on_mismatch="continue")
        expected = [*numbers(range(10)), *[b"other"] * others, *numbers(range(10, 23 if more else 20))]
        assert payloads(target) == expected
        assert mirrored(source, target).messages == 0  # what was decided is done


@pytest.mark.parametrize("more", [5, 10, 11, 30])
def test_a_source_that_was_brought_back_and_has_grown_is_found_out(tmp_path: Path, more: int) -> None:
    """Its positions are those of other messages, which would be taken for mirrored."""
    with geminga.embedded() as target:
        with geminga.embedded(tmp_path / "source") as source:
            fill(source, 0, 10)
            mirrored(source, target)
        shutil.copytree(tmp_path / "source", tmp_path / "backup")
        with geminga.embedded(tmp_path / "source") as source:
            fill(source, 10, 20)
            mirrored(source, target)
        with geminga.embedded(tmp_path / "backup") as source:
            fill(source, 100, 100 + more)
            status = mirror(source, target, once=True).run(signals=False)
            assert "brought back from a backup" in status.failed[0]
            assert payloads(target) == numbers(range(20))
            mirrored(source, target, name="anew")
            assert payloads(target) == numbers(range(20), range(10), range(100, 100 + more))


def test_all_is_copied_again_on_demand(tmp_path: Path) -> None:
    with geminga.embedded() as source, rolled_back(tmp_path, source) as target:
        mirrored(source, target, on_mismatch="restart")
        assert payloads(target) == numbers(range(10), range(20))
        fill(source, 20, 22)
        mirrored(source, target)
        assert payloads(target) == numbers(range(10), range(22))


@pytest.mark.parametrize("others", [0, 1])
def test_a_target_that_has_nothing_left(tmp_path: Path, others: int) -> None:
    """But the pair: it was saved when nothing had been mirrored, as it is with a topic that is new."""
    with geminga.embedded() as source:
        client = source.client()
        client.create_producer("t").close()
        with geminga.embedded(tmp_path / "target") as target:
            mirrored(source, target)
            fill(target, 0, others)
        shutil.copytree(tmp_path / "target", tmp_path / "backup")
        fill(source, 0, 10)
        with geminga.embedded(tmp_path / "target") as target:
            mirrored(source, target)
        with geminga.embedded(tmp_path / "backup") as target:
            assert mirror(source, target, once=True).run(signals=False).failed
            mirrored(source, target, on_mismatch="continue")
            assert payloads(target) == numbers(range(others), range(10))


def test_subscriptions_are_sent_again_after_a_rollback(tmp_path: Path) -> None:
    with geminga.embedded() as source:
        client = source.client()
        consumer = client.subscribe("t", "s")
        with geminga.Admin(source.admin_url) as admin:
            fill(source, 0, 10)
            with geminga.embedded(tmp_path / "target") as target:
                mirrored(source, target)
            shutil.copytree(tmp_path / "target", tmp_path / "backup")
            fill(source, 10, 20)
            for _ in range(15):
                consumer.acknowledge(consumer.receive(10_000))
            consumer.close()
            assert admin.topics.stats("t").subscriptions["s"].messages_in_backlog == 5
            with geminga.embedded(tmp_path / "target") as target:
                mirrored(source, target)
                assert left(target, "t", "s") == numbers(range(15, 20))
            with geminga.embedded(tmp_path / "backup") as target:
                mirrored(source, target, on_mismatch="continue")
                assert left(target, "t", "s") == numbers(range(15, 20))


def test_a_running_mirror_finds_it_and_mends_it(tmp_path: Path) -> None:
    with geminga.embedded() as source:
        fill(source, 0, 10)
        with geminga.embedded(tmp_path / "target") as target:
            port, admin_port = (int(url.rsplit(":", 1)[1]) for url in (target.service_url, target.admin_url))
            mirrored(source, target)
        shutil.copytree(tmp_path / "target", tmp_path / "backup")
        ports = {"port": port, "web_port": admin_port}
        with contextlib.ExitStack() as stack:
            with geminga.embedded(tmp_path / "target", **ports) as target:
                running = mirror(source, target, on_mismatch="continue").start()
                stack.callback(running.close)
                fill(source, 10, 20)
                reached(running, 10)
            with geminga.embedded(tmp_path / "backup", **ports) as target:
                reached(running, 20)
                assert payloads(target) == numbers(range(20))


def test_what_a_target_keeps_no_longer_is_not_missed(tmp_path: Path) -> None:
    """Nor what stays in the source because it came from the target, nor what an administrator has skipped."""
    with (
        geminga.embedded() as source,
        geminga.embedded() as target,
        geminga.Admin(source.admin_url) as here,
        geminga.Admin(target.admin_url) as there,
    ):
        fill(source, 0, 10)
        mirrored(source, target)
        there.topics.truncate("t")
        fill(source, 10, 12)
        mirrored(source, target)
        assert payloads(target) == numbers(range(10, 12))
        fill(target, 100, 103)
        mirrored(target, source, name="back")
        mirrored(source, target)
        fill(source, 12, 14)
        here.subscriptions.skip("t", MINE, 1)
        mirrored(source, target)
        assert payloads(target) == numbers(range(10, 12), range(100, 103), range(13, 14))
        there.topics.truncate("t")
        there.topics.unload("t")
        assert mirrored(source, target).messages == 0


def test_the_subscription_does_not_get_ahead_of_the_receipt_that_is_noted() -> None:
    with (
        geminga.embedded() as source,
        geminga.embedded() as target,
        geminga.Admin(source.admin_url) as here,
    ):
        fill(source, 0, 10)
        mirrored(source, target)
        noted = here.subscriptions.properties("t", MINE)[RECEIPT_PROPERTY]
        assert noted.split() == [here.topics.internal_stats("t").cursors[MINE].mark_delete_position, "0:9"]


def test_a_mirror_killed_during_a_repair_sends_subscriptions_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with geminga.embedded() as source:
        client = source.client()
        consumer = client.subscribe("t", "s")
        fill(source, 0, 10)
        with geminga.embedded(tmp_path / "target") as target:
            mirrored(source, target)
        shutil.copytree(tmp_path / "target", tmp_path / "backup")
        fill(source, 10, 20)
        for _ in range(8):
            consumer.acknowledge(consumer.receive(10_000))
        consumer.close()
        with geminga.embedded(tmp_path / "target") as target:
            mirrored(source, target)
            assert left(target, "t", "s") == numbers(range(8, 20))

        async def killed(*_: object) -> None:
            raise RuntimeError("killed")

        with geminga.embedded(tmp_path / "backup") as target:
            with monkeypatch.context() as during:
                during.setattr(MirrorProperties, "forget", killed)
                assert mirror(source, target, once=True, on_mismatch="continue").run(signals=False).failed
            mirrored(source, target, on_mismatch="continue")
            assert payloads(target) == numbers(range(20))
            assert left(target, "t", "s") == numbers(range(8, 20))


def test_what_another_mirror_of_the_name_has_noted_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        geminga.embedded() as source,
        geminga.embedded() as target,
        geminga.Admin(source.admin_url) as here,
    ):
        client = source.client()
        consumer = client.subscribe("t", "s")
        fill(source, 0, 10)
        mirrored(source, target)
        copy = SchemaMirror.copy

        async def slowly(self: SchemaMirror) -> None:
            """Run another mirror to its end before this mirror opens its producer."""
            monkeypatch.setattr(SchemaMirror, "copy", copy)

            def other() -> None:
                fill(source, 10, 20)
                mirrored(source, target)
                consumer.acknowledge(consumer.receive(10_000))
                consumer.close()

            await asyncio.to_thread(other)
            await copy(self)

        monkeypatch.setattr(SchemaMirror, "copy", slowly)
        mirrored(source, target)
        noted = here.subscriptions.properties("t", MINE)[RECEIPT_PROPERTY]
        assert noted.split()[0] == here.topics.internal_stats("t").cursors[MINE].mark_delete_position


def test_it_is_said_from_where_on_the_source_has_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with geminga.embedded() as source, geminga.Admin(source.admin_url) as here:
        fill(source, 0, 10)
        with geminga.embedded(tmp_path / "target") as target:
            mirrored(source, target)
        shutil.copytree(tmp_path / "target", tmp_path / "backup")
        fill(source, 10, 20)
        with geminga.embedded(tmp_path / "target") as target:
            mirrored(source, target)
        here.topics.truncate("t")
        fill(source, 20, 23)
        with geminga.embedded(tmp_path / "backup") as target:
            mirrored(source, target, on_mismatch="continue")
            assert payloads(target) == numbers(range(10), range(20, 23))
            assert "from 1:0 on" in caplog.text


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
def test_rolled_back_again_and_again_with_kills(tmp_path: Path, seed: int) -> None:
    """The target goes back to what it was at a moment; the mirror and the source are killed around that."""
    chance = random.Random(seed)
    source, target = BrokerProcess(tmp_path / "source"), BrokerProcess(tmp_path / "target")
    with source, target:
        prepare(source, "t")
        with source.client() as client:
            client.subscribe("t", "s").close()
        running = MirrorProcess(source, target, ".*")
        running.words += ("--on-mismatch", "continue")
        with running, Load(source, "t", 0.02):
            arrived(target, "t", 100)
            for _ in range(8):
                target.kill()
                shutil.rmtree(tmp_path / "saved", ignore_errors=True)
                shutil.copytree(tmp_path / "target", tmp_path / "saved")
                target.start()
                time.sleep(chance.random() * 3)
                if chance.random() < 0.5:
                    running.kill()
                if chance.random() < 0.3:
                    source.again()
                target.kill()
                shutil.rmtree(tmp_path / "target")
                shutil.copytree(tmp_path / "saved", tmp_path / "target")
                target.start()
                time.sleep(chance.random())
                running.again()
                time.sleep(chance.random() * 2)
        ends = (Cluster(service_url=each.service_url, admin_url=each.admin_url) for each in (source, target))
        mirrored(*ends, on_mismatch="continue")
        with source.client() as here, target.client() as there:
            for index in range(2):
                name = f"t-partition-{index}"
                was, found = stored(here, name), stored(there, name)
                assert len(was) > 50
                assert found == was
