from random import Random

import pytest
from doubles import calls_of

from geminga.ledger.api import LostWrites, StoredValue
from geminga.ledger.catalog.catalog import Catalog
from geminga.ledger.damage import Damage, DamageLoss
from geminga.ledger.state.keys import KeyMap
from geminga.ledger.state.quarantine import Quarantine
from tests.ledger.conftest import snapshot


class Checkpoints:
    """Key map and its catalog, taken through checkpoints step by step."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.quarantine = Quarantine()
        self.keys = KeyMap(self.catalog, self.quarantine)
        self.number = 0

    def freeze(self) -> None:
        self.number += 1
        self.keys.freeze(self.number)

    def write(self) -> None:
        self.catalog.write(snapshot(self.number, keys=self.keys.frozen))

    def thaw(self) -> None:
        for _ in self.keys.thaw():
            pass


@pytest.fixture
def checkpoints(catalog):
    return Checkpoints(catalog)


def test_a_value_is_the_same_at_every_step_of_a_checkpoint(checkpoints):
    keys = checkpoints.keys
    expected: dict[str, StoredValue] = {}

    def check() -> None:
        assert {key: keys.get(key) for key in expected} == expected
        assert list(keys.scan("")) == sorted(expected.items())

    def merge(key: str, delta: bytes) -> None:
        keys.change(key).deltas.append(delta)
        before = expected.get(key, StoredValue(b"", ()))
        expected[key] = StoredValue(before.base, (*before.deltas, delta))

    for step in range(6):
        for name in ("a", "b", "c"):
            merge(name, b"%d" % step)
        if step % 2:
            keys.put("b", b"base %d" % step)
            expected["b"] = StoredValue(b"base %d" % step, ())
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


@pytest.mark.parametrize("page_keys", [1, 2, 3, 7, 512])
@pytest.mark.parametrize("seed", range(8))
def test_scan_finds_keys_of_every_layer(checkpoints, monkeypatch, page_keys, seed):
    monkeypatch.setattr("geminga.ledger.state.keys.PAGE_KEYS", page_keys)
    random = Random(seed)
    keys, expected = checkpoints.keys, dict[str, StoredValue]()
    steps = [checkpoints.freeze, checkpoints.write, checkpoints.thaw] * 3
    for step in steps:
        for _ in range(20):
            name = f"{random.choice('abc')}/{random.randrange(12):02}"
            if random.random() < 0.3:
                keys.delete(name)
                expected.pop(name, None)
            else:
                keys.put(name, b"v")
                expected[name] = StoredValue(b"v", ())
        for prefix, after in (("", ""), ("b/", ""), ("b/", "b/05"), ("", "b/03"), ("b/", "a/07"), ("c", "c")):
            behind = {n: v for n, v in expected.items() if n.startswith(prefix) and n > after}
            assert list(keys.scan(prefix, after=after)) == sorted(behind.items()), (step, prefix, after)
            assert list(keys.names(prefix, after=after)) == sorted(behind), (step, prefix, after)
        step()


def test_a_step_of_a_scan_reads_one_page(checkpoints, monkeypatch):
    keys = checkpoints.keys
    for number in range(5000):
        keys.put(f"key-{number:05}", b"v")
    looked_at = calls_of(monkeypatch, keys, "get")
    scanned = keys.scan("key-", after="key-02999")
    assert next(scanned)[0] == "key-03000"
    assert looked_at == [("key-03000",)]


def test_keys_are_found_by_their_fingerprint_at_every_step(checkpoints):
    keys = checkpoints.keys
    fingerprint = keys.put("cursor", b"v").fingerprint
    for move in (checkpoints.freeze, checkpoints.write, checkpoints.thaw):
        assert keys.named({fingerprint, 5}) == {fingerprint: ["cursor"]}
        move()
    assert keys.named({fingerprint, 5}) == {fingerprint: ["cursor"]}


def test_a_key_reports_lost_writes_until_it_is_set(checkpoints):
    keys, quarantine = checkpoints.keys, checkpoints.quarantine
    keys.put("cursor", b"v")
    keys.put("other", b"v")
    quarantine.add(Damage("log-0000000001", 70, "what", lost=DamageLoss.DELTA, key="cursor"))
    quarantine.add(Damage("log-0000000001", 90, "what", lost=DamageLoss.VALUE, key="gone"))
    expected = {
        "cursor": StoredValue(b"v", (), LostWrites(deltas=1)),
        "gone": StoredValue(b"", (), LostWrites(values=1)),
        "other": StoredValue(b"v", ()),
    }
    for move in (checkpoints.freeze, checkpoints.write, checkpoints.thaw):
        assert {key: keys.get(key) for key in expected} == expected
        assert dict(keys.scan("")) == expected
        assert dict(keys.scan("cu")) == {"cursor": expected["cursor"]}
        move()
    keys.put("cursor", b"new")
    keys.delete("gone")
    assert dict(keys.scan("")) == {"cursor": StoredValue(b"new", ()), "other": StoredValue(b"v", ())}
    assert keys.get("gone") is None
    assert list(quarantine) == []
