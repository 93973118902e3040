"""Driver that keeps one handle (a partition's producer or consumer) connected.

A `HandleDriver` runs, for one handle and until it is closed or fails for good: lookup, connection,
``attach``, wait until the attachment ends, backoff, and repeat.
"""

import asyncio
import logging
from enum import Enum
from typing import Protocol

from geminga.client.handles.context import ClientContext
from geminga.client.io.pool import BrokerConnection
from geminga.connection.addresses import Address
from geminga.connection.backoff import Backoff
from geminga.errors import AlreadyClosed, ConnectError, PulsarException, Timeout
from geminga.wire.frames import Frame

logger = logging.getLogger("geminga")


HOPS_MAX = 5
"""Assigned brokers that an attachment follows in a row without a delay, each named by the one before."""
LASTING_SECONDS = 1.0
"""Duration in seconds after which an attachment resets the count of assigned brokers in a row."""


class Handle(Protocol):
    """Interface of a driven handle; every method runs on the loop's thread."""

    topic: str
    """The (partition) topic to look up."""

    async def attach(self, connection: BrokerConnection) -> None:
        """Register with the connection, send PRODUCER or SUBSCRIBE, await the answer, start. Raises on
        refusal. The driver then removes the handle's ids from the connection."""

    def on_frame(self, frame: Frame) -> None:
        """Handle a frame addressed to this handle. Never called for a connection it is detached from."""

    def on_detached(self, error: Exception | None) -> None:
        """Note, after a finished `attach`, that the connection is lost (``error``) or the broker closed the
        handle (None). The driver reconnects automatically."""

    def is_terminal(self, error: Exception) -> bool:
        """Return True to stop reconnecting because of ``error``."""

    def on_failed(self, error: Exception) -> None:
        """Note that reconnecting has failed for good. Not called for an error that `HandleDriver.start`
        raises."""


class DriverState(Enum):
    """State of a handle's driver."""

    CONNECTING = "connecting"
    ATTACHED = "attached"
    WAITING = "waiting to reconnect"
    CLOSED = "closed"
    FAILED = "failed"


