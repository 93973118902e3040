"""Submit queue: passes messages from the application's threads to the loop, which owns everything else.

The queue is a list, and a thread submits by one atomic append, without a lock. So a signal handler may make
other sends, wait for them, or raise: a message is either appended completely, and sent, or not at all.

`SubmitQueue.room`, which the loop updates, limits how many messages may be queued, so that there is a permit
for each. Threads that see the same last permit may exceed it together: the loop, which takes the permits,
then keeps their messages until others have their receipts. A thread that finds the queue full submits a
`WaitingSend` instead and sleeps until the loop has decided.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from geminga.producer.message import OutgoingMessage
from geminga.producer.partition import PartitionProducer
from geminga.transactions import TransactionCore


@dataclass(slots=True, eq=False, repr=False)
class QueuedSend:
    """A message whose send call has returned.

    ``token``: see `geminga.client.publish.completions`. ``partition`` is set if it was chosen already.
    ``urgent``: a sender waits for the receipt. ``gone``: the sender has left, and the message is not sent.
    """

    payload: bytes
    token: Any
    message: OutgoingMessage | None
    partition: PartitionProducer | None = None
    urgent: bool = False
    gone: bool = field(default=False, init=False)


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class WaitingSend(QueuedSend):
    """A message whose sender waits until it is accepted or refused with ``error``.

    ``waits``: it may wait for permits and bytes. ``wake`` wakes the sender; it is called once, on the loop's
    thread.
    """

    waits: bool
    wake: Callable[[], object]
    error: Exception | None = field(default=None, init=False)

    def settle(self, error: Exception | None) -> None:
        """Accept the message, or refuse it with ``error``."""
        self.error = error
        self.wake()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait in the block, then raise the refusal. If the wait is interrupted, the message is dropped."""
        try:
            yield
        except BaseException:  # a signal handler raised, or the task was cancelled
            self.gone = True
            raise
        if self.error is not None:
            raise self.error


@dataclass(slots=True, eq=False, repr=False)
class QueuedWork:
    """A function for the loop to run in order with the messages; ``ended`` is called instead if the loop
    ended before."""

    run: Callable[[], None]
    ended: Callable[[], None]


@dataclass(slots=True, eq=False, repr=False)
class QueuedOperation:
    """An encoded operation of a table, submitted in order with the messages.

    ``add`` appends it to a partition, or raises the refusal; ``may_wait`` returns whether it waits after a
    refusal; ``settle`` is called once, with None when it was added.
    """

    add: Callable[[], None]
    may_wait: Callable[[Exception], bool]
    settle: Callable[[Exception | None], None]
    gone: ClassVar[bool] = False
    token: ClassVar[None] = None
    partition: ClassVar[None] = None
    message: ClassVar[None] = None


@dataclass(eq=False, repr=False)
class Rows:
    """Messages to be submitted together: ``items`` with their payloads and tokens; ``done`` of them are
    submitted. ``transaction`` is that of simple messages, which do not have it themselves."""

    items: list[Any]
    payloads: list[bytes]
    tokens: list[Any]
    transaction: TransactionCore | None = None
    done: int = field(default=0, init=False)


@dataclass(slots=True, eq=False, repr=False)
class TransactionRows:
    """Mark in the queue: the next ``count`` items are simple messages of ``transaction``. Consecutive single
    messages have one mark object, which is queued before each."""

    transaction: TransactionCore
    count: int


PIECE_MESSAGES_MAX = 4096
"""Messages of one call that are submitted in one step, small enough for the loop to start early."""

WAKING = 1 << 62
"""Value of `SubmitQueue.wake_at` after a thread has woken the loop, or while it is about to."""


