"""Step 5 of publishing: limits of pending messages, in number and in bytes.

There are three limits: a partition's permits, the producer's permits over all its partitions, and the
client's bytes. Messages take from all three or from none, many at a time where many are accepted together.
"""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from geminga.config import check_int
from geminga.errors import MemoryBufferIsFull, MessageTooBig, ProducerQueueIsFull

UNLIMITED = 1 << 62
"""Internal limit for a setting of 0."""


class Permits:
    """A counted limit, which `PendingLimits` takes from and returns to. ``limit`` 0 is without limit. Not
    thread-safe."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit or UNLIMITED
        self.used = 0

    @property
    def free(self) -> int:
        """Number available; 0 also after the limit was lowered below the used number."""
        return max(0, self.limit - self.used)


class ByteBudget:
    """Client's ``memory_limit``: payload bytes of all its producers' messages without a receipt.

    Producers of one client share it across threads, protected by ``lock`` (a ``threading.Lock``). ``limit``
    in bytes; 0 is without limit.
    """

    __slots__ = ("_listeners", "_lock", "limit", "limited", "used")

    def __init__(self, limit: int = 0, lock: AbstractContextManager[object] | None = None) -> None:
        check_int("memory_limit", limit, 0)
        self.limited = limit > 0
        self.limit = limit or UNLIMITED
        self.used = 0
        self._lock: AbstractContextManager[object] = nullcontext() if lock is None else lock
        self._listeners: deque[Callable[[], None]] = deque()

    @property
    def free(self) -> int:
        return max(0, self.limit - self.used)

    def take(self, size: int) -> bool:
        """Take ``size`` bytes, or return False and take nothing."""
        if not self.limited:
            return True
        with self._lock:
            if self.used + size > self.limit:
                return False
            self.used += size
            return True

    def give(self, size: int) -> None:
        """Return ``size`` bytes and wake the waiting senders."""
        if not self.limited or not size:
            return
        with self._lock:
            if size > self.used:
                raise RuntimeError(f"{size} bytes are returned and only {self.used} are taken")
            self.used -= size
            waiting, self._listeners = self._listeners, deque()
        for wake in waiting:
            wake()

    def notify_once(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` once, at the next return of bytes. It must not block: it may run on any thread."""
        with self._lock:
            self._listeners.append(wake)


@dataclass(slots=True, eq=False, repr=False)
class PendingLimits:
    """The three limits of one partition."""

    own: Permits
    shared: Permits
    memory: ByteBudget

    @property
    def free(self) -> int:
        """Number of permits available."""
        return min(self.own.free, self.shared.free)

    def take(self, count: int, size: int) -> bool:
        """Take ``count`` permits and ``size`` bytes, or return False and take nothing."""
        own, shared, memory = self.own, self.shared, self.memory
        if own.used + count > own.limit or shared.used + count > shared.limit:
            return False
        if memory.limited and not memory.take(size):
            return False
        own.used += count
        shared.used += count
        return True

    def give(self, count: int, size: int) -> None:
        """Return permits and bytes. More than was taken is a broken invariant (`RuntimeError`)."""
        own, shared = self.own, self.shared
        if count > own.used or count > shared.used:
            taken = min(own.used, shared.used)
            raise RuntimeError(f"{count} permits are returned and only {taken} are taken")
        own.used -= count
        shared.used -= count
        if self.memory.limited:
            self.memory.give(size)

    def require(self, count: int, size: int, topic: str) -> None:
        """Take permits and bytes, or raise `ProducerQueueIsFull` or `MemoryBufferIsFull`."""
        if not self.take(count, size):
            raise self.refusal(count, size, topic)

    def check_possible(self, count: int, size: int, topic: str) -> None:
        """Raise `MessageTooBig` for a message that exceeds a limit even when nothing is pending."""
        limit = min(self.own.limit, self.shared.limit)
        if count > limit:
            raise MessageTooBig(
                f"{topic}: a message of {size} bytes takes {count} chunks with a permit each, and "
                f"max_pending_messages allows {limit}"
            )
        if size > self.memory.limit:
            raise MessageTooBig(
                f"{topic}: a message of {size} bytes exceeds the client's memory_limit={self.memory.limit}"
            )

    def refusal(self, count: int, size: int, topic: str) -> ProducerQueueIsFull | MemoryBufferIsFull:
        """Return the error for the limit that ``count`` messages of ``size`` bytes exceed."""
        hint = "wait for receipts, raise the limit, or set block_if_queue_full=True"
        if self.own.free < count:
            return ProducerQueueIsFull(
                f"{topic}: {self.own.used} messages are pending of max_pending_messages={self.own.limit} "
                f"for this partition and {count} more are requested; {hint}"
            )
        if self.shared.free < count:
            return ProducerQueueIsFull(
                f"{topic}: {self.shared.used} messages are pending of "
                f"max_pending_messages_across_partitions={self.shared.limit} and {count} more are requested; "
                f"{hint}"
            )
        return MemoryBufferIsFull(
            f"{topic}: {self.memory.used} bytes are pending of the client's memory_limit={self.memory.limit} "
            f"and {size} more are requested; {hint}"
        )


def partition_share(max_pending: int, max_across: int, partitions: int) -> int:
    """Return the permits of each of ``partitions``: its own limit, or its equal share of the common one.

    At least 1, so that a topic with more partitions than permits still sends. 0 is without limit.
    """
    if max_across == 0:
        return max_pending
    share = max(1, max_across // max(1, partitions))
    return share if max_pending == 0 else min(max_pending, share)
