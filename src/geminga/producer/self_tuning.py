"""Producers that tune themselves: from a latency budget to delay, batch limits and partition stay.

A broker's cost is mainly the number of entries, so a batch should stay open as long as the budget allows.
That is the budget minus the time for transmission and receipt, which is measured: for each receipt, the time
that its entry took beyond the planned delay of its batch. From two histograms,

* that *overhead*, in parts of the budget, weighted by messages, and
* the *waits*: the time from a message's arrival to the close of its batch, in parts of its delay (a steady
  stream fills a batch evenly, a burst comes at its start, and the first message waits longest),

follows for every delay the share of messages that would miss the budget; the delay is the longest with at
most `MISSES_MAX`. Old operations lose weight with number and age. There are no experiments and no gain to
tune: a change for the worse shows in the next solution, one for the better as old values fade.

Messages that no delay could save (their overhead leaves less than the shortest one) do not count: a hanging
partition must not make the others send tiny batches, and an overloaded broker must not get more entries
because it is late.

If no other message would join a batch, waiting is useless: batches then close at once, until messages arrive
close enough together again.

No clock and no random numbers: times are arguments, and the same calls give the same results.
"""

from itertools import accumulate

from geminga.producer.batching import BatchTiming
from geminga.producer.operation import SendOperation
from geminga.producer.settings import MAX_MESSAGES_LIMIT

MISSES_MAX = 0.008
"""Maximum share of messages that may miss the budget: the 99th percentile stays within it, with a margin."""
DELAY_PARTS_MIN = 1 / 8
"""Shortest delay as a part of the budget. Shorter ones cost the broker much and gain little."""
FIRST_DELAY_PARTS = 1 / 4
"""Initial delay, as a part of the budget."""
GROWTH = 1.25
"""Maximum growth of a delay from one solution to the next: larger batches take longer themselves."""
OVERHEAD_BINS = 64
WAIT_BINS = 32
MEMORY_OPERATIONS = 512
"""Number of further operations after which an operation's weight has fallen to 1/e."""
MEMORY_SECONDS = 20.0
"""Time after which an operation's weight has halved."""
BATCH_BYTES_MAX = 1 << 20
"""Maximum payload bytes of a batch: for larger entries only the bytes matter."""
MEMORY_PART = 4
"""Inverse of the largest share of the client's memory limit for a batch."""
JOINS_MIN = 0.05
"""Below this share of batches that get a second message, batches do not wait."""
JOINS_MEMORY = 32
_POINTS = 8
_WEIGHT_MAX = 1e12


class JoinEstimate:
    """Estimates whether waiting is useful: the share of batches that get a second message."""

    __slots__ = ("_opened_at", "share")

    def __init__(self) -> None:
        self.share = 1.0
        self._opened_at = float("-inf")

    def closed(self, count: int, opened_at: float, delay_seconds: float) -> None:
        """Count a batch of ``count`` messages; could it have joined the last within ``delay_seconds``?"""
        joined = count > 1 or opened_at - self._opened_at < delay_seconds
        self._opened_at = opened_at
        self.share += (joined - self.share) / JOINS_MEMORY