class SubmitQueue:
    """Queue of submitted messages. ``wake`` has the loop process it soon; it may be called on any thread, and
    more often than needed.

    Payloads and tokens alternate in one list: pairs without an object of their own cost the garbage collector
    nothing. Items other than plain messages take the payload's slot. All numbers here count both halves.

    The loop sets the numbers: ``room`` limits how much may be queued without asking, ``size_max`` the payload
    size of those messages. The loop is woken when ``wake_at`` plain messages are queued, or ``wake_rich_at``
    others.
    """

    __slots__ = ("_usual", "_wake", "pairs", "room", "size_max", "urgent", "wake_at", "wake_rich_at")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.pairs: list[Any] = []
        self.room = 0
        self.size_max = 0
        self.wake_at = self.wake_rich_at = 1
        self._usual = 1
        self.urgent = False
        """Whether a sender waits for the receipt of a queued message."""
        self._wake = wake

    # --- any thread -------------------------------------------------------------------------------

    def offer(self, payload: bytes, token: Any) -> bool:
        """Submit a plain message; return False if the loop must decide."""
        pairs = self.pairs
        if len(pairs) >= self.room or len(payload) > self.size_max:
            return False
        pairs += (payload, token)
        if len(pairs) >= self.wake_at:
            self._wake_now()
        return True

    def offer_within(self, one: TransactionRows, payload: bytes, token: Any) -> bool:
        """Submit a plain message of a transaction behind ``one``, its mark with the count 1; return False if
        the loop must decide."""
        pairs = self.pairs
        if len(pairs) >= self.room or len(payload) > self.size_max:
            return False
        pairs += (one, None, payload, token)
        if len(pairs) >= self.wake_at:
            self._wake_now()
        return True

    def offer_many(self, rows: Rows) -> None:
        """Submit the messages from ``rows.done`` on, as many as the credits allow."""
        pairs, payloads, tokens, items = self.pairs, rows.payloads, rows.tokens, rows.items
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
            both: list[Any] = [None] * (2 * (end - start))
            both[0::2] = items[start:end]
            both[1::2] = tokens[start:end]
            if rows.transaction is not None:
                both[:0] = (TransactionRows(rows.transaction, end - start), None)
            pairs += both
            rows.done = end
            wake_at = self.wake_at
            if wake_at != WAKING and items is not payloads:
                wake_at = min(wake_at, self.wake_rich_at)
            if len(pairs) >= wake_at:
                self._wake_now()

    def offer_urgent(self, payload: bytes, token: Any) -> bool:
        """Submit a plain message whose sender waits; return False if the loop must decide."""
        if len(self.pairs) >= self.room or len(payload) > self.size_max:
            return False
        self.put_and_wake(payload, token, urgent=True)
        return True

    def put(self, item: OutgoingMessage | QueuedSend, token: Any, wake_at: int) -> None:
        """Submit a message without a waiting sender; wake the loop when ``wake_at`` items are queued. A
        `QueuedSend` contains its token."""
        pairs = self.pairs
        pairs += (item, token)
        if self.wake_at != WAKING and len(pairs) >= wake_at:
            self._wake_now()

    def put_and_wake(self, item: Any, token: Any = None, *, urgent: bool = False) -> None:
        """Submit an item, and wake the loop. ``urgent``: open batches are to be closed too."""
        self.pairs += (item, token)
        if urgent:
            self.urgent = True
        self._wake()  # also if another thread is about to: it may be interrupted before

    def _wake_now(self) -> None:
        self.wake_at = WAKING
        try:
            self._wake()
        except BaseException:  # KeyboardInterrupt, perhaps before the loop was woken
            with suppress(Exception):
                self._wake()
            raise

    # --- the loop ---------------------------------------------------------------------------------

    def depth(self) -> int:
        """Return the number of queued items; on any thread."""
        return len(self.pairs) >> 1

    def has_room(self, size: int) -> bool:
        """Return whether an item with a payload of ``size`` bytes may be submitted; on any thread."""
        return len(self.pairs) < self.room and size <= self.size_max

    def begin(self) -> bool:
        """Start an iteration of the loop: later submissions wake it again, or `open` sees them. Return
        whether a sender waits for a receipt."""
        self.wake_at = self._usual
        # Check, then clear: without an interpreter lock an exchange could lose a mark set meanwhile. The
        # message of a mark set before the clearing is queued already.
        if not self.urgent:
            return False
        self.urgent = False
        return True

    def take(self) -> tuple[list[Any], list[Any]]:
        """Take the payloads and tokens of all queued items, in order. They count as queued until `open`
        recounts."""
        pairs = self.pairs
        count = len(pairs)
        self.room -= count
        payloads, tokens = pairs[0:count:2], pairs[1:count:2]
        del pairs[:count]
        return payloads, tokens

    def open(self, room: int, size_max: int, wake_at: int, wake_rich_at: int) -> bool:
        """Set new numbers, in items. Return whether the loop should run at once: messages were submitted
        under the old numbers."""
        self.size_max = size_max
        self.room = room << 1
        self._usual, self.wake_rich_at = wake_at << 1, wake_rich_at << 1
        if self.wake_at != WAKING:
            self.wake_at = self._usual
        return len(self.pairs) >= min(self._usual, self.wake_rich_at)
