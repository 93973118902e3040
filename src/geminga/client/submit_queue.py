"""Handing over: how messages get from the application's threads to the loop, which owns everything else.

There is one place for it, a list, and one atomic step: appending. A thread takes no lock on the way, so a
signal's handler may interrupt a send at any point, make other sends, wait for them, or raise: what was
appended is sent, what was not is not, and nothing is half done.

Whether a message may come is told from a number that the loop keeps (`SubmitQueue.room`): so many messages may
lie here, and every one of them is sure of its permit. A thread that finds no room, or whose message needs a
closer look, hands over a question instead (`WaitingSend`) and sleeps until the loop has answered it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from geminga.client.waiter import Waiter

if TYPE_CHECKING:
    from geminga.client.many import Rows
    from geminga.producer.message import KeyedMessage, OutgoingMessage
    from geminga.producer.partition import PartitionProducer


class QueuedSend:
    """A message with more than a payload, on its way to the loop.

    ``partition`` is where it must go when that was decided before. ``urgent``: somebody waits for its
    receipt.
    """

    __slots__ = ("message", "partition", "payload", "token", "urgent")

    def __init__(
        self,
        payload: bytes,
        token: Any,
        message: OutgoingMessage | None,
        partition: PartitionProducer | None,
        urgent: bool,
    ) -> None:
        self.payload = payload
        self.token = token
        self.message = message
        self.partition = partition
        self.urgent = urgent


class WaitingSend(QueuedSend):
    """A message whose sender waits until it is taken or refused.

    ``waits``: it may stand in line for permits and bytes. `settle` is called once, on the loop's thread; a
    sender that has left (``gone``) is not sent for any more.
    """

    __slots__ = ("error", "gone", "waits")

    def __init__(
        self,
        payload: bytes,
        token: Any,
        message: OutgoingMessage | None,
        partition: PartitionProducer | None,
        *,
        urgent: bool,
        waits: bool,
    ) -> None:
        super().__init__(payload, token, message, partition, urgent)
        self.waits = waits
        self.gone = False
        self.error: Exception | None = None

    def settle(self, error: Exception | None) -> None:
        """Taken, or refused with ``error``."""
        self.error = error
        self._wake()

    def _wake(self) -> None:
        raise NotImplementedError


class ThreadWaitingSend(WaitingSend):
    """See `WaitingSend`."""

    __slots__ = ("_waiter",)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waiter = Waiter()

    def _wake(self) -> None:
        self._waiter.wake()

    def wait(self) -> None:
        """Raises what it was refused with."""
        try:
            self._waiter.wait()
        except BaseException:  # a signal's handler raised: the message is not wanted any more
            self.gone = True
            raise
        if self.error is not None:
            raise self.error


class TaskWaitingSend(WaitingSend):
    """See `WaitingSend`."""

    __slots__ = ("_future",)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        """Raises what it was refused with."""
        try:
            await self._future
        except asyncio.CancelledError:
            self.gone = True
            raise
        if self.error is not None:
            raise self.error


class OptimisticSend(WaitingSend):
    """A message whose sender went on, and that found no permit after all: several threads had looked at the
    same number at once. It waits as if its sender did; ``fail`` tells its token what it is refused with."""

    __slots__ = ("_fail", "is_settled")

    def __init__(self, handed: QueuedSend, fail: Callable[[Any, Exception], None]) -> None:
        super().__init__(
            handed.payload, handed.token, handed.message, handed.partition, urgent=handed.urgent, waits=True
        )
        self._fail = fail
        self.is_settled = False

    def _wake(self) -> None:
        self.is_settled = True
        if self.error is not None:
            self._fail(self.token, self.error)


class QueuedWork:
    """Anything else that the loop is to do in its place between the messages; ``ended`` is called instead
    when the loop has ended before it came to that."""

    __slots__ = ("ended", "run")

    def __init__(self, run: Callable[[], None], ended: Callable[[], None]) -> None:
        self.run = run
        self.ended = ended


PIECE_MESSAGES_MAX = 4096
"""Messages of one call that are handed over in one step: the loop shall have something to do early."""

WAKING = 1 << 62
"""`SubmitQueue.wake_at` when some thread has told the loop, or is about to."""


class SubmitQueue:
    """The place. ``wake`` has the loop look at it soon; it may be called on any thread, and more often than
    needed.

    Items lie in pairs, payload and token, one behind the other: a pair that is no object of its own costs the
    garbage collector nothing. Anything else than a plain message takes the payload's place. All numbers here
    count both halves.

    The loop keeps the numbers: ``room`` is how much may lie here without a question, ``size_max`` the largest
    payload of those. The loop is told when ``wake_at`` of plain messages lies here, or ``tell_rich_at`` of
    others.
    """

    __slots__ = ("_usual", "_wake", "pairs", "room", "size_max", "tell_rich_at", "urgent", "wake_at")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.pairs: list[Any] = []
        self.room = 0
        self.size_max = 0
        self.wake_at = self.tell_rich_at = 1
        self._usual = 1
        self.urgent = False
        """Somebody waits for the receipt of what lies here."""
        self._wake = wake

    # --- any thread -------------------------------------------------------------------------------

    def offer(self, payload: bytes, token: Any) -> bool:
        """Hand a plain message over; False when the loop has to be asked."""
        pairs = self.pairs
        if len(pairs) >= self.room or len(payload) > self.size_max:
            return False
        try:
            pairs += (payload, token)
            if len(pairs) >= self.wake_at:
                self._tell_now()
        except BaseException:
            self._tell_anyway()
            raise
        return True

    def offer_many(self, rows: Rows) -> None:
        """`offer` for the plain messages from ``rows.done`` on, as many as need no question."""
        pairs, payloads, tokens = self.pairs, rows.payloads, rows.tokens
        items: list[Any] = payloads if rows.items is None else rows.items
        count = len(payloads)
        while rows.done < count:
            start = rows.done
            end = min(count, start + PIECE_MESSAGES_MAX, start + ((self.room - len(pairs)) >> 1))
            if end <= start:
                return
            sizes_of = payloads[start:end]
            if max(map(len, sizes_of)) > self.size_max:
                sizes = enumerate(map(len, sizes_of), start)
                end = next(index for index, size in sizes if size > self.size_max)
                if end == start:
                    return
            piece = items[start:end]
            both: list[Any] = [None] * (2 * (end - start))
            both[0::2] = piece
            both[1::2] = tokens[start:end]
            try:
                pairs += both
                rows.done = end
                wake_at = self.wake_at
                if wake_at != WAKING and rows.items is not None:
                    wake_at = min(wake_at, self.tell_rich_at)
                if len(pairs) >= wake_at:
                    self._tell_now()
            except BaseException:
                self._tell_anyway()
                raise

    def offer_urgent(self, payload: bytes, token: Any) -> bool:
        """`offer` for a sender that waits for the receipt."""
        if len(self.pairs) >= self.room or len(payload) > self.size_max:
            return False
        self._put_and_tell((payload, token), urgent=True)
        return True

    def put(self, handed: QueuedSend | KeyedMessage, token: Any, *, wake_at: int) -> None:
        """Hand a message over that nobody waits for; the loop is told when ``wake_at`` lies here. A `QueuedSend`
        has its token with it."""
        pairs = self.pairs
        try:
            pairs += (handed, token)
            if self.wake_at != WAKING and len(pairs) >= wake_at:
                self._tell_now()
        except BaseException:
            self._tell_anyway()
            raise

    def put_and_tell(self, item: QueuedSend | QueuedWork, *, urgent: bool = False) -> None:
        """Hand something over that somebody is going to wait for."""
        self._put_and_tell((item, None), urgent)

    def _put_and_tell(self, pair: tuple[Any, Any], urgent: bool) -> None:
        try:
            self.pairs += pair
            if urgent:
                self.urgent = True
            # In any case: a send that this one has interrupted may be just about to tell, and cannot.
            self._wake()
        except BaseException:
            self._tell_anyway()
            raise

    def _tell_now(self) -> None:
        self.wake_at = WAKING
        self._wake()

    def _tell_anyway(self) -> None:
        """A signal's handler raised in the middle of a send: whether the loop was told is not known."""
        with suppress(Exception):
            self._wake()

    # --- the loop ---------------------------------------------------------------------------------

    def depth(self) -> int:
        """How many items lie here; on any thread."""
        return len(self.pairs) >> 1

    def has_room(self, size: int) -> bool:
        """Whether an item with a payload of ``size`` bytes needs no question; on any thread."""
        return len(self.pairs) < self.room and size <= self.size_max

    def begin(self) -> bool:
        """The loop looks: whoever comes from here on tells it again, or is seen by `open`. Whether somebody
        waits for a receipt."""
        self.wake_at = self._usual
        # Not one exchange: where no lock makes that a single step, a thread's mark that came in the midst of
        # it would be lost. One that came before the mark is wiped has its message here already.
        if not self.urgent:
            return False
        self.urgent = False
        return True

    def take(self) -> tuple[list[Any], list[Any]]:
        """Payloads and tokens of everything that lies here, in order. Until `open` has counted it, it counts
        as if it still lay."""
        pairs = self.pairs
        count = len(pairs)
        self.room -= count
        payloads, tokens = pairs[0:count:2], pairs[1:count:2]
        del pairs[:count]
        return payloads, tokens

    def open(self, room: int, size_max: int, wake_at: int, tell_rich_at: int) -> bool:
        """The new numbers, in items. Whether the loop should look at once: somebody came and saw those of
        before."""
        self.size_max = size_max
        self.room = room << 1
        self._usual, self.tell_rich_at = wake_at << 1, tell_rich_at << 1
        if self.wake_at != WAKING:
            self.wake_at = self._usual
        return len(self.pairs) >= min(self._usual, self.tell_rich_at)
