"""Forks: a child process must not use its parent's clients, nor return into the library's threads.

A child has only the thread that called ``fork``. Nothing of an inherited client works there: every use raises
`ForkedProcessError`, also in a call that was waiting when a signal handler forked. The child closes its
copies of the parent's connections, so that it neither takes bytes off them nor keeps them open after the
parent ends.

If a callback or a listener forks, the child's only thread is one of the library's. While the application's
code runs, it may do anything, including creating clients. When it returns there is nothing to continue: no
other message is the child's to handle, and no thread could wake this one. So the process ends, as when the
function of a thread forks and returns: clients that the child created send pending messages, standard output
and error are flushed, and the exit code is 0, that of a ``SystemExit``, or 1 after any other exception, which
is logged.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from typing import Protocol

from geminga import exits

logger = logging.getLogger("geminga")

generation = 0
"""Number of forks between the process that loaded this module and the current one."""

stray = 0
"""Thread id, in a child that application code forked on one of the library's threads; else 0."""


class ForkedConnection(Protocol):
    """Connection whose socket a child closes."""

    def descriptor(self) -> int:
        """Return the socket's file descriptor; -1 without a socket."""


connections: weakref.WeakSet[ForkedConnection] = weakref.WeakSet()
"""All connections of this process."""


class _ProcessState(threading.local):
    is_ours = False


_here = _ProcessState()


def thread_is_ours() -> None:
    """Mark the calling thread as one of the library's that calls application code; may be called again."""
    _here.is_ours = True


def returned(error: BaseException | None = None) -> None:
    """Note that application code returned or raised; to be called where one of the library's threads called
    it. Does not return in a child that was forked there."""
    if not stray or stray != threading.get_ident():
        return
    code = 1
    try:
        code = _exit_code(error)
    finally:
        exits.end_at_once(code)


def _exit_code(error: BaseException | None) -> int:
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        logger.error("a forked child ends: the callback that forked it raised", exc_info=error)
        return 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _after_fork_in_child() -> None:
    global generation, stray
    generation += 1
    stray = threading.get_ident() if _here.is_ours else 0
    _detach_sockets()


def _detach_sockets() -> None:
    """Redirect the socket descriptors to the null device. Closing them instead would remove the sockets from
    the selector that the child shares with the parent's loop."""
    descriptors = [connection.descriptor() for connection in list(connections)]
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        for descriptor in descriptors:
            if descriptor >= 0:
                os.dup2(nothing, descriptor, inheritable=False)
    finally:
        os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
