"""Changed defaults of policies: all topics apply them, without blocking the loop."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from geminga.broker.cooperative import TURN_SECONDS
from geminga.broker.core import Broker
from geminga.broker.rules import namespaces as namespaces_module
from geminga.broker.settings import BrokerSettings
from geminga.broker.topics.changed_settings import FIELDS
from geminga.broker.topics.deadlines import acts_earlier
from geminga.broker.topics.maintenance_queue import ROUND_SECONDS, UNUSED_SECONDS
from geminga.errors import InvalidConfiguration
from geminga.ids import TopicName
from geminga.ledger.api import LostWrites, StoredValue
from geminga.ledger.memory import MemoryStore
from tests.broker.topics.conftest import NAME

HOUR = 3600.0
LATE = UNUSED_SECONDS + 4 * ROUND_SECONDS
NAMESPACES = 100_000
RESOLVING_SECONDS = 25e-6
RULES = {name: getattr(BrokerSettings(memory=True), name) for name in FIELDS}


class Clocked:
    """A broker on whose clock it takes a while to find out what is in force in a namespace."""

    def __init__(self, harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.harness = harness
        self.time, self.resolved, self.longest = 0.0, 0, 0.0
        resolve = namespaces_module.resolve

        known: dict[Any, Any] = {}  # the namespaces are all alike: what is measured is on the clock

        def slow(settings: BrokerSettings, document: Any) -> Any:
            self.time += RESOLVING_SECONDS
            self.resolved += 1
            key = settings.message_ttl_seconds, document.get("message_ttl_in_seconds")
            if key not in known:
                known[key] = resolve(settings, document)
            return known[key]

        monkeypatch.setattr(namespaces_module, "resolve", slow)
        self.open()

    def open(self) -> None:
        self.is_woken = False
        self.harness.broker = Broker(
            self.harness.store, self.harness.settings, now=self.harness.now, now_ms=self.harness.now_ms,
            clock=lambda: self.time, wake=self._wake,
        )  # fmt: skip

    def _wake(self) -> None:
        self.is_woken = True

    @property
    def namespaces(self) -> Any:
        return self.harness.broker.namespaces

    def entry(self, work: Callable[[], None]) -> None:
        """One entry into the core, as the shell makes them."""
        slices, before = self.harness.broker.slices, self.time
        slices.begin(before)
        work()
        slices.end()
        self.longest = max(self.longest, self.time - before)

    def turn(self) -> None:
        self.is_woken = False
        self.entry(lambda: self.harness.broker.turn(self.harness.now, self.harness.now_ms))


def change(clocked: Clocked, name: str, text: str) -> None:
    clocked.entry(lambda: clocked.harness.broker.dynamic.set(name, text))


def walks(clocked: Clocked) -> int:
    return sum("policies:" in key for key in clocked.harness.store.names("due/"))


def fill(store: MemoryStore, count: int, **policies: Any) -> None:
    store.put("tenant/t", json.dumps({"adminRoles": [], "allowedClusters": ["standalone"]}).encode())
    document = {"replication_clusters": ["standalone"], "bundles": {"numBundles": 1}, **policies}
    data = json.dumps(document).encode()
    store.put("broker/rules", json.dumps(RULES).encode())
    for number in range(count):
        store.put(f"namespace/t/n{number:06d}", data)


def test_a_hundred_thousand_namespaces_do_not_block_the_loop(
    make_harness: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    fill(store, NAMESPACES)
    clocked = Clocked(make_harness(store), monkeypatch)
    assert clocked.resolved == 0, "a start under the same settings asks for none"
    change(clocked, "ttlDurationDefaultInSeconds", "60")
    assert clocked.namespaces.policies("t", "n099999").message_ttl_seconds == 60, "in force at once"
    slices = 0
    while clocked.is_woken:
        clocked.turn()
        slices += 1
    assert clocked.resolved >= 2 * NAMESPACES
    assert slices >= 2 * NAMESPACES * RESOLVING_SECONDS / TURN_SECONDS - 1
    assert clocked.longest < 1.1 * TURN_SECONDS
    assert walks(clocked) == NAMESPACES + 2, "the topics of each are looked at"
    assert len(clocked.namespaces._resolved) <= namespaces_module.RESOLVED_NAMESPACES_MAX


def test_comparisons_pending_at_a_crash_are_made_after_it(
    make_harness: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    fill(store, 3_000)
    clocked = Clocked(make_harness(store), monkeypatch)
    change(clocked, "ttlDurationDefaultInSeconds", "60")
    clocked.turn()
    assert 100 < walks(clocked) < 2_000
    clocked.open()
    while clocked.is_woken:
        clocked.turn()
    assert walks(clocked) == 3_002
    before = clocked.resolved
    clocked.open()
    assert clocked.resolved == before, "and once is enough"
    assert not clocked.is_woken


def test_a_changed_policy_is_compared_with_its_earlier_value(
    make_harness: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From none by the settings to 60 s, and to 3,600 by the namespace: that is earlier than none."""
    store = MemoryStore()
    fill(store, 3_000)
    clocked = Clocked(make_harness(store), monkeypatch)
    change(clocked, "ttlDurationDefaultInSeconds", "60")
    name = "n002999"
    assert f"due/{0:013d}/policies:t/{name}" not in list(store.names("due/"))
    clocked.namespaces.set_policy("t", name, "message_ttl_in_seconds", 3_600)
    assert f"due/{0:013d}/policies:t/{name}" not in list(store.names("due/")), "later than 60 s"
    clocked.namespaces.delete_namespace("t", "n002998")
    while clocked.is_woken:
        clocked.turn()
    assert f"due/{0:013d}/policies:t/{name}" in list(store.names("due/"))
    assert not any(clocked.harness.broker.scheduler.failures.values())


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_changed_settings_at_the_start_reach_unused_topics(make: Any, how: str) -> None:
    topic = make(retention_minutes=0)
    topic.subscribe()
    topic.publish(5)
    topic.leave()
    harness = topic.harness
    harness.advance(HOUR)
    assert topic.backlog() == 5
    harness.advance(LATE)
    harness.settings = dataclasses.replace(harness.settings, message_ttl_seconds=60)
    getattr(harness, how)()
    harness.advance(LATE)
    assert topic.backlog() == 0
    harness.restart(message_ttl_seconds=120)
    assert walks(Shown(harness)) == 0, "later than before: nothing is due for that"


