"""Random lives of a store, in any order of writes, restarts, power losses and damage-free recovery.

Hypothesis looks for a history after which the store shows what no beginning of the writes amounts to, and
shrinks it. The auditor knows the writes and the receipts, nothing of the store's insides.
"""

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from geminga.ledger import callbacks, steps
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from tests.support.faulty_filesystem import Fate, FaultyFileSystem, Plan, PowerLoss, SimulatedDisk
from tests.support.store_auditor import StoreAuditor

FOLDER = "/data/store"
KEYS = ["cursor/a", "cursor/b", "topic/a", "topic/ü", "x"]
OWNERS = ["a", "b", "c"]
SIZES = st.sampled_from([0, 1, 40, 300, 1500, 6000])


class StoreLives(RuleBasedStateMachine):
    @initialize(
        sync=st.sampled_from(["always", "always", "interval", "never"]),
        checkpoint_records=st.sampled_from([3, 10, 60]),
        preallocate_bytes=st.sampled_from([0, 1024]),
        cache_bytes=st.sampled_from([0, 500, 20_000]),
        checkpoint_idle_seconds=st.sampled_from([0.0, 1e-6]),
    )
    def begin(self, **drawn: Any) -> None:
        self.settings = StoreSettings(
            **drawn, log_file_bytes=4096, group_bytes_max=4096, checkpoint_log_bytes=8192,
            checkpoint_idle_bytes=1, rewrite_live_fraction=0.7, garbage_bytes_min=0,
            deletion_delay_seconds=0.0,
        )  # fmt: skip
        self.disk = SimulatedDisk()
        self.auditor = StoreAuditor()
        self.number = 0
        self.open(None)

    def open(self, plan: Plan | None) -> None:
        self.filesystem = FaultyFileSystem(self.disk, plan)
        self.store = FileStore.open(FOLDER, settings=self.settings, filesystem=self.filesystem, threads=False)
        assert self.store.damage.found == []
        self.ledgers = [info.ledger_id for owner in OWNERS for info in self.store.ledgers(owner)]

    @rule(owner=st.sampled_from(OWNERS))
    def create_ledger(self, owner: str) -> None:
        self.ledgers.append(self.auditor.create_ledger(self.store, owner))

    @precondition(lambda self: self.ledgers)
    @rule(which=st.integers(0, 100), size=SIZES, count=st.integers(1, 6))
    def append(self, which: int, size: int, count: int) -> None:
        for entry in self._entries(size, count):
            self.auditor.append(self.store, self.ledgers[which % len(self.ledgers)], entry)

    @precondition(lambda self: self.ledgers)
    @rule(which=st.integers(0, 100), size=SIZES, count=st.integers(1, 40))
    def append_run(self, which: int, size: int, count: int) -> None:
        entries = self._entries(size, count)
        self.auditor.append_run(self.store, self.ledgers[which % len(self.ledgers)], entries)

    @precondition(lambda self: self.ledgers)
    @rule(which=st.lists(st.integers(0, 100), min_size=1, max_size=3))
    def release(self, which: list[int]) -> None:
        self.store.release([self.ledgers[each % len(self.ledgers)] for each in which])

    def _entries(self, size: int, count: int) -> list[bytes]:
        self.number += count
        numbers = range(self.number - count + 1, self.number + 1)
        return [(number.to_bytes(4, "big") * (size // 4 + 1))[:size] for number in numbers]

    @precondition(lambda self: self.ledgers)
    @rule(which=st.lists(st.integers(0, 100), min_size=1, max_size=3))
    def delete_ledgers(self, which: list[int]) -> None:
        chosen = sorted({self.ledgers[number % len(self.ledgers)] for number in which})
        self.auditor.delete_ledgers(self.store, chosen)
        self.ledgers = [ledger for ledger in self.ledgers if ledger not in chosen]

    @rule(key=st.sampled_from(KEYS), size=SIZES)
    def put(self, key: str, size: int) -> None:
        self.number += 1
        self.auditor.put(self.store, key, b"%d" % self.number + bytes(size))

    @rule(key=st.sampled_from(KEYS), count=st.integers(1, 4))
    def merge(self, key: str, count: int) -> None:
        for _ in range(count):
            self.number += 1
            self.auditor.merge(self.store, key, b"+%d" % self.number)

    @rule(key=st.sampled_from(KEYS))
    def delete(self, key: str) -> None:
        self.auditor.delete(self.store, key)

    @rule(is_enough=st.booleans())
    def poll(self, is_enough: bool) -> None:
        self.store.poll(lambda: is_enough)

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()

    @rule()
    def look(self) -> None:
        self.auditor.check_running(self.store)

    @rule(lose_catalog=st.booleans())
    def close_and_reopen(self, lose_catalog: bool) -> None:
        self.store.close()
        self.auditor.receipted = len(self.auditor.operations)  # a clean end keeps all of it
        if lose_catalog:
            self.disk.databases.clear()
        self.restart()

    @rule(seed=st.integers(0, 1000), after=st.integers(1, 12), again=st.integers(0, 6))
    def lose_power(self, seed: int, after: int, again: int) -> None:
        """The power fails within the next operations, and maybe during recovery."""
        self.filesystem.plan = Plan(crash_at=self.filesystem.operations + after)
        try:
            self.store.poll()
            self.store.checkpoint()
        except PowerLoss:
            pass
        chance = random.Random(seed)
        if self.settings.sync != "always":
            self.auditor.receipted = 0
        self.disk = self.disk.crash(Fate.by_chance(chance))
        if again:
            try:
                self.open(Plan(crash_at=again))
                self.store.close()
            except PowerLoss:
                pass
            self.disk = self.disk.crash(Fate.by_chance(chance))
        self.restart()

    @rule()
    def kill(self) -> None:
        """The process dies: written data stays, in every sync mode."""
        self.disk.kill()
        self.restart()

    def restart(self) -> None:
        self.open(None)
        self.auditor.check_restarted(self.store)

    @invariant()
    def is_well(self) -> None:
        if hasattr(self, "store"):
            assert self.store.failure is None
            assert not self.auditor.failed


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Poll with a limit, so that steps are interrupted anywhere."""
    monkeypatch.setattr(steps, "AT_ONCE", 1)
    monkeypatch.setattr(callbacks, "REPORTED_AT_ONCE", 1)


TestStoreLives = StoreLives.TestCase
TestStoreLives.settings = settings(stateful_step_count=40, suppress_health_check=list(HealthCheck))
