"""Threads in virtual time: real threads, of which one runs at a time, in an order that a seed decides.

A thread keeps the baton until it sleeps, until it wakes another thread, or until it is stopped within the
synchronous client's code. It is stopped only where CPython may switch threads: after instructions that check
whether another thread wants the interpreter.

Time passes when all threads sleep, and jumps to the next moment that a thread waits for.
"""

import asyncio
import dis
import importlib
import itertools
import queue
import random
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from types import CodeType, FrameType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from virtual import Clock, Network, Stuck, VirtualLoop

from geminga.client.io import runtime

_SHELLS = (
    "client.receive.acknowledging", "client.receive.async_consumer", "client.receive.consumer",
    "client.publish.submit_queue", "client.publish.submitting", "client.receive.listener",
    "client.publish.many", "client.publish.permit_wait_queue", "client.publish.producer",
    "client.publish.publisher", "client.receive.reader", "client.receive.receive_waiters",
    "client.io.runtime", "client.api.sync_base", "client.io.delegation", "client.receive.table_view",
    "client.publish.completions", "client.io.waiter", "consumer.inbox", "consumer.queue",
)  # fmt: skip
"""Modules whose objects threads share: a thread may be stopped between instructions of their code."""

# Imported here: a thread that imports holds the import lock, and must not be stopped.
SHELLS = frozenset(str(importlib.import_module(f"geminga.{name}").__file__) for name in _SHELLS)

AFTER_CALL, ELSEWHERE = 1, 2

STOPS = sys.version_info < (3, 12)
"""Whether threads are stopped between instructions. CPython 3.12 and 3.13 trace instructions by code object,
not by frame: there the stops of one seed differ from run to run, and 3.12.1 crashes. Threads then switch only
where they sleep or wake another one."""


_looks_of: dict[int, tuple[CodeType, bytearray]] = {}


def _looks(code: CodeType) -> bytearray:
    """For each instruction whether CPython looks right before it if another thread waits: it does so after
    some instructions, and after no others."""
    if id(code) in _looks_of:
        return _looks_of[id(code)][1]
    looks = bytearray(len(code.co_code))
    before = ""
    for instruction in dis.get_instructions(code):
        if before in ("CALL", "CALL_FUNCTION_EX"):
            looks[instruction.offset] = AFTER_CALL
        elif before == "RESUME":
            looks[instruction.offset] = ELSEWHERE
        before = instruction.opname
    for instruction in dis.get_instructions(code):
        if instruction.opname == "JUMP_BACKWARD":
            looks[instruction.argval] = ELSEWHERE
    _looks_of[id(code)] = code, looks
    return looks


NEVER = float("inf")

HOURS_MAX = 2
"""Hours of virtual time that no run needs: a thread that still waits then is stuck."""


class Actor:
    """One thread, seen by the scheduler."""

    def __init__(self, name: str, priority: float) -> None:
        self.name = name
        self.baton = threading.Lock()
        self.baton.acquire()
        self.priority = priority
        self.asleep = False
        self.until = NEVER
        self.woken = False
        self.done = False
        self.thread: threading.Thread | None = None
        self.mourners: list[Actor] = []
        self.may_stop = True
        self.steps_left = -1


