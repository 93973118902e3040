"""Forks: what a child process finds of its parent's clients, and how it leaves the threads that are theirs.

Of all threads a child has the one that called ``fork``. Nothing of an inherited client works there: every use
raises `ForkedProcessError`, and who was waiting when a signal's handler forked is told so. The parent's
connections are not the child's: it lets go of them, so that it neither takes bytes off them nor keeps them
open when the parent has gone.

Where a callback or a listener forks, the child's only thread is one of the library's. As long as the
application's code runs it may do what it likes, with clients of its own too. When it comes back there is
nothing to come back to: no other message is the child's to handle, and nobody would ever wake the thread. The
process ends, as it does where the function of a thread has forked and returns: clients that the child made
send what is pending, standard output and error are flushed, and the exit code is 0, that of a ``SystemExit``,
or 1 behind anything else that was raised, which is logged.
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
"""How many forks lie between the process that loaded this and the one that looks."""

stray = 0
"""The thread, in a child that the application's code has forked on one of the library's; else 0."""


class ForkedConnection(Protocol):
    """What a child lets go of."""

    def descriptor(self) -> int:
        """That of the socket; -1 when there is none."""


connections: weakref.WeakSet[ForkedConnection] = weakref.WeakSet()
"""Every connection of this process."""


class _ProcessState(threading.local):
    is_ours = False


_here = _ProcessState()


def thread_is_ours() -> None:
    """The calling thread runs the library's code and calls the application's; this may be said again."""
    _here.is_ours = True


def returned(error: BaseException | None = None) -> None:
    """The application's code has come back, or has raised: to be called where one of the library's threads
    called it. Does not return in a child that was forked there."""
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
        logger.error("a forked child ends: the callback that forked it has raised", exc_info=error)
        return 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _after_fork_in_child() -> None:
    global generation, stray
    generation += 1
    stray = threading.get_ident() if _here.is_ours else 0
    _let_go()


def _let_go() -> None:
    """The descriptors become others, of nothing. To close them would not do: the child shares the selector of
    the parent's loop, which would forget the sockets."""
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
