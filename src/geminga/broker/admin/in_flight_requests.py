"""Requests that wait for the disk or for a job: when the broker ends they are answered, not hung up on."""

from __future__ import annotations

import asyncio

from geminga.broker.admin.errors import AdminRefusal


class InFlightRequests:
    """What requests wait for. It is used on the broker's loop alone."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_over = False

    async def wait(self, finished: asyncio.Future[None]) -> None:
        """Wait for what a request waits for; raises what that failed with, at the end `AdminRefusal` 503."""
        self.check()
        self._waiting.add(finished)
        try:
            await finished
        finally:
            self._waiting.discard(finished)

    def check(self) -> None:
        """Whether it makes sense to wait any longer: `AdminRefusal` 503 when the broker ends."""
        if self._is_over:
            raise _ending()

    def end(self) -> None:
        """Nobody waits any longer."""
        self._is_over = True
        for finished in self._waiting:
            if not finished.done():
                finished.set_exception(_ending())


def _ending() -> AdminRefusal:
    return AdminRefusal(503, "the broker ends and did not confirm this; it may still have been done, in part")
