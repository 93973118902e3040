"""Delays between attempts: 100 ms doubling to 60 s, less up to 10 % at random (algorithms.md section 14)."""

from collections.abc import Callable

from geminga.config import check_seconds, refuse

INITIAL_SECONDS = 0.1
MAXIMUM_SECONDS = 60.0
REDUCTION_MAX = 0.1


class Backoff:
    """A series of growing delays.

    ``random`` returns numbers in [0, 1), for example ``random.Random(seed).random``. The random reduction
    prevents clients that lost a broker together from reconnecting at the same time.
    """

    __slots__ = ("_attempts", "_initial_seconds", "_maximum_seconds", "_random", "_reduction_max")

    def __init__(
        self,
        random: Callable[[], float],
        *,
        initial_seconds: float = INITIAL_SECONDS,
        maximum_seconds: float = MAXIMUM_SECONDS,
        reduction_max: float = REDUCTION_MAX,
    ) -> None:
        self._initial_seconds = check_seconds("initial_seconds", initial_seconds, 0.001)
        self._maximum_seconds = check_seconds("maximum_seconds", maximum_seconds, self._initial_seconds)
        if not 0.0 <= reduction_max < 1.0:
            refuse("reduction_max", reduction_max, "a number >= 0 and < 1")
        self._reduction_max = reduction_max
        self._random = random
        self._attempts = 0

    def next(self) -> float:
        """Return the next delay in seconds."""
        # The exponent is capped so that the power stays small during long outages.
        delay = self._initial_seconds * (1 << min(self._attempts, 30))
        self._attempts += 1
        return min(delay, self._maximum_seconds) * (1.0 - self._reduction_max * self._random())

    def reset(self) -> None:
        """Restart from the first delay, after a successful attempt."""
        self._attempts = 0
