"""A few threads that wait for the disk, so that the owner never does.

The owner hands in jobs and goes on; what they give comes back through ``finished``, to be taken on its own
thread. Some of its questions cannot be put off: `ReadPool.ask` waits, but not longer than
``wait_seconds``. A disk that takes longer is *stalled*: the question fails with `StoreBusy`, the read goes
on, and until it is over no other question waits at all. Whoever asks the same again finds the answer.

Bounds: ``waiting_max`` jobs wait, more are refused. While ``undelivered_bytes_max`` of what was read are not
taken by the owner, no further job is begun, but for questions. Answers that came too late are kept for
`LATE_ANSWERS_MAX` questions.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from geminga.errors import StoreBusy
from geminga.ledger.callbacks import run_callback

LATE_ANSWERS_MAX = 32
STOP_SECONDS_MAX = 5.0
"""How long `ReadPool.stop` waits in all for a disk that does not answer; its threads end with the process."""


class ReadResult(Protocol):
    """What a job gives. Errors are part of it: a job raises nothing."""

    @property
    def size_bytes(self) -> int: ...


A = TypeVar("A", bound=ReadResult)


class _Job(Generic[A]):
    __slots__ = ("answer", "deliver", "is_over", "key", "run")

    def __init__(
        self, key: Hashable, run: Callable[[], A], deliver: list[Callable[[A], None]] | None
    ) -> None:
        self.key = key
        self.run = run
        self.deliver = deliver
        self.answer: A | None = None
        self.is_over = threading.Event() if deliver is None else None


class ReadPool(Generic[A]):
    """See the module. All methods but the threads' own run on the owner's thread."""

    def __init__(
        self,
        finished: deque[Callable[[], None]],
        signal: Callable[[], None],
        *,
        threads: int,
        wait_seconds: float,
        waiting_max: int,
        undelivered_bytes_max: int,
    ) -> None:
        self._finished = finished
        self._signal = signal
        self._wait_seconds = wait_seconds
        self._waiting_max = waiting_max
        self._undelivered_bytes_max = undelivered_bytes_max
        self._changed = threading.Condition()
        self._jobs: deque[_Job[A]] = deque()
        self._pending: dict[Hashable, _Job[A]] = {}
        self._undelivered_bytes = 0
        self._stopping = False
        self._overdue: dict[Hashable, _Job[A]] = {}
        self._late: OrderedDict[Hashable, A] = OrderedDict()
        self._threads = [
            threading.Thread(target=self._run, name=f"geminga-store-reader-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def stalled(self) -> bool:
        """Whether the disk has kept a question waiting for too long, and still does."""
        return any(job.answer is None for job in self._overdue.values())

    @property
    def busy(self) -> bool:
        """Whether something is to be delivered yet."""
        return bool(self._pending)

    # --- jobs ---
    def submit(self, key: Hashable, run: Callable[[], A], deliver: Callable[[A], None]) -> None:
        """Run a job; ``deliver`` gets its answer when the owner takes what is finished.

        A job of the same ``key`` that waits already serves both. Raises `StoreBusy` when too many wait.
        """
        job = self._pending.get(key)
        if job is not None:
            assert job.deliver is not None
            job.deliver.append(deliver)
            return
        if len(self._pending) >= self._waiting_max:
            raise StoreBusy(f"{len(self._pending)} reads of the store wait already: try again")
        job = self._pending[key] = _Job(key, run, [deliver])
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()

    def _deliver(self, job: _Job[A]) -> None:
        if self._pending.pop(job.key, None) is None:
            return  # refused already: the pool was stopped
        assert job.answer is not None
        assert job.deliver is not None
        with self._changed:
            self._undelivered_bytes -= job.answer.size_bytes
            self._changed.notify_all()
        answer = job.answer
        for deliver in job.deliver:
            run_callback(lambda deliver=deliver: deliver(answer))  # type: ignore[misc]

    # --- questions ---
    def ask(self, key: Hashable, run: Callable[[], A]) -> A:
        """The answer of a job, waited for; raises `StoreBusy` when the disk is stalled."""
        self._collect_late()
        late = self._late.pop(key, None)
        if late is not None:
            return late
        if key not in self._overdue:
            if self._overdue:
                raise StoreBusy("the disk of the store does not answer: try again")
            job: _Job[A] = _Job(key, run, None)
            assert job.is_over is not None
            with self._changed:
                self._jobs.appendleft(job)
                self._changed.notify_all()
            if job.is_over.wait(self._wait_seconds):
                assert job.answer is not None
                return job.answer
            self._overdue[key] = job
        raise StoreBusy(f"the disk of the store does not answer within {self._wait_seconds:g} s: try again")

    def _collect_late(self) -> None:
        """Keep the answers that came after their question had failed."""
        for key, job in [*self._overdue.items()]:
            if job.answer is not None:
                del self._overdue[key]
                self._late[key] = job.answer
        while len(self._late) > LATE_ANSWERS_MAX:
            self._late.popitem(last=False)

    # --- the threads ---
    def _run(self) -> None:
        while self._serve():
            pass

    def _serve(self) -> bool:
        """The next job; False at the end. Its answer is let go of before another one is waited for."""
        job = self._take()
        if job is None:
            return False
        job.answer = job.run()
        if job.is_over is not None:
            job.is_over.set()
            return True
        with self._changed:
            self._undelivered_bytes += job.answer.size_bytes
        self._finished.append(lambda: self._deliver(job))
        self._signal()
        return True

    def _take(self) -> _Job[A] | None:
        """The next job that may be begun; None when there are to be no more."""
        with self._changed:
            while True:
                if self._stopping:
                    return None
                if self._jobs:
                    is_question = self._jobs[0].is_over is not None
                    if is_question or self._undelivered_bytes < self._undelivered_bytes_max:
                        return self._jobs.popleft()
                self._changed.wait()

    def stop(self, refusal: A, seconds_max: float | None = None) -> bool:
        """End the threads; what was not delivered gets the refusal. False when the disk still keeps one after
        ``seconds_max``, `STOP_SECONDS_MAX` by default."""
        with self._changed:
            self._stopping = True
            self._jobs.clear()
            self._changed.notify_all()
        deadline = time.monotonic() + (STOP_SECONDS_MAX if seconds_max is None else seconds_max)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        pending, self._pending = self._pending, {}
        for job in pending.values():
            for deliver in job.deliver or ():
                run_callback(lambda deliver=deliver: deliver(refusal))  # type: ignore[misc]
        return not any(thread.is_alive() for thread in self._threads)
