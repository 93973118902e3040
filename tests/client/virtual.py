"""Virtual time for whole programs: an event loop whose order a seed decides, and a network in memory.

Client and broker run unchanged on such loops. Time passes when no callback can run, and jumps to the next
timer that is due. The seed imitates a busy machine: steps of tasks run late, bytes arrive late and in pieces,
connections break between the pieces. Plain callbacks keep their order, as asyncio promises.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context, copy_context
from types import SimpleNamespace
from typing import Any, Generic, TypeVar
from unittest.mock import patch

EPOCH = 1_700_000_000.0
T = TypeVar("T")


class Stuck(AssertionError):
    """No callback can run and no timer is set: the program is stuck."""


class Remembered(Generic[T]):
    """Record of the first run of each seed, which tests share."""

    def __init__(self, run: Callable[[int], T]) -> None:
        self._run = run
        self._first: dict[int, T] = {}

    def play(self, seed: int) -> T:
        """Run it, whether it was run before or not."""
        found = self._run(seed)
        self._first.setdefault(seed, found)
        return found

    def of(self, seed: int) -> T:
        """Return the record of the seed's first run; run the seed if it has no record."""
        return self._first[seed] if seed in self._first else self.play(seed)


class Clock:
    """Seconds, for all loops together."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.wall_ahead = 0.0
        """Seconds by which the wall clock was set forward; negative: back."""

    @property
    def wall(self) -> float:
        """Seconds since 1970."""
        return EPOCH + self.now + self.wall_ahead

    @contextlib.contextmanager
    def everywhere(self, is_of_the_play: Callable[[], bool] | None = None) -> Iterator[None]:
        """Patch the time functions for the threads of the simulation; by default only the calling thread.

        Other threads of the process (py4j's after Spark tests, those of clients left open) keep the real
        time: a timer that they set by another clock would never be due.
        """
        own = threading.get_ident()
        mine = is_of_the_play or (lambda: threading.get_ident() == own)
        real = time.monotonic, time.time, time.time_ns, time.perf_counter
        monotonic, wall, wall_ns, perf_counter = real
        time.monotonic = lambda: self.now if mine() else monotonic()
        time.perf_counter = lambda: self.now if mine() else perf_counter()
        time.time = lambda: self.wall if mine() else wall()
        time.time_ns = lambda: int(self.wall * 1e9) if mine() else wall_ns()
        try:
            yield
        finally:
            time.monotonic, time.time, time.time_ns, time.perf_counter = real


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module. ``lateness``: how often a task's step is put off, 0 to 1."""

    def __init__(self, numbers: random.Random, clock: Clock, network: Network, lateness: float) -> None:
        super().__init__()
        self.numbers = numbers
        self.clock = clock
        self.network = network
        self.lateness = lateness
        self.turns = 0
        self.victims: set[asyncio.Task[Any]] = set()
        """Tasks that may be cancelled just before a step of theirs: woken, they go without looking."""
        self.at_idle: list[Callable[[], None]] = []
        """Called whenever nothing can run before the next timer."""
        self.errors: list[dict[str, Any]] = []
        self.set_exception_handler(lambda loop, context: self.errors.append(context))

    def time(self) -> float:
        return self.clock.now

    def play(self, seed: int, main: Coroutine[Any, Any, None]) -> None:
        """Run ``main`` to its end in virtual time and close everything; callbacks must not have failed.

        The seed decides the whole run, with the names of consumers and the jitter of reconnects.
        """
        numbers = SimpleNamespace(Random=lambda: random.Random(seed))
        with self.clock.everywhere(), patch("geminga.client.handles.context.random_module", numbers):
            try:
                self.run_until_complete(main)
            finally:
                self.network.close()
                self.close()
        assert not self.errors, self.errors[0]

    def _run_once(self) -> None:
        self._take_due()
        if not self._ready and not self._stopping:
            self.idle()
            self._take_due()
        if self._ready:
            self.turns += 1
            self.clock.now += 1e-6
            handle = self._next()
            if not handle.cancelled():
                handle._run()

    def idle(self) -> None:
        """Nothing can run before the next timer."""
        if not self._scheduled:
            raise Stuck("nothing is to come")
        for look in self.at_idle:
            look()
        self.clock.now = max(self.clock.now, self._scheduled[0].when())

    def _take_due(self) -> None:
        timers = self._scheduled
        while timers and (timers[0].cancelled() or timers[0].when() <= self.clock.now):
            timer = heapq.heappop(timers)
            timer._scheduled = False
            if not timer.cancelled():
                self._ready.append(timer)

    def _next(self) -> asyncio.Handle:
        ready = self._ready
        handle = ready.popleft()
        while ready and _is_step(handle) and self.numbers.random() < self.lateness:
            ready.insert(self.numbers.randrange(1, len(ready) + 1), handle)
            handle = ready.popleft()
        if self.victims and _is_step(handle) and self.numbers.random() < 0.05:
            task = handle._callback.__self__
            if task in self.victims:
                self.victims.discard(task)
                task.cancel()
        return handle

    def arrives(
        self, delay: float | None, context: Context | None, callback: Callable[..., object], *arguments: Any
    ) -> None:
        """Something comes over the network; the other end may belong to another loop."""
        if delay is None:
            self.call_soon(callback, *arguments, context=context)
        else:
            self.call_later(delay, callback, *arguments, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _process_events(self, event_list: object) -> None:
        pass

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.create_future()

        def run() -> None:
            if not future.cancelled():
                try:
                    future.set_result(func(*args))
                except Exception as error:
                    future.set_exception(error)

        self.call_later(self.numbers.uniform(0, 0.01), run)
        return future

    async def create_server(self, protocol_factory: Any, *_: Any, sock: Any, **__: Any) -> Any:
        return self.network.listen(self, sock, protocol_factory)

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        await pass_time(self.numbers.uniform(0, 0.01))
        return self.network.connect(self, port, protocol_factory)

    def add_reader(self, *_: Any) -> None:
        raise NotImplementedError


def _is_step(handle: asyncio.Handle) -> bool:
    callback = handle._callback
    return isinstance(getattr(callback, "__self__", None), asyncio.Task)


async def pass_time(seconds: float) -> None:
    """Let the time of a `VirtualLoop` pass."""
    await asyncio.sleep(seconds)


class Network:
    """All connections between loops."""

    def __init__(self, numbers: random.Random) -> None:
        self.numbers = numbers
        self.listeners: dict[int, tuple[VirtualLoop, Context, Callable[[], Any]]] = {}
        self._sockets: dict[int, Any] = {}
        self.links: list[tuple[Transport, Transport]] = []
        self.refuses = False
        self.cuts = 0
        self.ended: Callable[[], None] = lambda: None
        """Called when an end of a connection has ended."""

    def listen(self, loop: VirtualLoop, sock: Any, factory: Callable[[], Any]) -> Listener:
        port = sock.getsockname()[1]
        self.listeners[port] = (loop, copy_context(), factory)
        self._sockets[port] = sock
        return Listener(self, port, sock)

    def close(self) -> None:
        """Let go of the real ports, which were only bound."""
        for sock in self._sockets.values():
            sock.close()

    def forget(self, port: int) -> None:
        """Let nothing listen on a port any more: its process is gone."""
        if self.listeners.pop(port, None) is not None:
            self._sockets.pop(port).close()

    def connect(self, loop: VirtualLoop, port: int, factory: Callable[[], Any]) -> tuple[Transport, Any]:
        found = self.listeners.get(port)
        if found is None or self.refuses:
            raise ConnectionRefusedError(111, "nothing listens here")
        other_loop, other_context, other_factory = found
        protocol = factory()
        near = Transport(self, loop, copy_context(), protocol)
        far = Transport(self, other_loop, other_context, other_context.run(other_factory))
        near.peer, far.peer = far, near
        self.links = [link for link in self.links if not link[0].gone] + [(near, far)]
        protocol.connection_made(near)
        other_loop.arrives(None, other_context, far.protocol.connection_made, far)
        return near, protocol

    def left(self, loop: VirtualLoop) -> None:
        """A loop was closed: what it had open is reset."""
        for side in [side for link in self.links for side in link]:
            if side.loop is loop and not side.gone:
                side.lose(None)
                side.peer.lose(ConnectionResetError(104, "the other process has ended"))

    def cut(self) -> None:
        """Break one open connection, if there is any, and drop its bytes in flight."""
        links = [link for link in self.links if not link[0].gone]
        if links:
            self.cuts += 1
            for side in self.numbers.choice(links):
                side.lose(ConnectionResetError(104, "cut"))


class Listener:
    """Server object that `create_server` of the virtual event loop returns."""

    def __init__(self, network: Network, port: int, sock: Any) -> None:
        self._network, self._port, self._sock = network, port, sock

    def close(self) -> None:
        self._network.listeners.pop(self._port, None)
        self._sock.close()

    async def wait_closed(self) -> None:
        pass


class Transport(asyncio.Transport):
    """One end of a connection: what is written here arrives at ``peer``, in pieces and late, or never.

    Its protocol's methods run in ``context``, that of the program which opened this end.
    """

    peer: Transport

    def __init__(self, network: Network, loop: VirtualLoop, context: Context, protocol: Any) -> None:
        super().__init__()
        self.network, self.loop, self.context, self.protocol = network, loop, context, protocol
        self.gone = self.closing = False
        self._reading, self._paused = True, False
        self._under_way: deque[bytes] = deque()
        self._size = 0
        self._high, self._low = 65_536, 16_384
        self._due = self._held = False
        self._breaks_after: int | None = None
        self.piece_bytes: int | None = None
        """Most bytes that arrive at once; None: any number."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 5) if name in ("peername", "sockname") else default

    def is_closing(self) -> bool:
        return self.closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 65_536 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._size

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self.peer._deliver_later()

    def write(self, data: Any) -> None:
        if self.closing or not len(data):
            return
        self._under_way.append(bytes(data))
        self._size += len(data)
        if self._size > self._high and not self._paused:
            self._paused = True
            self.protocol.pause_writing()
        self._deliver_later()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """Close; bytes already written still arrive."""
        if not self.closing:
            self.closing = True
            self._deliver_later()

    def abort(self) -> None:
        self.lose(None)
        self.peer.lose(ConnectionResetError(104, "reset by the peer"))

    def lose(self, error: Exception | None) -> None:
        """Break the connection and drop its bytes in flight."""
        if not self.gone:
            self.gone = self.closing = True
            self._under_way.clear()
            self.network.ended()
            self.loop.arrives(None, self.context, self.protocol.connection_lost, error)

    # --- faults ---
    def hold(self) -> None:
        """Deliver nothing more until `release`, as a network that drops all packets."""
        self._held = True

    def release(self) -> None:
        """Deliver what has waited since `hold`."""
        self._held = False
        self._deliver_later()

    def break_after(self, size: int) -> None:
        """Break the connection once the peer has got this many more bytes."""
        self._breaks_after = size

    def _deliver_later(self) -> None:
        if not self._due and not self.gone and not self._held:
            self._due = True
            delay = self.network.numbers.choice([0.0, 0.0005, 0.01])
            self.peer.loop.arrives(delay, self.peer.context, self._deliver)

    def _deliver(self) -> None:
        self._due = False
        if self.gone or self._held or not self.peer._reading:
            return
        data = b"".join(self._under_way)
        if data and not self.peer.gone:
            numbers = self.network.numbers
            count = len(data) if numbers.random() < 0.7 else numbers.randrange(1, len(data) + 1)
            if self.piece_bytes is not None:
                count = min(count, self.piece_bytes)
            if self._breaks_after is not None:
                count = min(count, self._breaks_after)
                self._breaks_after -= count
            self._under_way = deque([data[count:]] if data[count:] else ())
            self._size = len(data) - count
            if self._paused and self._size <= self._low:
                self._paused = False
                self.loop.arrives(None, self.context, self.protocol.resume_writing)
            if isinstance(self.peer.protocol, asyncio.BufferedProtocol):
                asyncio.protocols._feed_data_to_buffered_proto(self.peer.protocol, data[:count])
            else:
                self.peer.protocol.data_received(data[:count])
            if self._breaks_after == 0:
                for side in (self, self.peer):
                    side.lose(ConnectionResetError(104, "cut"))
                return
            if self._under_way:
                self._deliver_later()
                return
        if self.closing:
            self.lose(None)
            self.peer.lose(None)