class Scheduler:
    """``density``: share of the possible stops that are made, 0 to 1. ``by_priority``: the thread with the
    highest priority runs; a stop lowers the priority. Otherwise the next thread is drawn.
    ``coarseness_seconds``: threads whose sleep ends within this time wake together. ``unlocked``: a thread
    may be stopped before every instruction, as without an interpreter lock."""

    def __init__(
        self,
        numbers: random.Random,
        clock: Clock,
        *,
        density: float,
        by_priority: bool,
        coarseness_seconds: float = 0.0,
        unlocked: bool = False,
    ) -> None:
        self.unlocked = unlocked
        self.numbers = numbers
        self.clock = clock
        self.density = density
        self.by_priority = by_priority
        self.coarseness_seconds = coarseness_seconds
        self.ends_at = clock.now + HOURS_MAX * 3600
        self.at_idle: list[Callable[[], None]] = []
        self.failure: BaseException | None = None
        self.switches = 0
        self.stops = 0
        """Number of thread switches within the client's code."""
        self._names = itertools.count()
        self._steps: dict[int, Any] = {}
        self._codes: list[CodeType] = []
        self._called = False
        self._looking = False
        """True while the auditor checks: no thread may be stopped."""
        self._runnable: list[Actor] = []
        self.main = self.current = self._actor("main")
        self.main.thread = threading.current_thread()
        self._sleeping: list[Actor] = []
        self._actors = {threading.get_ident(): self.main}

    # --- actors ---
    def _actor(self, name: str) -> Actor:
        actor = Actor(f"{name}#{next(self._names)}", self.numbers.random())
        actor.may_stop = self.numbers.random() < 0.6
        self._schedule_stop(actor)
        self._runnable.append(actor)
        return actor

    @property
    def me(self) -> Actor:
        return self._actors[threading.get_ident()]

    def has_me(self) -> bool:
        """Return whether this thread is part of the simulation; the process may have others."""
        return threading.get_ident() in self._actors

    def alive(self) -> list[Actor]:
        return [a for a in [*self._runnable, *self._sleeping] if a is not self.main]

    def join(self, actor: Actor, seconds: float = NEVER) -> bool:
        """Sleep until ``actor`` has ended; return False after ``seconds``."""
        end = self.clock.now + seconds
        while not actor.done:
            actor.mourners.append(self.me)
            if not self.sleep_until(end) and self.clock.now >= end:
                return actor.done
        return True

    # --- switching: with the baton ---
    def pause(self) -> None:
        """Let another thread run if one can, after this thread has woken one."""
        if len(self._runnable) > 1:
            self._pass_on()
        self._check()

    def wake(self, actor: Actor) -> None:
        """Make a sleeping thread runnable; it runs when the scheduler chooses it."""
        actor.woken = True
        if actor.asleep:
            actor.asleep = False
            self._sleeping.remove(actor)
            self._runnable.append(actor)

    def sleep_until(self, moment: float) -> bool:
        """Sleep until `wake` or ``moment``; return whether another thread called `wake`. May wake early."""
        me = self.me
        if self.failure is not None:
            self._check()
        if not me.woken:
            me.asleep, me.until = True, moment
            self._runnable.remove(me)
            self._sleeping.append(me)
            self._pass_on()
        woken, me.woken = me.woken, False
        self._check()
        return woken

    def pass_time(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.sleep_until(end)

    def end(self, actor: Actor) -> None:
        """Wake the threads that wait for the end of ``actor``, and pass on the baton."""
        actor.done = True
        for mourner in actor.mourners:
            self.wake(mourner)
        self._runnable.remove(actor)
        with suppress(Stuck):  # the main thread raises it
            chosen = self._choose()
            self.current = chosen
            # The operating system may reuse its identifier for a thread outside the simulation.
            del self._actors[threading.get_ident()]
            chosen.baton.release()

    def fail(self, error: BaseException) -> None:
        """Fail the whole simulation; the main thread raises ``error``."""
        if self.failure is None:
            self.failure = error
        self.wake(self.main)

    def _check(self) -> None:
        if self.failure is not None:
            if self.me is self.main:
                raise self.failure
            self.main.priority = 2.0
            self._runnable = [self.main]
            self._pass_on()

    def _pass_on(self) -> None:
        me, chosen = self.current, self._choose()
        self.clock.now += 1e-7
        if chosen is me:
            return
        self.switches += 1
        self.current = chosen
        chosen.baton.release()
        me.baton.acquire()

    def _choose(self) -> Actor:
        while not self._runnable:
            self._idle()
        if self.failure is not None:
            return self.main
        if self.by_priority and self.numbers.random() < 0.97:
            return max(self._runnable, key=lambda actor: actor.priority)
        return self.numbers.choice(self._runnable)

    def _idle(self) -> None:
        """Run the checks while all threads sleep, then advance the time to the next one that is due."""
        try:
            self._looking = True
            for look in self.at_idle:
                look()
            self._looking = False
            due = min((actor.until for actor in self._sleeping), default=NEVER)
            if due > self.ends_at:
                raise Stuck(f"somebody sleeps for ever:\n{self.where()}")
        except BaseException as error:
            self.failure = error
            self._runnable.append(self.main)
            self.main.asleep = False
            return
        self.clock.now = max(self.clock.now, due)
        if self.coarseness_seconds:
            near = [a.until for a in self._sleeping if a.until <= due + self.coarseness_seconds]
            self.clock.now = max(self.clock.now, *near, due)
        for actor in list(self._sleeping):
            if actor.until <= self.clock.now:
                actor.asleep = False
                self._sleeping.remove(actor)
                self._runnable.append(actor)

    def where(self) -> str:
        """Describe where each thread sleeps, for the error message."""
        frames = sys._current_frames()
        said = []
        for actor in self.alive():
            frame = frames.get(actor.thread.ident) if actor.thread is not None else None
            stack = traceback.extract_stack(frame) if frame is not None else []
            places = [f"{f.filename.rsplit('/', 1)[-1]}:{f.lineno} {f.name}" for f in stack]
            said.append(f"  {actor.name}: {' > '.join(p for p in places if 'virtual' not in p)[-400:]}")
        return "\n".join(said)

    # --- stopping threads between instructions ---
    def _schedule_stop(self, actor: Actor) -> None:
        if self.density > 0:
            actor.steps_left = int(self.numbers.expovariate(self.density)) + 1

    def trace(self) -> None:
        """Allow stops of this thread from here on."""
        if STOPS and self.density > 0 and self.me.may_stop:
            sys.settrace(self._on_call)

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._called = True
        code = frame.f_code
        step = self._steps.get(id(code), code)
        if step is code:
            step = self._steps[id(code)] = self._step_of(code) if code.co_filename in SHELLS else None
            self._codes.append(code)
        if step is not None:
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        return step

    def _step_of(self, code: CodeType) -> Callable[..., Any]:
        """Return the trace function called before each instruction of ``code``."""
        looks = _looks(code)

        def step(frame: FrameType, event: str, argument: Any) -> Any:
            if event != "opcode":
                return step
            if looks[frame.f_lasti]:
                if self._called and looks[frame.f_lasti] == AFTER_CALL:
                    # The call was of a function in Python: CPython checked at the function's beginning.
                    self._called = False
                else:
                    self._called = False
                    self._may_stop(self.current)
            elif self.unlocked:
                self._may_stop(self.current)
            return step

        return step

    def _may_stop(self, actor: Actor) -> None:
        if self._looking:
            return
        actor.steps_left -= 1
        if actor.steps_left == 0:
            self._schedule_stop(actor)
            if self.by_priority:
                actor.priority -= 1.0
            if len(self._runnable) > 1:
                self.stops += 1
                self._pass_on()
                self._check()

    # --- threads ---
    def spawn(self, name: str, target: Callable[[], object]) -> Actor:
        thread = self.make_thread(target=target, name=name)
        thread.start()
        return thread.actor

    def make_thread(self, **arguments: Any) -> Any:
        return _Thread(self, **arguments)


class _Thread(threading.Thread):
    """Stand-in for `threading.Thread` in the client."""

    def __init__(self, scheduler: Scheduler, **arguments: Any) -> None:
        super().__init__(**{**arguments, "daemon": True})
        self._scheduler = scheduler
        self.actor: Any = None

    def start(self) -> None:
        scheduler = self._scheduler
        self.actor = scheduler._actor(self.name)
        self.actor.thread = self
        super().start()
        scheduler.pause()

    def run(self) -> None:
        scheduler, actor = self._scheduler, self.actor
        scheduler._actors[threading.get_ident()] = actor
        actor.baton.acquire()
        try:
            scheduler.trace()
            super().run()
        except BaseException as error:
            scheduler.fail(error)
        finally:
            sys.settrace(None)
            scheduler.end(actor)

    def join(self, timeout: float | None = None) -> None:
        if self.actor is not None:
            self._scheduler.join(self.actor, NEVER if timeout is None else timeout)

    def is_alive(self) -> bool:
        return self.actor is not None and not self.actor.done


class Lock:
    """Stand-in for `threading.Lock` in the client."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._held = False
        self._line: deque[Actor] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler = self._scheduler
        end = NEVER if timeout < 0 else scheduler.clock.now + timeout
        while self._held:
            if not blocking or scheduler.clock.now >= end:
                return False
            me = scheduler.me
            self._line.append(me)
            try:
                scheduler.sleep_until(end)
            finally:
                with suppress(ValueError):
                    self._line.remove(me)
        self._held = True
        return True

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        if self._line:
            self._scheduler.wake(self._line.popleft())
            self._scheduler.pause()


class SimpleQueue:
    """Stand-in for `queue.SimpleQueue` in the client."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._items: deque[Any] = deque()
        self._waiting: Actor | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting is not None:
            self._scheduler.wake(self._waiting)
            self._scheduler.pause()

    def get(self) -> Any:
        while not self._items:
            self._waiting = self._scheduler.me
            self._scheduler.sleep_until(NEVER)
        self._waiting = None
        return self._items.popleft()


class ThreadLoop(VirtualLoop):
    """A loop that runs on one of the scheduler's threads."""

    def __init__(
        self, scheduler: Scheduler, numbers: random.Random, clock: Clock, network: Network, lateness: float
    ) -> None:
        super().__init__(numbers, clock, network, lateness)
        self.scheduler = scheduler
        self._arriving = False
        self._executing: list[Actor] = []

    def _run_once(self) -> None:
        if not self.scheduler.by_priority or self.numbers.random() < 0.05:
            self.scheduler.pause()
        # A loop does much work: it is interrupted in a part of its iterations only.
        if self.scheduler.density > 0 and self.numbers.random() < 0.2:
            self.scheduler.trace()
            try:
                super()._run_once()
            finally:
                sys.settrace(None)
        else:
            super()._run_once()

    def run_forever(self) -> None:
        previous = sys.gettrace()
        sys.settrace(None)
        try:
            super().run_forever()
        finally:
            sys.settrace(previous)

    def idle(self) -> None:
        self.scheduler.sleep_until(self._scheduled[0].when() if self._scheduled else NEVER)

    def _write_to_self(self) -> None:
        self._wake()
        if threading.get_ident() != self._thread_id:
            self.scheduler.pause()

    def _wake(self) -> None:
        actor = self.scheduler._actors.get(self._thread_id or 0)
        if actor is not None and actor is not self.scheduler.current:
            self.scheduler.wake(actor)

    def _on_own_thread(self) -> None:
        if self._thread_id not in (None, threading.get_ident()) and not self._arriving:
            self.scheduler.fail(AssertionError("a loop's call_soon or call_at on another thread"))

    def call_soon(self, *arguments: Any, **options: Any) -> Any:
        self._on_own_thread()
        return super().call_soon(*arguments, **options)

    def call_at(self, *arguments: Any, **options: Any) -> Any:
        self._on_own_thread()
        return super().call_at(*arguments, **options)

    def close(self) -> None:
        """Close the loop and its sockets."""
        super().close()
        self.network.left(self)

    def arrives(
        self, delay: float | None, context: Context | None, callback: Callable[..., object], *arguments: Any
    ) -> None:
        if self.is_closed():
            return
        self._arriving = True
        super().arrives(delay, context, callback, *arguments)
        self._arriving = False
        self._wake()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.create_future()

        def finish(result: Any, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def run() -> None:
            result, error = None, None
            try:
                result = func(*args)
            except Exception as raised:
                error = raised
            with suppress(RuntimeError):
                self.call_soon_threadsafe(finish, result, error)

        self._executing = [actor for actor in self._executing if not actor.done]
        self._executing.append(self.scheduler.spawn("executor", run))
        return future

    async def shutdown_default_executor(self) -> None:
        """As asyncio's: what runs there is waited for."""
        for actor in self._executing:
            self.scheduler.join(actor)


@contextmanager
def shells_on(scheduler: Scheduler, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> Iterator[None]:
    """The shells' threads, locks and loops are the scheduler's; those of other threads stay what they are."""
    slept, new_real_loop = time.sleep, runtime.new_event_loop

    def seconds(duration: float) -> None:
        assert not scheduler.has_me(), "nothing in the shells sleeps by time.sleep"
        slept(duration)

    def on_the_play(made: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda **given: made(**given) if scheduler.has_me() else real(**given)

    lock = on_the_play(lambda: Lock(scheduler), threading.Lock)
    thread = on_the_play(scheduler.make_thread, threading.Thread)
    with_locks = SimpleNamespace(**{**vars(threading), "Lock": lock})
    with_threads = SimpleNamespace(**{**vars(threading), "Thread": thread})
    line = on_the_play(lambda: SimpleQueue(scheduler), queue.SimpleQueue)
    with (
        scheduler.clock.everywhere(scheduler.has_me),
        patch("geminga.client.io.waiter.threading", with_locks),
        patch("geminga.client.io.waiter.SIGNAL_CHECK_SECONDS", 2.0),
        patch("geminga.client.io.runtime.threading", with_threads),
        patch("geminga.client.io.runtime.new_event_loop", on_the_play(new_loop, new_real_loop)),
        patch("geminga.client.receive.listener.threading", with_threads),
        patch("geminga.client.receive.listener.SimpleQueue", line),
        patch.object(time, "sleep", seconds),
    ):
        try:
            scheduler.trace()
            yield
        finally:
            sys.settrace(None)
