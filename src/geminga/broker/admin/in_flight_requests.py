"""Requests waiting for the disk or for a job: when the broker stops they are answered with 503."""

import asyncio

from geminga.broker.admin.errors import AdminRefusal


class InFlightRequests:
    """Futures that requests wait for; used on the broker's loop alone."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_over = False

    async def wait(self, finished: asyncio.Future[None]) -> None:
        """Wait for a future and raise its error; `AdminRefusal` 503 if the broker stops first."""
        self.check()
        self._waiting.add(finished)
        try:
            await finished
        finally:
            self._waiting.discard(finished)

    def check(self) -> None:
        """Raise `AdminRefusal` 503 if the broker stops."""
        if self._is_over:
            raise _ending()

    def end(self) -> None:
        """Fail all waiting requests."""
        self._is_over = True
        for finished in self._waiting:
            if not finished.done():
                finished.set_exception(_ending())


def _ending() -> AdminRefusal:
    return AdminRefusal(503, "the broker ends and did not confirm this; it may still have been done, in part")
