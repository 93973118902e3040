"""Servers of tests, as processes with a log."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

START_SECONDS_MAX = 120.0


class Stoppable(ABC):
    """Something that runs until `stop`, or to the end of a with statement."""

    @abstractmethod
    def stop(self) -> None:
        """Kill all processes; may be called repeatedly."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


@dataclass(slots=True)
class Process:
    """A process with its log; killed with all its children."""

    name: str
    log: Path
    process: subprocess.Popen[bytes]

    @staticmethod
    def start(name: str, folder: Path, command: list[str], **environment: str) -> Process:
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, env={**os.environ, **environment}, cwd=folder, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        return Process(name, log, process)

    def wait_for_port(self, port: int) -> None:
        """Wait until a port is open. Raises `TimeoutError` with the end of the log."""
        self.wait_until(lambda: _listens(port))

    def wait_for_line(self, pattern: str) -> re.Match[str]:
        """Wait for a line in its log. Raises `TimeoutError` with the end of the log."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            match = re.search(pattern, self.log.read_text(errors="replace"))
            found.extend([match] if match else [])
            return bool(found)

        self.wait_until(look)
        return found[0]

    def wait_until(self, is_up: Callable[[], bool], timeout_seconds: float = START_SECONDS_MAX) -> None:
        """Wait until ``is_up`` returns True. Raises `TimeoutError` with the end of the log."""
        deadline = time.monotonic() + timeout_seconds
        while not is_up():
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = self.log.read_text(errors="replace")[-3000:]
                raise TimeoutError(f"{self.name} did not come up; the end of its log: {tail}")
            time.sleep(0.1)

    def suspend(self) -> None:
        """Freeze it (SIGSTOP): connections stay open, nothing answers."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `suspend`."""
        os.killpg(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill it with its children (SIGKILL); may be called repeatedly."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
