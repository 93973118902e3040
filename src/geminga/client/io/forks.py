"""Forks: a child process must not use its parent's clients.

A child has only the thread that called ``fork``, so nothing of an inherited client works there: every use
raises `ForkedProcessError`. The child detaches its copies of the parent's connections, so that it neither
takes bytes off them nor keeps them open after the parent ends.

A callback or a listener may fork and create clients in the child. It must end the child itself, as
multiprocessing does, and not return into a thread of the library. A child that returns into the thread of an
event loop ends there, because the parent would hang otherwise.
"""

import contextlib
import os
import socket
import weakref
from typing import Protocol


class Inherited(Protocol):
    """Object that a child process must not use."""

    def _after_fork(self) -> None:
        """Refuse further use; called in the child."""


inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()
"""All such objects of this process."""


def detach(sock: socket.socket | None) -> None:
    """Redirect an inherited socket to the null device. Closing it instead would remove it from the selector
    that the child shares with the parent's loop."""
    if sock is None or sock.fileno() < 0:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, sock.fileno(), inheritable=False)
    os.close(nothing)


def _after_fork_in_child() -> None:
    for each in list(inherited):
        with contextlib.suppress(OSError):  # no free descriptor: the others must refuse use nevertheless
            each._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
