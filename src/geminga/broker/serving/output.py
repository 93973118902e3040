"""Standard output and standard error of a broker, on which no write waits for the reader."""

from __future__ import annotations

import contextlib
import os
import select
from typing import TextIO


class Output:
    """Text written to the descriptor of ``stream``; None writes nothing.

    Text is dropped while its pipe is full, as a write would block the event loop and with it every client
    and signal, and where it cannot be written (its pipe is closed, the disk is full).
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._fd = -1
        self._dropped = 0
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):  # it is closed
                stream.flush()
                self._fd = stream.fileno()

    def write(self, text: str) -> None:
        """Write text, preceded by a line about what was dropped before."""
        if self._fd < 0:
            return
        if self._dropped:
            text = f"geminga: {self._dropped} lines are missing here: the pipe was full\n{text}"
        data = text.encode(errors="backslashreplace")
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        for start in range(0, len(data), select.PIPE_BUF):
            if not poll.poll(0):
                self._dropped += 1
                return
            with contextlib.suppress(OSError):
                os.write(self._fd, data[start : start + select.PIPE_BUF])
        self._dropped = 0

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""
