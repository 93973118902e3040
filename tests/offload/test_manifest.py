"""Manifest of a topic's offloaded ledgers: exact after any changes, and cheap for many ledgers."""

import json
import random
from typing import Any

import pytest

from geminga.offload import manifest
from geminga.offload.manifest import ManifestNewer, ManifestUnreadable, ManifestWriter, OffloadedLedger
from geminga.offload.storage import folder_of, ledger_file

TOPIC = "persistent://public/default/flights"
HEAD = manifest.path_of(TOPIC)


class Memory:
    """Storage in memory that counts written bytes."""

    location = "memory"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.written_bytes = self.lists = 0

    def read(self, path: str) -> bytes | None:
        return self.files.get(path)

    def replace(self, path: str, data: bytes) -> None:
        self.written_bytes += len(data)
        self.files[path] = data

    def delete(self, path: str) -> None:
        self.files.pop(path, None)

    def names(self, folder: str) -> list[str]:
        self.lists += 1
        return sorted(path.rpartition("/")[2] for path in self.files if path.startswith(folder + "/"))

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def ledger(number: int) -> OffloadedLedger:
    uuid = f"{number:032x}"
    span = (1_700_000_000_000 + number, 1_700_000_100_000 + number)
    return OffloadedLedger(
        number, number * 50_000, ledger_file(number, uuid), 52_428_800, 4_000_000_000, uuid, 50_000,
        5_000_000, 0, 60_000_000, span, span, 1_700_000_200_000,
    )  # fmt: skip


def loaded(place: Memory) -> list[int]:
    found = manifest.load(place, TOPIC)
    return [] if found is None else [each.ledger for each in found.ledgers]


def test_each_of_a_thousand_ledgers_writes_at_most_a_page():
    place = Memory()
    writer = ManifestWriter(place, "store")
    ledgers: list[OffloadedLedger] = []
    for number in range(1000):
        ledgers.append(ledger(number))
        writer.save(TOPIC, ledgers)
    all_at_once = len(json.dumps([each.as_json() for each in ledgers]))
    assert loaded(place) == list(range(1000))
    assert place.written_bytes / 1000 < 20_000 < all_at_once / 15
    assert place.lists == 1
    place.written_bytes = 0
    for number in range(200):
        writer.save(TOPIC, ledgers[number + 1 :])
    assert loaded(place) == list(range(200, 1000))
    assert place.written_bytes / 200 < 50_000
    writer.save(TOPIC, ())
    assert place.files == {}
    assert manifest.load(place, TOPIC) is None


@pytest.mark.parametrize("seed", range(20))
def test_a_manifest_lists_exactly_the_ledgers_after_any_changes(seed, monkeypatch):
    chance = random.Random(seed)
    monkeypatch.setattr(manifest, "PAGE_LEDGERS", chance.choice([1, 2, 5]))
    place = Memory()
    writer = ManifestWriter(place, "store")
    there: dict[int, OffloadedLedger] = {}
    for number in range(80):
        if chance.random() < 0.6:
            new = chance.choice([number, chance.randrange(80)])
            there[new] = ledger(new)
        for each in chance.sample(sorted(there), min(len(there), chance.choice([0, 0, 0, 1, 3]))):
            del there[each]
        if chance.random() < 0.2:
            writer = ManifestWriter(place, "store")
            place.files[f"{folder_of(TOPIC)}/_manifest-left-over.json"] = b"{}"
        writer.save(TOPIC, list(there.values()))
        found = manifest.load(place, TOPIC)
        assert ([] if found is None else list(found.ledgers)) == [there[each] for each in sorted(there)]
        assert {path.rpartition("/")[2] for path in place.files} == manifest.files_of(place, TOPIC)


def test_a_manifest_that_is_replaced_while_it_is_read_is_read_again():
    place = Memory()
    writer = ManifestWriter(place, "store")
    writer.save(TOPIC, [ledger(number) for number in range(70)])
    read = place.read

    def and_replaced(path: str) -> bytes | None:
        found = read(path)
        if path == HEAD:
            place.read = read
            writer.save(TOPIC, [ledger(number) for number in range(3, 70)])
        return found

    place.read = and_replaced
    assert loaded(place) == list(range(3, 70))


@pytest.mark.parametrize("harm", [None, b"{", b'{"version": 2, "ledgers": []}'])
def test_a_missing_or_damaged_page_is_written_again_after_a_start(harm):
    place = Memory()
    ledgers = [ledger(number) for number in range(200)]
    ManifestWriter(place, "store").save(TOPIC, ledgers)
    page = sorted(path for path in place.files if path != HEAD)[1]
    place.files.pop(page)
    if harm is not None:
        place.files[page] = harm
    with pytest.raises(ManifestUnreadable):
        manifest.load(place, TOPIC)
    writer = ManifestWriter(place, "store")
    writer.save(TOPIC, [*ledgers, ledger(200)])
    assert loaded(place) == list(range(201))
    before = place.written_bytes
    writer.save(TOPIC, [*ledgers, ledger(200), ledger(201)])
    assert place.written_bytes - before < 12_000, "once, and not each time"


def test_a_damaged_head_is_overwritten_and_a_later_version_is_kept():
    place = Memory()
    writer = ManifestWriter(place, "store")
    ledgers = [ledger(number) for number in range(70)]
    writer.save(TOPIC, ledgers)
    place.files[HEAD] = b"{"
    with pytest.raises(ManifestUnreadable):
        manifest.load(place, TOPIC)
    writer.save(TOPIC, ledgers)
    assert loaded(place) == list(range(70))
    place.files[HEAD] = b'{"version": 3}'
    with pytest.raises(ManifestNewer):
        writer.save(TOPIC, ledgers)
    assert place.files[HEAD] == b'{"version": 3}'
