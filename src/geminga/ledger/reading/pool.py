"""Pool of threads that wait for the disk, so that the owner's thread does not.

The owner submits jobs and continues; results arrive through ``finished`` and are delivered on the owner's
thread. Queries that cannot be deferred use `ReadPool.ask`, which waits, but at most ``wait_seconds``. A disk
that takes longer is *stalled*: the query fails with `StoreBusy`, its read continues, and until it ends all
other queries fail at once. A repeated query finds the late answer.

Limits: ``waiting_max`` pending jobs; more are refused. While ``undelivered_bytes_max`` of results are not
delivered to the owner, no job starts except queries. Late answers are kept for `LATE_ANSWERS_MAX` queries.
"""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from geminga.errors import StoreBusy
from geminga.ledger.callbacks import run_callback

LATE_ANSWERS_MAX = 32
STOP_SECONDS_MAX = 5.0
"""Time limit of `ReadPool.stop` for a disk that does not answer; stuck threads end with the process."""


class ReadResult(Protocol):
    """Result of a job, errors included: a job raises nothing."""

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
    """Pool of reader threads. All methods but the threads' own run on the owner's thread."""

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
        """Whether a query has exceeded its time limit, and its read is still pending."""
        return any(job.answer is None for job in self._overdue.values())

    @property
    def busy(self) -> bool:
        """Whether results are still to be delivered."""
        return bool(self._pending)

    # --- jobs ---
    def submit(self, key: Hashable, run: Callable[[], A], deliver: Callable[[A], None]) -> None:
        """Run a job; ``deliver`` receives its answer when the owner takes finished jobs.

        A pending job of the same ``key`` serves both. Raises `StoreBusy` when too many jobs are pending.
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
        for deliver in job.deliver:
            run_callback(deliver, job.answer)

    # --- queries ---
    def ask(self, key: Hashable, run: Callable[[], A]) -> A:
        """Run a job and wait for its answer; raises `StoreBusy` when the disk is stalled."""
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
        """Keep the answers that arrived after their query had failed."""
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
        """Run the next job; False at the end. Drops its answer before waiting for another job."""
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
        """Return the next job that may start; None when the pool is stopped."""
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
        """Stop the threads; undelivered jobs get the refusal. Returns False if a thread still waits for the
        disk after ``seconds_max``, `STOP_SECONDS_MAX` by default."""
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
                run_callback(deliver, refusal)
        return not any(thread.is_alive() for thread in self._threads)