class Shown:
    def __init__(self, harness: Any) -> None:
        self.harness = harness


@pytest.mark.parametrize("harm", ["lost", "unfit"])
def test_unknown_settings_of_the_previous_run_cause_a_walk(make: Any, harm: str) -> None:
    topic = make()
    topic.leave()
    store = topic.harness.store
    if harm == "unfit":
        store.put("broker/rules", b'{"message_ttl_seconds":-5}')
    else:
        get = store.get
        lost = StoredValue(b"", (), LostWrites(values=1))
        store.get = lambda key: lost if key == "broker/rules" else get(key)
    topic.harness.restart()
    assert topic.topics.is_stored(NAME)
    assert walks(Shown(topic.harness)) == 2
    topic.harness.advance(LATE)
    assert walks(Shown(topic.harness)) == 0
    assert not any(topic.harness.broker.scheduler.failures.values())


def test_loaded_topics_receive_changed_settings(make_harness: Callable[..., Any]) -> None:
    harness = make_harness()
    harness.broker.namespaces.create_namespace("public", "other")
    names = [TopicName.parse(f"public/{space}/t{n}") for space in ("default", "other") for n in range(100)]
    for name in names:
        harness.broker.topics.make(name)
    harness.broker.dynamic.set("ttlDurationDefaultInSeconds", "77")
    assert {topic.policies.message_ttl_seconds for topic in harness.broker.topics.in_memory_now()} == {77}


@pytest.mark.parametrize("evicts", [False, True])
def test_every_setting_that_can_act_earlier_is_compared(evicts: bool) -> None:
    """Try each setting to find those that `acts_earlier` must compare."""
    smaller: dict[str, Any] = {"backlog_quota_action": "consumer_backlog_eviction", "retention_megabytes": 1}
    settings = BrokerSettings(memory=True)
    if evicts:
        settings = dataclasses.replace(
            settings, backlog_quota_bytes=9, backlog_quota_seconds=9, delete_inactive_topics=True, **smaller
        )
    before = namespaces_module.resolve(settings)
    acting = set()
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, (bool, int, float)):
            value = not value if isinstance(value, bool) else type(value)(1)
        with contextlib.suppress(InvalidConfiguration):
            value = smaller.get(field.name, value)
            other = dataclasses.replace(settings, **{field.name: value})
            if acts_earlier(before, namespaces_module.resolve(other)):
                acting.add(field.name)
    assert acting <= set(FIELDS)
    assert {"message_ttl_seconds", "retention_minutes", "subscription_expiration_minutes"} <= acting
