"""One seed's run: production client, broker and store in virtual time, with faults; see `World.play`."""

import asyncio
import gc
import random
from typing import Any, Final

import geminga.asyncio
from geminga.broker.delivery import delivery_times
from tests.client.virtual import Clock, Network, pass_time
from tests.simulation.faults import Faults
from tests.simulation.flips import flip_and_judge
from tests.simulation.history import History
from tests.simulation.machine import PORT, LivesLoop, Machine
from tests.simulation.workloads import WORKLOADS
from tests.simulation.workloads.base import PATIENCE_SECONDS, Workload

PACES: Final = (1.0, 1.0, 20.0)
"""Factors of all pauses between messages and between faults."""


class World:
    """Everything of one seed; ``history`` is what its clients saw.

    ``only``: the names of the workloads, instead of those drawn. ``without``: kinds of faults, and workloads,
    to leave out.
    """

    def __init__(
        self, seed: int, *, only: frozenset[str] = frozenset(), without: frozenset[str] = frozenset()
    ) -> None:
        self.seed = seed
        self.numbers = r = random.Random(seed)
        self.clock = Clock()
        self.walls = [(self.clock.now, self.clock.wall)]
        """Each setting of the wall clock: when, and to which time."""
        self.network = Network(r)
        self.network.ended = lambda: self.fault("", "connection ended")
        self.workloads: list[Workload] = []
        self.loop = LivesLoop(r, self.clock, self.network, r.choice([0.0, 0.2, 0.6]))
        self.history = History(lambda: self.clock.now)
        self.partitions = r.choice([0, 0, 3])
        self.deduplicates = r.random() < 0.5
        self.pace = r.choice(PACES)
        self.patience = PATIENCE_SECONDS * self.pace
        self.names = [name for name in (only or self._draw_names()) if name not in without]
        chosen = [WORKLOADS[name] for name in WORKLOADS if name in self.names]
        few = self.drawn("few delivery times in memory", 0.7)
        delivery_times.RUN_ENTRIES, delivery_times.SLICE_ENTRIES = (4, 2) if few else (2_048, 128)
        self.stays_up = self.drawn("stays up", 0.2)
        """Whether the broker runs on while its clients work: what lasts until a restart is then found."""
        if self.stays_up:
            without |= {"process", "kill", "power", "unload"}
        self.keeps_all = r.random() < 0.7 or any(each.keeps_all for each in chosen)
        settings: dict[str, Any] = {
            "deduplication": self.deduplicates,
            "retention_minutes": -1 if self.keeps_all else 0,
            "retention_megabytes": -1 if self.keeps_all else 0,
            "ledger_entries_max": r.choice([3, 20, 50_000]),
            "ledger_seconds_max": r.choice([5.0, 4 * 3600.0]),
            "failover_delay_seconds": 0.1,
        }
        if self.partitions:
            settings |= {"auto_create_topic_kind": "partitioned", "auto_create_partitions": self.partitions}
        self.offloads = r.random() < 0.3 and "offload" not in without
        if self.offloads:
            lag = r.choice([0.0, 5.0, -1.0])
            settings |= {"offload_threshold_bytes": r.choice([0, 2000]), "offload_deletion_lag_seconds": lag}
        self.machine = Machine(self.loop, self.network, r, settings, self.fault, offloads=self.offloads)
        self.machine.fails = "process" not in without
        self.faults = Faults(self, without)
        self.flips = r.random() < 0.3 and "flips" not in without
        self.workloads = [workload(self) for workload in chosen]
        self.failures: asyncio.Queue[asyncio.Task[Any]] = asyncio.Queue()

    def drawn(self, what: str, share: float) -> bool:
        """Draw something from numbers of its own: seeds without it do what they did before it was added."""
        return random.Random(f"{self.seed} {what}").random() < share

    def _draw_names(self) -> list[str]:
        r = self.numbers
        others = [name for name in WORKLOADS if name not in ("t", "passing", "transactions")]
        found = (["t"] if r.random() < 0.5 else []) + r.sample(others, r.choice([1, 1, 2]))
        found += ["passing"] * self.drawn("passing", 0.1)
        return found + ["transactions"] * self.drawn("transactions", 0.15)

    def fault(self, how: str, kind: str = "fault") -> None:
        """Record a fault, which concerns all workloads."""
        self.history.add(kind, how)
        for workload in self.workloads:
            workload.history.events.append(self.history.events[-1])

    async def pass_time(self, seconds: float) -> None:
        """Let virtual time pass."""
        await pass_time(seconds)

    def watch(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        """Let the run fail when the task fails."""

        def ended(task: asyncio.Task[Any]) -> None:
            if not task.cancelled() and task.exception() is not None:
                self.failures.put_nowait(task)

        task.add_done_callback(ended)
        return task

    # --- the run ---
    def play(self) -> History:
        """Run it to the end and check it; the same seed gives the same history."""
        self.loop.play(self.seed, self.main())
        return self.history

    async def main(self) -> None:
        self.keeper = keeper = self.watch(asyncio.create_task(self.machine.run()))
        running = asyncio.create_task(self.run())
        failing = asyncio.create_task(self.failures.get())
        await asyncio.wait([running, failing], return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            running.cancel()
            failing.result().result()
        running.result()
        for task in (failing, keeper):
            task.cancel()
        await asyncio.wait([failing, keeper])
        await self.machine.stop()

    async def run(self) -> None:
        r, machine = self.numbers, self.machine
        self.client = geminga.asyncio.Client(
            f"pulsar://127.0.0.1:{PORT}",
            initial_backoff_interval_ms=10,
            max_backoff_interval_ms=300,
            operation_timeout_seconds=PATIENCE_SECONDS,
        )
        for workload in self.workloads:
            await workload.prepare()
        faults = self.watch(asyncio.create_task(self.faults.run()))
        async with asyncio.timeout(2 * self.patience):
            await asyncio.gather(*(workload.work() for workload in self.workloads))
        faults.cancel()
        self.faults.heal()
        machine.calm = True
        if r.random() < 0.7 and not self.stays_up:  # the calm begins with a process that has no fault planned
            machine.kill()
        for workload in self.workloads:
            await workload.settle()
        if r.random() < 0.7:  # and what is acknowledged stays so
            r.choice([machine.kill, machine.lose_power])()
        await self.pass_time(120)  # a client may notice only after a minute that its peer is gone
        for workload in self.workloads:
            for task in workload.tasks:
                task.cancel()
            await workload.judge()
        if self.keeps_all and not self.offloads and self.flips:
            await flip_and_judge(self)
        await asyncio.wait_for(self.client.close(), PATIENCE_SECONDS)


def run_seed(seed: int, **options: Any) -> World:
    """Play one seed; an error names it."""
    world = World(seed, **options)
    try:
        world.play()
    except BaseException as error:
        error.add_note(f"python -m tests.simulation --seed {seed}")
        raise
    finally:
        gc.collect()
    return world
