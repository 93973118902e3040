"""Communication between the measuring process and its child processes: JSON lines over pipes.

Events are dictionaries with the key ``event``; commands are single words. A child that fails sends an event
``failed`` with the reason, and exits.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from geminga.errors import PulsarException

STOP_SECONDS = 10.0


class ChildFailedError(PulsarException):
    """A child process ended or failed."""


class MeasuredProcess:
    """A child process: started with a specification, controlled by commands, reporting by events."""

    def __init__(self, module: str, specification: Mapping[str, Any]) -> None:
        self.name = module.rpartition(".")[2]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, name=f"geminga-{self.name}", daemon=True).start()
        self.tell(json.dumps(specification))

    def tell(self, line: str) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the missing event shows the child's end
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def wait(self, event: str, timeout_seconds: float) -> dict[str, Any]:
        """Return the next event of a name; other events before it are dropped.

        Raises `ChildFailedError` if the child fails, exits, or sends nothing for too long.
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
        """Ask the child to exit; kill it if it does not."""
        with contextlib.suppress(OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):  # a line printed by a library
                event = json.loads(line)
                if isinstance(event, dict) and "event" in event:
                    self._events.put(event)
        self._events.put(None)

    def __enter__(self) -> MeasuredProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def report(event: str, **values: Any) -> None:
    """Send an event to the parent."""
    print(json.dumps({"event": event, **values}), flush=True)


def await_order(expected: str) -> bool:
    """Wait for a command of the parent; return False if it has ended or sent another command."""
    return sys.stdin.readline().strip() == expected


def run(work: Callable[[dict[str, Any]], None]) -> None:
    """Run a child's main function: read the specification, call the function, report an error.

    Ctrl-C, which the parent gets too, ends the child without a word.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        work(json.loads(sys.stdin.readline()))
    except Exception as error:
        report("failed", reason=f"{type(error).__name__}: {error}")
        raise SystemExit(1) from None
