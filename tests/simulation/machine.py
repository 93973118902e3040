"""The broker's machine: a simulated disk, and one broker process after the other on it.

A process is a *life*. All callbacks and tasks that a life starts carry its number in their context; once it
is dead, `LivesLoop` runs none of them, as if the process had ended at that moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final
from unittest.mock import MagicMock, patch
from weakref import WeakMethod

from geminga.broker.admin.topic_actions import TopicActions
from geminga.broker.serving.server import BrokerServer
from geminga.broker.settings import BrokerSettings
from geminga.errors import StoreError
from geminga.ids import TopicName
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from geminga.ledger.tier.folder_storage import FolderStorage
from geminga.ledger.tiered import TieredStore
from tests.client.virtual import Clock, Network, Transport, VirtualLoop, pass_time
from tests.support.faulty_filesystem import Fate, FaultyFileSystem, Plan, PowerLoss, SimulatedDisk

LIFE: Final[ContextVar[int]] = ContextVar("life", default=0)
"""Number of the broker process that runs; 0 for the clients."""
FOLDER: Final = "/data"
PORT: Final = 6650
NEARLY_FULL_BYTES: Final = 1 << 20
"""Above what `Faults.fill_disk` leaves, and far below the size of the disk."""


def bound_socket() -> Any:
    """Return a listening socket of the simulated machine: nothing but a port."""
    found = MagicMock()
    found.getsockname.return_value = "127.0.0.1", PORT
    found.__enter__.return_value = found
    return found


class LivesLoop(VirtualLoop):
    """Event loop that does not run what belongs to a dead process."""

    def __init__(self, numbers: random.Random, clock: Clock, network: Network, lateness: float) -> None:
        super().__init__(numbers, clock, network, lateness)
        self.dead: set[int] = set()
        self.after_turn: Callable[[], None] = lambda: None
        self.tasks: list[asyncio.Task[Any]] = []
        """Tasks of all lives: those of dead ones must not be finalized before the end."""
        self.set_exception_handler(self._failed)
        self.set_task_factory(self._new_task)

    def _failed(self, _loop: Any, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), PowerLoss):
            self.errors.append(context)

    def _new_task(self, loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        if LIFE.get() or options.get("context"):
            self.tasks.append(task)
        return task

    def _run_once(self) -> None:
        super()._run_once()
        self.after_turn()

    def _next(self) -> asyncio.Handle:
        handle = super()._next()
        if handle._context.get(LIFE, 0) in self.dead:
            handle.cancel()
        return handle


def _lacks_space(store: FileStore | TieredStore) -> bool:
    """Return whether the store found its disk full: the threads that it does not have here would retry."""
    space = store.disk.space
    return space is not None and space.free_bytes < NEARLY_FULL_BYTES


class DyingFileSystem(FaultyFileSystem):
    """File system that reports its power loss in the moment in which it happens.

    Arrow holds open files where the garbage collector does not look: a reference back to the machine would
    keep each offloading run in memory.
    """

    def __init__(self, disk: SimulatedDisk, plan: Plan, died: Callable[[], None]) -> None:
        super().__init__(disk, plan)
        self._died = WeakMethod(died)

    def die(self) -> None:
        if not self.is_dead:
            self.is_dead = True
            if (died := self._died()) is not None:
                died()
        raise PowerLoss


class Machine:
    """Keeps a broker running: after a crash, or when its store has stopped, the next life begins."""

    def __init__(
        self,
        loop: LivesLoop,
        network: Network,
        numbers: random.Random,
        settings: dict[str, Any],
        report: Callable[[str], None],
        *,
        offloads: bool = False,
    ) -> None:
        self.loop, self.network, self.numbers, self.report = loop, network, numbers, report
        self.disk = SimulatedDisk()
        self.life = 0
        self.calm = False
        """Whether no more faults are planned."""
        self.fails = True
        """Whether faults of the disk and the process are planned at all."""
        self.is_damaged = False
        """Whether bits of the disk were flipped."""
        self.disk_delay = 0.0
        """Seconds that the disk takes for what it has to write."""
        self._offloads = offloads
        self._looks_again = self._serves = False
        self.crashes = self.stops = 0
        self.server: BrokerServer
        self.filesystem: DyingFileSystem
        self._settings = settings
        self._context: Context
        self._graves: list[Any] = []
        self._down = asyncio.Event()
        self._wakeup: Callable[[], None] | None = None
        self._store: FileStore | TieredStore | None = None
        loop.after_turn = self._let_the_disk_work
        size = numbers.choice([8, 64]) * 1024
        self._store_settings = StoreSettings(
            log_file_bytes=size, preallocate_bytes=numbers.choice([0, 4096]), checkpoint_log_bytes=size,
            checkpoint_records=numbers.choice([50, 1000]), cache_bytes=numbers.choice([0, 4096, 1 << 20]),
            garbage_bytes_min=8192, rewrite_live_fraction=0.5,
        )  # fmt: skip

    # --- lives ---
    async def run(self) -> None:
        """Run broker after broker, until this is cancelled."""
        while True:
            self._down.clear()
            with contextlib.suppress(PowerLoss):
                try:
                    await self.start()
                except StoreError as error:
                    self.report(f"the broker does not start: {error}")
                    self._ended()
                    await pass_time(1)
                    continue
                waiting = [
                    asyncio.create_task(each.wait()) for each in (self._down, self.server.store_stopped)
                ]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for each in waiting:
                    each.cancel()
            self._serves = False
            if not self._down.is_set():
                self.stops += 1
                await self.stop()
            await pass_time(self.numbers.choice([0.05, 0.5, 5.0]))

    async def start(self) -> None:
        """Start the next broker process."""
        self.life += 1
        self._serves = False
        self._context = copy_context()
        self._context.run(LIFE.set, self.life)
        self.filesystem = DyingFileSystem(self.disk, self._plan(), self._power_lost)
        settings = BrokerSettings(port=PORT, web_port=None, data_dir=FOLDER, **self._settings)
        self.server = BrokerServer(settings, store=self._open_store)
        with patch("geminga.broker.serving.server.bind", lambda *_: bound_socket()):
            await self._live(self.server.start())
        self._serves = True
        if not self.is_damaged:
            found = list(self.server.store.damage.found)
            assert not found, f"damage on a disk that keeps what is synced: {found}"

    async def _live(self, work: Coroutine[Any, Any, None]) -> None:
        """Await work of the broker process; raises `PowerLoss` if the process dies meanwhile."""
        working = self.loop.create_task(work, context=self._context)
        dying = asyncio.create_task(self._down.wait())
        await asyncio.wait([working, dying], return_when=asyncio.FIRST_COMPLETED)
        dying.cancel()
        await asyncio.wait([dying])
        if not working.done():
            raise PowerLoss
        working.result()

    @property
    def is_up(self) -> bool:
        """Whether a broker process runs."""
        return self._serves and not self._down.is_set() and self.life not in self.loop.dead

    def _open_store(self, wakeup: Callable[[], None]) -> FileStore | TieredStore:
        self._wakeup = wakeup
        files: Any = self.filesystem
        local = FileStore.open(FOLDER, settings=self._store_settings, filesystem=files, threads=False)
        self._store = local
        if self._offloads:
            storage = FolderStorage(files, "/tier")
            try:
                self._store = TieredStore(
                    local, storage, threads=False, clock=self.loop.time, sleep=self._sleep
                )
            except BaseException:
                local.close()
                raise
        return self._store

    def _sleep(self, seconds: float) -> None:
        self.loop.clock.now += seconds

    def _let_the_disk_work(self) -> None:
        """The store has no threads here: have it write a while after something was submitted."""
        store, wakeup = self._store, self._wakeup
        if store is None or wakeup is None:
            return
        if store.is_writing or store.disk.gives_back:
            self._wakeup = None
            delay = self.numbers.choice([0.0, 0.0005, 0.005, 0.05]) if store.is_writing else 0.05
            self.loop.call_later(delay + self.disk_delay, self._wake, wakeup, context=self._context)
        elif (self._offloads or _lacks_space(store)) and not self._looks_again:
            self._looks_again = True
            self.loop.call_later(0.5, self._look_again, wakeup, self.life)

    def _wake(self, wakeup: Callable[[], None]) -> None:
        wakeup()
        self._wakeup = wakeup

    def _look_again(self, wakeup: Callable[[], None], life: int) -> None:
        """Let the offload storage do its work, and the store measure its full disk and write again."""
        self._looks_again = False
        if life == self.life and self.is_up and self._store is not None:
            self._context.run(wakeup)

    async def stop(self) -> None:
        """Stop the broker as SIGTERM does."""
        self.report("the broker is stopped")
        with contextlib.suppress(PowerLoss):
            await self._live(self.server.stop())
        self._ended()

    def _ended(self) -> None:
        """The process has ended by itself: what it left scheduled must not act on the next one."""
        self.loop.dead.add(self.life)
        self._store = self._wakeup = None
        self.disk = self.disk.kill()

    def _plan(self) -> Plan:
        r = self.numbers
        if self.calm or not self.fails or r.random() < 0.3:
            return Plan()
        steps = r.choice([20, 100, 400])
        if r.random() < 0.2:
            return Plan(errors={r.randrange(1, steps): r.choice([errno.EIO, errno.ENOSPC])})
        torn = r.choice([None, None, 0, 7, 600])
        return Plan(crash_at=r.randrange(1, steps), torn_bytes=torn)

    # --- deaths ---
    def kill(self) -> None:
        """End the broker process as SIGKILL does: what the operating system has is not lost."""
        self._die("the broker is killed")
        self.disk = self.disk.kill()

    def lose_power(self) -> None:
        """End the machine: unsynced data are lost, in part or wholly."""
        self._power_lost()

    def _power_lost(self) -> None:
        self._die("the power fails")
        self.disk = self.disk.crash(Fate.by_chance(self.numbers))

    def _die(self, how: str) -> None:
        self.report(how)
        self.crashes += 1
        self.filesystem.is_dead = True
        self.loop.dead.add(self.life)
        self._graves.append((self.server, self._store))
        self._store = self._wakeup = None
        self.network.forget(PORT)
        for side in [side for link in self.network.links for side in link]:
            if side.context.get(LIFE, 0) == self.life and not side.gone:
                self._cut_off(side)
        self._down.set()

    def _cut_off(self, side: Transport) -> None:
        """The peer learns of it at once, or later: a machine without power says nothing."""
        side.lose(None)
        delay = self.numbers.choice([None, None, 0.3, 3.0])
        self.loop.arrives(delay, side.peer.context, side.peer.lose, ConnectionResetError(104, "reset"))

    # --- administration ---
    def administer(self, act: Callable[[TopicActions], Any]) -> Any:
        """Call the administration of the broker; the result, or None while the broker is down."""
        if not self.is_up:
            return None
        return self._context.run(self.server.call, lambda: act(TopicActions(self.server.broker)))

    def unload(self, topics: list[TopicName]) -> None:
        """Unload topics: their clients look them up again."""
        for topic in topics:
            with contextlib.suppress(Exception):
                self.administer(lambda actions, topic=topic: actions.unload(topic))
