"""Second thread of the store: checkpoints and the reading part of rewriting."""

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

Job = Callable[[], None]
Finish = Callable[[Exception | None], None]


def _nothing() -> None:
    """Do nothing: the job only wakes the thread."""


class Worker:
    """Runs jobs in order on its thread; their ``finish`` runs on the owner's, through ``finished``.

    Without `start` the jobs run in `run_queued`, on the owner's thread.
    """

    def __init__(self, finished: deque[Callable[[], None]], signal: Callable[[], None]) -> None:
        self._finished = finished
        self._signal = signal
        self._queue: SimpleQueue[tuple[Job, Finish | None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._alarm_at: float | None = None
        self._submitted = 0
        self._done = 0

    @property
    def busy(self) -> bool:
        return self._submitted != self._done

    def start(self, name: str = "geminga-store-worker") -> None:
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job, finish: Finish) -> None:
        self._submitted += 1
        self._queue.put((job, finish))

    def run_queued(self) -> None:
        """Run the queued jobs on the calling thread."""
        while not self._queue.empty():
            item = self._queue.get()
            if item is not None and item[1] is not None:
                self._execute(item[0], item[1])

    def stop(self, seconds_max: float | None = None) -> bool:
        """Finish the queued jobs and end the thread; returns whether it ended within ``seconds_max``."""
        if self._thread is None:
            self.run_queued()
            return True
        self._queue.put(None)
        self._thread.join(seconds_max)
        has_ended = not self._thread.is_alive()
        self._thread = None
        return has_ended

    def alarm(self, seconds: float) -> None:
        """Signal the owner once, in ``seconds`` or earlier; needs the thread.

        There is a single alarm, the earliest. For a later one, ask again after it.
        """
        when = time.monotonic() + seconds
        if self._thread is not None and (self._alarm_at is None or when < self._alarm_at):
            self._alarm_at = when
            self._queue.put((_nothing, None))

    def _run(self) -> None:
        while self._serve():
            pass

    def _serve(self) -> bool:
        """Run the next job or alarm; False at the end.

        References to the job are dropped before waiting for the next one, as a checkpoint's job is large.
        """
        alarm_at = self._alarm_at
        try:
            item = self._queue.get(
                timeout=None if alarm_at is None else max(0.0, alarm_at - time.monotonic())
            )
        except Empty:
            self._alarm_at = None
            self._signal()
            return True
        if item is None:
            return False
        job, finish = item
        if finish is not None:
            self._execute(job, finish)
        return True

    def _execute(self, job: Job, finish: Finish) -> None:
        error: Exception | None = None
        try:
            job()
        except Exception as raised:
            error = raised
        except BaseException as raised:
            # Compiled libraries raise these too (a panic). The thread continues, so that the caller of the
            # job gets the error instead of waiting for ever.
            if self._thread is None:
                raise
            error = RuntimeError(f"a job of the store's thread ended with {raised!r}")
        self._finished.append(lambda: finish(error))
        self._done += 1
        self._signal()
