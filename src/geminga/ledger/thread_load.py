"""How busy a thread is, as the operating system counts it, stepping back behind it, and whether that helps:
for work that is to leave room."""

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
"""By so much a thread that steps back is nicer, where threads have a niceness."""
NICENESS_MAX = 19
TURN_NANOSECONDS = 100_000_000
"""The longest that Linux has."""
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
"""The number of the system call, for C libraries do not know it: glibc does since 2.41."""


def lower_priority(step: int = STEP) -> None:
    """The calling thread leaves the processor to others that want it: publishing comes first."""
    if sys.platform == "linux":
        try:
            number = threading.get_native_id()
            before = os.getpriority(os.PRIO_PROCESS, number)
            os.setpriority(os.PRIO_PROCESS, number, min(before + step, NICENESS_MAX))
        except OSError as error:
            logger.debug("a thread keeps its priority: %s", error)


def step_aside() -> None:
    """The calling thread takes what processor time nobody else wants, where the system knows such threads.

    To others that wake up, a processor that runs one of them is as good as one that runs nothing: they are
    put there, and need not wait until it has had its turn, as they have to for whoever is merely nice.
    """
    if sys.platform == "linux":
        _lengthen_turns()
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        except OSError as error:
            logger.debug("a thread keeps its scheduling policy: %s", error)


def _lengthen_turns() -> None:
    """Have the calling thread's turns be as long as Linux has them (since 6.12, before that they stay).

    In a session of its own it is the session that has turns, whatever its threads are, and who wakes up
    during one waits, up to the next tick of the clock; but not who has shorter turns: he goes first.
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
    """Whether the processor time of this process and its children is limited by a quota of Linux's, as
    containers have them: then what one takes another one lacks, whatever their priorities are."""
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
    """What the files of a name say from a group up to the root; in a container the group may not be there."""
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
    """Of the thread that makes it. `take` may be called on any other, but on one at a time."""

    def __init__(self) -> None:
        self._path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        self._at = time.monotonic()
        self._ran = self._seconds()

    def take(self) -> float | None:
        """The part of the time since the last call in which the thread ran, or would have if there had been a
        processor, 0 to 1; None where that is not known (not on Linux, or the thread has ended)."""
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
