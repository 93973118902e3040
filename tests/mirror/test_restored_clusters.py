"""A source or a target that was restored from a backup, and topics whose old entries were deleted."""

import shutil
from typing import Any

import pytest

import geminga
from tests.mirror.helpers import failure, mirror, mirrored, stored

MINE = "geminga-mirror.standalone"


def fill(broker: Any, start: int, stop: int) -> None:
    with broker.client() as client:
        producer = client.create_producer("t")
        for n in range(start, stop):
            producer.send(b"%d" % n)


def payloads(broker: Any) -> list[int]:
    with broker.client() as client:
        return [int(value) for _, value in stored(client, "t")]


@pytest.mark.parametrize("more", [5, 30])
def test_a_restored_source_that_has_grown_is_refused(tmp_path, more):
    """Its new positions were those of other messages before, and would count as mirrored."""
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
            assert "restored from a backup" in failure(source, target)
            assert payloads(target) == [*range(20)]
            mirrored(source, target, name="second")
            assert payloads(target) == [*range(20), *range(10), *range(100, 100 + more)]


def test_a_restored_target_is_completed_after_a_reset_of_the_mirrors_subscription(tmp_path):
    with geminga.embedded() as source, geminga.Admin(source.admin_url) as here:
        here.topics.create("t")
        here.subscriptions.create("t", "keeps", position=geminga.MessageId.earliest)
        fill(source, 0, 10)
        with geminga.embedded(tmp_path / "target") as target:
            mirrored(source, target)
        shutil.copytree(tmp_path / "target", tmp_path / "backup")
        fill(source, 10, 20)
        with geminga.embedded(tmp_path / "target") as target:
            mirrored(source, target)
        with geminga.embedded(tmp_path / "backup") as target:
            here.subscriptions.reset_to_id("t", MINE, geminga.MessageId.earliest)
            assert mirrored(source, target).messages == 10
            assert payloads(target) == [*range(20)]


def test_entries_that_the_target_has_deleted_are_not_copied_again():
    """The same holds for entries that came from the target, and for those that an administrator skipped."""
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
        assert payloads(target) == [10, 11]
        fill(target, 100, 103)
        mirrored(target, source, name="back")
        mirrored(source, target)
        fill(source, 12, 14)
        here.subscriptions.skip("t", MINE, 1)
        mirrored(source, target)
        assert payloads(target) == [10, 11, 100, 101, 102, 13]
        there.topics.truncate("t")
        there.topics.unload("t")
        assert mirrored(source, target).messages == 0


def test_a_trimmed_source_is_copied_from_its_oldest_entry():
    with (
        geminga.embedded(ledger_entries_max=10) as source,
        geminga.embedded() as target,
        geminga.Admin(source.admin_url) as here,
    ):
        fill(source, 0, 35)
        here.topics.truncate("t")
        fill(source, 35, 40)
        mirrored(source, target)
        assert payloads(target) == [*range(35, 40)]
        with mirror(source, target) as running:
            assert running.wait_until_caught_up(60)
            here.topics.truncate("t")  # below the mirror's subscription
            fill(source, 40, 45)
            while running.status().messages < 5:
                assert not running.status().failed
            assert running.status().partitions[0].missed == 0
        assert payloads(target) == [*range(35, 45)]


def test_entries_that_deduplication_knows_and_the_target_has_deleted_are_not_lost_or_repeated(monkeypatch):
    """The mirror was killed before it moved its subscription, and the target has deleted the entries."""
    monkeypatch.setattr("geminga.mirror.resuming._CLAIM_SECONDS", 0.2)
    with (
        geminga.embedded() as source,
        geminga.embedded() as target,
        geminga.Admin(source.admin_url) as here,
        geminga.Admin(target.admin_url) as there,
    ):
        here.topics.create("t")
        here.subscriptions.create("t", "keeps", position=geminga.MessageId.earliest)
        fill(source, 0, 10)
        mirrored(source, target)
        here.subscriptions.reset_to_id("t", MINE, geminga.MessageId.earliest)
        there.topics.truncate("t")
        fill(source, 10, 12)
        assert mirrored(source, target).messages == 2
        assert payloads(target) == [10, 11]
