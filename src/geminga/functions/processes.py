"""Supervisor of several instances, each a process: starts, restarts and stops them.

An instance reads its settings from its standard input, which stays open: if the parent dies, the pipe closes
and the instance shuts down.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from geminga.functions.settings import FunctionSettings

logger = logging.getLogger("geminga.functions")

EXIT_USAGE = 2
BACKOFF_SECONDS = (0.2, 60.0)
STEADY_SECONDS = 60.0
"""Run time after which the restart delay of an instance is reset."""


class _Instance:
    def __init__(self, settings: FunctionSettings) -> None:
        self.settings = settings
        self.delay = BACKOFF_SECONDS[0]
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.due_at = 0.0

    def start(self) -> None:
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "geminga.functions.instance"], stdin=subprocess.PIPE
        )
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # the process has ended already: the next poll sees it
            self.process.stdin.write(self.settings.to_json().encode() + b"\n")
            self.process.stdin.flush()

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(OSError):
                assert self.process.stdin is not None
                self.process.stdin.close()


def supervise(
    settings: FunctionSettings,
    say: Callable[[str], object] = logger.warning,
    stop: threading.Event | None = None,
) -> int:
    """Run ``parallelism`` instances until Ctrl-C, SIGTERM or ``stop``; return 0, or 2 if one cannot start.

    The second Ctrl-C or SIGTERM kills them and ends the process. An instance that dies is restarted, after
    0.2 s at first and twice as long each time up to a minute, and reported with `say`.
    Raises `InvalidConfiguration` for settings that cannot be passed to other processes.
    """
    asked = stop or threading.Event()
    instances = [
        _Instance(replace(settings, instance_id=settings.instance_id + n, parallelism=1))
        for n in range(settings.parallelism)
    ]
    settings.to_json()
    before = {}
    if threading.current_thread() is threading.main_thread():
        for one in (signal.SIGINT, signal.SIGTERM):
            before[one] = signal.signal(one, lambda number, _: _asked_by(number, asked, instances))
    code = 0
    try:
        for instance in instances:
            instance.start()
        while not asked.is_set() and not code:
            code = _look_after(instances, say)
            asked.wait(0.1)
    finally:
        _end_all(instances, settings.drain_seconds + 10, say)
        for number, handler in before.items():
            signal.signal(number, handler)
    return code


def _asked_by(number: int, asked: threading.Event, instances: list[_Instance]) -> None:
    if asked.is_set():
        for instance in instances:
            if instance.process is not None:
                instance.process.kill()
        os._exit(128 + number)
    asked.set()


def _look_after(instances: list[_Instance], say: Callable[[str], object]) -> int:
    now = time.monotonic()
    for instance in instances:
        process = instance.process
        if process is None:
            if now >= instance.due_at:
                instance.start()
            continue
        code = process.poll()
        if code is None:
            continue
        number, lived = instance.settings.instance_id, now - instance.started_at
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        if code == EXIT_USAGE:
            say(f"geminga: instance {number} cannot run; the others are stopped")
            return EXIT_USAGE
        if lived > STEADY_SECONDS:
            instance.delay = BACKOFF_SECONDS[0]
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        say(
            f"geminga: instance {number} (process {process.pid}) ended with {how} after {lived:.1f} s; "
            f"it starts again in {instance.delay:.1f} s"
        )
        instance.process, instance.due_at = None, now + instance.delay
        instance.delay = min(BACKOFF_SECONDS[1], instance.delay * 2)
    return 0


def _end_all(instances: list[_Instance], seconds: float, say: Callable[[str], object]) -> None:
    for instance in instances:
        instance.end()
    until = time.monotonic() + seconds
    for instance in instances:
        if instance.process is None:
            continue
        try:
            instance.process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            say(f"geminga: instance {instance.settings.instance_id} does not end; killed")
            instance.process.kill()
            instance.process.wait()
