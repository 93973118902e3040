"""Process group of the demo's Spark application: started, followed and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from geminga.demo import driver, pipeline
from geminga.errors import PulsarException

KILL_SECONDS_MAX = 30.0


class SparkFailed(PulsarException):
    """The Spark driver ended before it was done. Its log has details."""


@dataclass(slots=True)
class QueryProgress:
    """Progress of one query, over all drivers."""

    rows: int = 0
    batches: int = 0
    dropped_late: int = 0
    lag_messages: int | None = None
    """Messages of the topic after the last micro-batch; None before the first one."""
    lag_bytes: int | None = None


@dataclass(slots=True)
class DriverProgress:
    """Progress reported by the drivers so far."""

    queries: dict[str, QueryProgress] = field(
        default_factory=lambda: {name: QueryProgress() for name in pipeline.QUERIES}
    )
    passes: list[float] = field(default_factory=list)
    """Seconds of each completed pass."""
    restarted: list[str] = field(default_factory=list)
    """Queries that were started again and are not reported yet."""
    is_done: bool = False
    error: str = ""

    def hear(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "progress":
                done = self.queries[event["query"]]
                done.rows += event["rows"]
                done.batches += bool(event["rows"])
                done.dropped_late += event["dropped_late"]
                done.lag_messages, done.lag_bytes = event["lag_messages"], event["lag_bytes"]
            case "restarted":
                self.restarted.append(event["query"])
            case "caught up":
                self.passes.append(event["seconds"])
            case "done":
                self.is_done = True
            case "failed":
                self.error = f"{event['kind']}: {event['error']}"


class Application:
    """A driver with its JVM and workers. Their output goes to ``log``; end it with `kill` or ``with``."""

    def __init__(self, job: driver.DriverJob, log: Path) -> None:
        self.log = log
        reading, writing = os.pipe()
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", driver.__name__, replace(job, events_fd=writing).as_json()],
                    stdin=subprocess.PIPE, stdout=output, stderr=output,
                    pass_fds=(writing,), start_new_session=True,
                )  # fmt: skip
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._events = os.fdopen(reading)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the driver's events until it ends. A line cut off by a kill is ignored."""
        for line in self._events:
            if line.endswith("\n"):
                yield json.loads(line)

    def kill(self) -> None:
        """Kill driver and JVM (SIGKILL); the workers exit when their sockets close."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(KILL_SECONDS_MAX)

    def __enter__(self) -> Application:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        self._events.close()
        assert self._process.stdin is not None
        self._process.stdin.close()


def follow(
    job: driver.DriverJob,
    log: Path,
    told: DriverProgress,
    heard: Callable[[DriverProgress], object],
    *,
    kill_when: Callable[[DriverProgress], bool] | None = None,
) -> None:
    """Run a driver until it is done, or until ``kill_when`` returns true: then kill it.

    Raises `SparkFailed` if the driver ends before, with its error if it reported one.
    """
    with Application(job, log) as application:
        for event in application.events():
            told.hear(event)
            heard(told)
            if kill_when is not None and kill_when(told):
                return
    if told.error or kill_when is not None or not told.is_done:
        raise SparkFailed(f"the Spark driver {told.error or 'ended by itself'}; its log is {log}")
