"""Load and priority of threads: how busy a thread is, how background threads lower their priority, and
whether priorities help at all."""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import sys
import threading
import time

logger = logging.getLogger("geminga.ledger")

STEP = 5
"""Niceness added to background threads (Linux)."""
NICENESS_MAX = 19
TURN_NANOSECONDS = 100_000_000
"""Longest time slice that Linux allows: 0.1 s."""
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
"""Number of the system call, for which glibc has no function before 2.41."""


def lower_priority(step: int = STEP) -> None:
    """Raise the niceness of the calling thread, so that publishing comes first."""
    if sys.platform == "linux":
        try:
            number = threading.get_native_id()
            before = os.getpriority(os.PRIO_PROCESS, number)
            os.setpriority(os.PRIO_PROCESS, number, min(before + step, NICENESS_MAX))
        except OSError as error:
            logger.debug("cannot lower the priority of a thread: %s", error)


def step_aside() -> None:
    """Give the calling thread only idle processor time (SCHED_IDLE on Linux).

    The kernel treats a processor that runs such a thread like an idle one: other threads that wake up run
    there at once, and do not wait for the end of its time slice, as for a thread that is only nice.
    """
    if sys.platform == "linux":
        _lengthen_turns()
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        except OSError as error:
            logger.debug("a thread keeps its scheduling policy: %s", error)


def _lengthen_turns() -> None:
    """Give the calling thread the longest time slice of Linux (since 6.12; no effect before).

    In a session of its own the session has the time slice, not its threads, and a thread that
    wakes up during it waits up to the next clock tick, unless it has a shorter time slice: it runs first.
    """
    number = _SCHED_SETATTR.get(os.uname().machine)
    if number is None:
        return
    with contextlib.suppress(Exception):
        import ctypes

        niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        # size, policy (the usual one), flags, niceness, priority, runtime, deadline, period
        wanted = _SCHED_ATTR.pack(_SCHED_ATTR.size, 0, 0, niceness, 0, TURN_NANOSECONDS, 0, 0)
        ctypes.CDLL(None).syscall(ctypes.c_long(number), 0, wanted, 0)


def is_rationed(root: str = "/sys/fs/cgroup", listed: str = "/proc/self/cgroup") -> bool:
    """Whether a Linux quota limits the processor time of this process and its children, as in containers: a
    child's processor time is then taken from this process, at any priority."""
    found: list[str] = []
    try:
        with open(listed) as file:
            for line in file.read().splitlines():
                _, controllers, path = line.split(":", 2)
                if not controllers:  # version 2: "max 100000", or the quota and the period
                    found += _in_each(root, path, "cpu.max") + _in_each(f"{root}/unified", path, "cpu.max")
                elif "cpu" in controllers.split(","):  # version 1: -1, or the quota
                    found += _in_each(f"{root}/{controllers}", path, "cpu.cfs_quota_us")
    except (OSError, ValueError):
        return False
    return any(not each.startswith(("max", "-1")) for each in found)


def _in_each(root: str, path: str, name: str) -> list[str]:
    """Read a cgroup's files of a name up to the root; in a container the cgroup may not be visible."""
    found = []
    parts = [each for each in path.split("/") if each]
    for count in range(len(parts) + 1):
        try:
            with open("/".join((root, *parts[:count], name))) as file:
                found.append(file.read().strip())
        except OSError:
            continue
    return found


class ThreadLoad:
    """Load of the thread that creates it. Any thread may call `take`, one at a time."""

    def __init__(self) -> None:
        self._path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        self._at = time.monotonic()
        self._ran = self._seconds()

    def take(self) -> float | None:
        """Return the share of time since the last call (0 to 1) in which the thread ran or waited for a
        processor; None if unknown (not on Linux, or the thread has ended)."""
        at, ran = time.monotonic(), self._seconds()
        before_at, before = self._at, self._ran
        self._at, self._ran = at, ran
        if ran is None or before is None or at <= before_at:
            return None
        return min(1.0, max(0.0, (ran - before) / (at - before_at)))

    def _seconds(self) -> float | None:
        try:
            with open(self._path, "rb") as file:
                ran, waited, *_ = file.read().split()
                return (int(ran) + int(waited)) / 1e9
        except (OSError, ValueError):
            return None
