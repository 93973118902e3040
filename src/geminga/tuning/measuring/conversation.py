"""How a measured process and the one that measures talk: a line of JSON each way, over pipes.

Events are dictionaries with the key ``event``; orders are single words. A child that fails says so as an
event ``failed`` with the reason, and ends.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from geminga.errors import PulsarException

STOP_SECONDS = 10.0


class ChildFailedError(PulsarException):
    """A measured process ended, or said that it cannot go on."""


class MeasuredProcess:
    """A process of this module's kind: started with a specification, asked by words, heard by events."""

    def __init__(self, module: str, specification: Mapping[str, Any]) -> None:
        self.name = module.rpartition(".")[2]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, name=f"geminga-{self.name}", daemon=True).start()
        self._write(json.dumps(specification))

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, word: str) -> None:
        """Give an order."""
        self._write(word)

    def wait(self, event: str, timeout_seconds: float) -> dict[str, Any]:
        """The next event of a name; others that come before are dropped.

        Raises `ChildFailedError` when the child fails, ends or says nothing for too long.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                got = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise ChildFailedError(
                    f"the {self.name} process did not report {event!r} within {timeout_seconds:g} s"
                ) from None
            if got is None:
                raise ChildFailedError(f"the {self.name} process ended before it reported {event!r}")
            if got["event"] == "failed":
                raise ChildFailedError(f"the {self.name} process failed: {got['reason']}")
            if got["event"] == event:
                return got

    def close(self) -> None:
        """Let it end; one that does not is killed."""
        with contextlib.suppress(OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its end shows as a missing event
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):  # a library's own line
                event = json.loads(line)
                if isinstance(event, dict) and "event" in event:
                    self._events.put(event)
        self._events.put(None)

    def __enter__(self) -> MeasuredProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def report(event: str, **values: Any) -> None:
    """Tell the parent something."""
    print(json.dumps({"event": event, **values}), flush=True)


def await_order(expected: str) -> bool:
    """Wait for a word from the parent; False when it has gone or says another."""
    return sys.stdin.readline().strip() == expected


def run(work: Callable[[dict[str, Any]], None]) -> None:
    """The main function of a child: read the specification, work, and name what fails."""
    try:
        work(json.loads(sys.stdin.readline()))
    except Exception as error:
        report("failed", reason=f"{type(error).__name__}: {error}")
        raise SystemExit(1) from None
