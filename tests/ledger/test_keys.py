from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from geminga.ledger.api import Lost, Value
from geminga.ledger.catalog import Catalog, Snapshot
from geminga.ledger.damage import Damage, Loss
from geminga.ledger.filesystem import RealFileSystem
from geminga.ledger.keys import KeyMap
from geminga.ledger.quarantine import Quarantine


class Checkpoints:
    """A key map and its catalog, taken through checkpoints by hand."""

    def __init__(self, path: Path) -> None:
        self.catalog = Catalog(RealFileSystem().connect(str(path)))
        self.catalog.create(bytes(16))
        self.quarantine = Quarantine()
        self.keys = KeyMap(self.catalog, self.quarantine)
        self.number = 0

    def freeze(self) -> None:
        self.number += 1
        self.keys.freeze(self.number)

    def write(self) -> None:
        values: dict[str, object] = {field.name: {} for field in dataclasses.fields(Snapshot)}
        values |= {"number": self.number, "position": 0, "sequence": 0, "next_ledger_id": 0}
        values |= {
            "ledgers": [],
            "dropped": [],
            "damage": [],
            "settled": [],
            "doubt": (0, 0),
            "keys": self.keys.frozen,
        }
        self.catalog.write(Snapshot(**values))  # type: ignore[arg-type]

    def thaw(self) -> None:
        self.keys.thaw()


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "catalog.db")


def test_a_value_is_the_same_at_every_step_of_a_checkpoint(checkpoints: Checkpoints) -> None:
    keys = checkpoints.keys
    expected: dict[str, Value] = {}

    def check() -> None:
        assert {key: keys.get(key) for key in expected} == expected
        assert list(keys.scan("")) == sorted(expected.items())

    def merge(key: str, delta: bytes) -> None:
        keys.change(key).deltas.append(delta)
        before = expected.get(key, Value(b"", ()))
        expected[key] = Value(before.base, (*before.deltas, delta))

    for step in range(6):
        for name in ("a", "b", "c"):
            merge(name, b"%d" % step)
        if step % 2:
            keys.put("b", b"base %d" % step)
            expected["b"] = Value(b"base %d" % step, ())
        if step == 4:
            keys.delete("c")
            del expected["c"]
        for move in (checkpoints.freeze, checkpoints.write, checkpoints.thaw):
            check()
            move()
            check()
            merge("a", b"between")
            check()
    assert keys.get("nothing") is None


def test_deleted_keys_stay_deleted_at_every_step(checkpoints: Checkpoints) -> None:
    keys = checkpoints.keys
    keys.put("k", b"v")
    checkpoints.freeze()
    checkpoints.write()
    checkpoints.thaw()
    keys.delete("k")
    for move in (checkpoints.freeze, checkpoints.write, checkpoints.thaw):
        assert keys.get("k") is None
        assert list(keys.scan("")) == []
        move()
    assert keys.get("k") is None


def test_scan_goes_through_many_pages(checkpoints: Checkpoints) -> None:
    keys = checkpoints.keys
    names = [f"key-{number:05}" for number in range(1600)]
    for name in names[::2]:
        keys.put(name, b"saved")
    checkpoints.freeze()
    checkpoints.write()
    checkpoints.thaw()
    for name in names[1::2]:
        keys.put(name, b"new")
    assert [key for key, _ in keys.scan("key-")] == names
    assert [key for key, _ in keys.scan("key-001")] == names[100:200]


def test_keys_are_found_by_their_fingerprint_at_every_step(checkpoints: Checkpoints) -> None:
    keys = checkpoints.keys
    fingerprint = keys.put("cursor", b"v").fingerprint
    for move in (checkpoints.freeze, checkpoints.write, checkpoints.thaw):
        assert keys.named({fingerprint, 5}) == {fingerprint: ["cursor"]}
        move()
    assert keys.named({fingerprint, 5}) == {fingerprint: ["cursor"]}


def test_a_key_that_lost_writes_says_so_until_set_again(checkpoints: Checkpoints) -> None:
    keys, quarantine = checkpoints.keys, checkpoints.quarantine
    keys.put("cursor", b"v")
    keys.put("other", b"v")
    quarantine.add(Damage("log-0000000001", 70, "what", lost=Loss.DELTA, key="cursor"))
    quarantine.add(Damage("log-0000000001", 90, "what", lost=Loss.VALUE, key="gone"))
    expected = {
        "cursor": Value(b"v", (), Lost(deltas=1)),
        "gone": Value(b"", (), Lost(values=1)),
        "other": Value(b"v", ()),
    }
    for move in (checkpoints.freeze, checkpoints.write, checkpoints.thaw):
        assert {key: keys.get(key) for key in expected} == expected
        assert dict(keys.scan("")) == expected
        assert dict(keys.scan("cu")) == {"cursor": expected["cursor"]}
        move()
    keys.put("cursor", b"new")
    keys.delete("gone")
    assert dict(keys.scan("")) == {"cursor": Value(b"new", ()), "other": Value(b"v", ())}
    assert keys.get("gone") is None
    assert list(quarantine) == []