class HandleDriver:
    """Driver of one handle, used once: `start`, then `close`."""

    def __init__(self, context: ClientContext, handle: Handle) -> None:
        self.state = DriverState.CONNECTING
        self.connection: BrokerConnection | None = None
        self.last_error: Exception | None = None
        """Error of the last attempt to attach again, while there was no other."""
        self._context = context
        self._handle = handle
        self._task: asyncio.Task[None] | None = None
        self._detached: asyncio.Future[Exception | None] | None = None
        self._assigned: Address | None = None
        self._assigned_in = 0
        """Number of the assigned broker's cluster, as counted by `ClientContext.moves`."""
        self._hops = 0
        self._attached_at = 0.0
        self._kept: BrokerConnection | None = None
        self._backoff: Backoff | None = None

    @property
    def attached(self) -> bool:
        return self.state is DriverState.ATTACHED

    @property
    def detached(self) -> asyncio.Future[Exception | None]:
        """Resolves when the newest attachment ends: to the error, or None if the broker closed the handle."""
        assert self._detached is not None
        return self._detached

    async def start(self, timeout: float | None = None) -> None:
        """Attach for the first time; afterwards the driver reconnects automatically.

        Transient errors are retried until ``timeout`` seconds (default: the operation time-out); others are
        raised at once.
        """
        try:
            await self._context.retrying(
                f"opening {self._handle.topic!r}", self._attach_first, self._handle.topic, timeout=timeout
            )
        except BaseException:
            self._detach()
            self.state = DriverState.CLOSED
            raise

    async def close(self) -> None:
        """Stop driving and remove the handle from its connection, without notifying the broker: a handle that
        sends CLOSE_PRODUCER or CLOSE_CONSUMER does so before."""
        if self.state is not DriverState.FAILED:
            self.state = DriverState.CLOSED
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.wait([task])
        self._detach()

    def abort(self) -> None:
        """Stop driving as `close` does, without waiting for the running task to end."""
        if self.state is not DriverState.FAILED:
            self.state = DriverState.CLOSED
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self._detach()

    def keep_connection(self) -> None:
        """Attach to this connection again, without a delay or a lookup, when the broker next closes the
        handle, as it does for a seek."""
        self._kept = self.connection

    def release_connection(self) -> None:
        """Undo `keep_connection`: the broker will not close the handle."""
        self._kept = None

    def reattach(self, error: Exception | None = None) -> None:
        """Detach from the connection, which stays open, and attach again after a backoff delay.

        For a handle whose broker answered with an error that reattaching may fix. ``on_detached`` is called
        with ``error`` before this returns.
        """
        if self.connection is not None:
            self.connection.forget(self._handle)
        self._on_detached(error, None)

    # --- the loop --------------------------------------------------------------------------------

    async def _attach_first(self, topic: str, remaining: float) -> None:
        await self._attach(await self._context.connection_once(topic, remaining))

    async def _run(self) -> None:
        """Attach again, until an attachment stays."""
        try:
            while self.state is DriverState.WAITING:
                if not await self._reconnect():
                    return
            self._task = None
        except Exception as error:
            logger.exception("unexpected error while driving %s", self._handle.topic)
            self._fail(error)

    async def _reconnect(self) -> bool:
        """Attach again, retrying without limit; return False after a terminal error."""
        while True:
            kept, self._kept = self._kept, None
            if kept is None or kept.closed:
                kept = None
                await self._wait_backoff()
            self.state = DriverState.CONNECTING
            try:
                await self._attach(kept or await self._find_connection())
            except (PulsarException, OSError) as error:
                self.state, self.last_error = DriverState.WAITING, error
                if self._context.closed:
                    self._fail(AlreadyClosed("the client is closed"))
                    return False
                transient = isinstance(error, (ConnectError, Timeout)) and error.retriable
                if not transient and self._handle.is_terminal(error):
                    self._fail(error)
                    return False
                self._context.outages.failed(self, self._handle.topic, error, reached=not transient)
                continue
            peer = self.connection.peer if self.connection else ""
            self._context.outages.ended(self, self._handle.topic, peer)
            if not self._hops:
                self._backoff = None
            return True

    async def _find_connection(self) -> BrokerConnection:
        assigned, self._assigned = self._assigned, None
        if assigned is not None and self._assigned_in == self._context.moves:
            try:
                return await self._context.pool.get(assigned)
            except (PulsarException, OSError) as error:
                logger.info("assigned broker %s of %s: %s", assigned, self._handle.topic, error)
        topic, timeout = self._handle.topic, self._context.settings.operation_timeout_seconds
        try:
            async with asyncio.timeout(timeout):
                return await self._context.connection_once(topic, timeout)
        except TimeoutError as error:
            if isinstance(error, PulsarException):
                raise
            raise Timeout(f"connecting to the broker of {topic!r} took more than {timeout:g} s") from None

    async def _wait_backoff(self) -> None:
        # A broker that names the new owner has prepared it: no delay (algorithms.md section 14). But two
        # brokers that name each other would be asked thousands of times a second.
        if self._assigned is None or self._hops > HOPS_MAX:
            self._backoff = self._backoff or self._context.backoff()
            await asyncio.sleep(self._backoff.next())

    async def _attach(self, connection: BrokerConnection) -> None:
        self.connection = connection
        self._detached = self._context.loop.create_future()
        connection.watch(self._handle, self._on_detached)
        try:
            await self._handle.attach(connection)
        except BaseException:
            self._detach()
            raise
        self.state, self.last_error = DriverState.ATTACHED, None
        self._attached_at = self._context.now()
        if connection.closed and not self._detached.done():
            self._on_detached(ConnectError(f"the connection to {connection.peer} was lost"), None)
        elif self._detached.done():
            # Detached between the broker's answer and now: the handle was not notified yet.
            self._notify_detached(self._detached.result())

    def _on_detached(self, error: Exception | None, assigned: Address | None) -> None:
        self._assigned = assigned
        self._assigned_in = self._context.moves
        detached = self._detached
        if detached is None or detached.done():
            return
        lasted = (
            self.state is DriverState.ATTACHED and self._context.now() - self._attached_at >= LASTING_SECONDS
        )
        self._hops = 0 if assigned is None or lasted else self._hops + 1
        detached.set_result(error)
        if self.state is DriverState.ATTACHED:
            self._notify_detached(error)

    def _notify_detached(self, error: Exception | None) -> None:
        self.state = DriverState.WAITING
        if isinstance(error, ConnectError) and self.connection is not None and self.connection.closed:
            self._context.outages.lost(self, self.connection.peer)
        self.connection = None
        self._handle.on_detached(error)
        if self._task is None:
            self._task = self._context.task(self._run(), f"geminga {self._handle.topic}")

    def _detach(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.forget(self._handle)
        if self.state in (DriverState.CLOSED, DriverState.FAILED):
            self._context.outages.forget(self)

    def _fail(self, error: Exception) -> None:
        self.state = DriverState.FAILED
        self._detach()
        self._handle.on_failed(error)