class SelfTuning:
    """The delay of one producer, and the data from which its partitions choose their limits.

    ``budget_seconds``: from the acceptance of a message to its receipt, for 99 of 100. ``memory_limit``: the
    client's, in bytes.
    """

    def __init__(self, budget_seconds: float, memory_limit: int) -> None:
        self.budget_seconds = budget_seconds
        self.delay_seconds = budget_seconds * FIRST_DELAY_PARTS
        """Time for which a batch stays open if others will join; also the stay of an unkeyed round robin."""
        self.bytes_max = max(1, min(BATCH_BYTES_MAX, memory_limit // MEMORY_PART))
        self.round_trip_seconds = 0.0
        """Mean time from the close of a batch to its receipt."""
        self.joins = JoinEstimate()
        self._memory_limit = memory_limit
        self._overheads = [0.0] * OVERHEAD_BINS
        self._total = 0.0
        self._waits = [0.0] * (WAIT_BINS + 1)
        self._weight = 1.0
        self._last_at = self._solve_at = self._solved_at = float("-inf")
        self._bytes = 0
        self._bytes_per_second = 0.0

    # --- receipts ---------------------------------------------------------------------------------

    def receipted(self, tuned: BatchTiming, closed_at: float, count: int, size: int, now: float) -> None:
        """Note the receipt of an operation of ``count`` messages and ``size`` payload bytes."""
        self._bytes += size
        overhead = now - closed_at
        self.round_trip_seconds += (overhead - self.round_trip_seconds) / 16
        self._age(now)
        weight = self._weight * count
        self._total += weight
        place = int(overhead / self.budget_seconds * OVERHEAD_BINS)
        if place < OVERHEAD_BINS:
            self._overheads[place] += weight
        if now >= self._solve_at:
            if tuned.delay_seconds and tuned.counts:
                self._note_waits(tuned, closed_at, count)
            self._solve(now)

    def _age(self, now: float) -> None:
        """Increase the weight of new operations, so that all earlier ones count less."""
        elapsed = max(0.0, now - self._last_at)
        self._last_at = now
        self._weight *= (1.0 + 1.0 / MEMORY_OPERATIONS) * 2.0 ** min(40.0, elapsed / MEMORY_SECONDS)
        if self._weight > _WEIGHT_MAX:
            scale = 1.0 / self._weight
            self._overheads = [mass * scale for mass in self._overheads]
            self._waits = [mass * scale for mass in self._waits]
            self._total *= scale
            self._weight = 1.0

    def _note_waits(self, tuned: BatchTiming, closed_at: float, count: int) -> None:
        """Note how long the messages of a batch waited in it, by the noted times."""
        counts, times = tuned.counts, tuned.times
        delay, weight = tuned.delay_seconds, self._weight
        waits = self._waits
        waits[min(WAIT_BINS, max(0, round((closed_at - times[0]) / delay * WAIT_BINS)))] += weight
        start, earlier = times[0], 1
        rate = 0.0
        for number, at in zip(counts[1:], times[1:], strict=True):
            self._spread(closed_at - start, closed_at - at, (number - earlier) * weight, delay)
            rate = (number - earlier) / (at - start) if at > start else float("inf")
            start, earlier = at, number
        rest = count - earlier
        if rest > 0:
            # Assume that the last messages arrived at the earlier rate, then none: the longest possible
            # waits.
            end = closed_at if not rate else min(closed_at, start + rest / rate)
            self._spread(closed_at - start, closed_at - end, rest * weight, delay)
        tuned.counts = []  # the sub-batches of a keyed batch share it: once is enough

    def _spread(self, longest: float, shortest: float, mass: float, delay: float) -> None:
        """Distribute ``mass`` of messages that waited evenly between two times."""
        waits = self._waits
        step = (longest - shortest) / _POINTS
        part = mass / _POINTS
        for point in range(_POINTS):
            wait = shortest + (point + 0.5) * step
            waits[max(0, min(WAIT_BINS - 1, int(wait / delay * WAIT_BINS)))] += part

    # --- the solution -----------------------------------------------------------------------------

    def _solve(self, now: float) -> None:
        """Compute the longest delay that keeps the budget."""
        budget = self.budget_seconds
        elapsed = now - self._solved_at
        if elapsed > 0:
            rate = self._bytes / elapsed
            self._bytes_per_second += (rate - self._bytes_per_second) * (
                1.0 if rate > self._bytes_per_second else 0.2
            )
            self._bytes = 0
        self._solved_at = now
        self._solve_at = now + budget
        step = budget / OVERHEAD_BINS
        last = int(OVERHEAD_BINS * (1.0 - DELAY_PARTS_MIN))
        left = [(budget - (i + 1) * step, mass) for i, mass in enumerate(self._overheads[:last]) if mass]
        beyond = self._beyond()
        allowed = MISSES_MAX * self._total
        low, high = budget * DELAY_PARTS_MIN, budget
        for _ in range(9):
            delay = (low + high) / 2
            if _missing(left, delay, beyond) <= allowed:
                low = delay
            else:
                high = delay
        self.delay_seconds = max(
            budget * DELAY_PARTS_MIN / 8, min(low, self.delay_seconds * GROWTH, self._memory_seconds())
        )

    def _beyond(self) -> list[float]:
        """Return the shares of messages that waited at least 0, 1, 2, ... `WAIT_BINS` of the delay."""
        total = sum(self._waits)
        if not total:
            return [1.0] * (WAIT_BINS + 1)
        return [mass / total for mass in accumulate(reversed(self._waits))][::-1]

    def _memory_seconds(self) -> float:
        """Return the delay at which open batches and messages in flight take half of the memory limit."""
        if not self._bytes_per_second:
            return self.budget_seconds
        return self._memory_limit / 2 / self._bytes_per_second - self.round_trip_seconds


def _missing(left: list[tuple[float, float]], delay: float, beyond: list[float]) -> float:
    """Return the mass of messages that miss the budget with this delay.

    ``left`` are pairs: the rest of the budget after the overhead, and the mass of messages with that rest.
    """
    missing = 0.0
    for seconds, mass in left:
        place = seconds / delay * WAIT_BINS
        if place < WAIT_BINS:
            low = int(place)
            missing += mass * (beyond[low] + (beyond[low + 1] - beyond[low]) * (place - low))
    return missing


class PartitionTuning:
    """One partition's side of its producer's `SelfTuning`."""

    __slots__ = ("_joins", "_rate", "messages_max", "producer")

    def __init__(self, producer: SelfTuning) -> None:
        self.producer = producer
        self.messages_max = MAX_MESSAGES_LIMIT
        """Maximum messages of the open batch."""
        self._joins = JoinEstimate()
        self._rate = 0.0
        """Messages per second while the last batch was open."""

    def opened(self, now: float, permits: int, *, keyed: bool, more_follow: bool) -> BatchTiming:
        """Open a batch with ``permits`` available. ``more_follow``: the next messages go to this partition
        too.

        Then the batch leaves permits for those that arrive until its receipt; otherwise it may use all.
        """
        producer = self.producer
        joins = self._joins if keyed else producer.joins
        most = permits
        if more_follow:
            most = max((permits + 1) // 2, permits - int(1.5 * self._rate * producer.round_trip_seconds))
        self.messages_max = min(most, MAX_MESSAGES_LIMIT)
        return BatchTiming(now, producer.delay_seconds if joins.share >= JOINS_MIN else 0.0)

    def closed(self, count: int, opened_at: float, *, keyed: bool) -> None:
        """Note the end of a batch of ``count`` messages."""
        joins = self._joins if keyed else self.producer.joins
        joins.closed(count, opened_at, self.producer.delay_seconds)

    def receipted(self, operation: SendOperation, size: int, now: float) -> None:
        """Note the receipt of an operation of ``size`` payload bytes."""
        tuned = operation.tuned
        if tuned is None or operation.resent:
            return  # a lost connection has no meaning for delays
        # A late transmission, because the loop was busy or the connection not ready, is overhead too.
        closed_at = min(operation.sent_at, tuned.deadline)
        if operation.count > 1 and closed_at > operation.opened_at:
            self._rate = operation.count / (closed_at - operation.opened_at)
        self.producer.receipted(tuned, closed_at, operation.count, size, now)
