"""Due times of the messages of a load: a steady rate, or bursts."""

from __future__ import annotations

import math

from geminga.tuning.traffic import Bursts

_FUZZ = 1e-9
"""Rounding error of the arithmetic, in messages."""


class Pace:
    """Due times of messages numbered from 0, in seconds from the start."""

    def __init__(self, rate_messages_per_second: float, bursts: Bursts | None = None) -> None:
        self._rate = rate_messages_per_second
        self._bursts = bursts

    def due_by(self, seconds: float) -> int:
        """Return the number of messages due before a time; the first one is due at 0."""
        bursts = self._bursts
        if bursts is None:
            return math.ceil(seconds * self._rate - _FUZZ)
        periods, rest = divmod(seconds, bursts.period_seconds)
        inside = min(rest, bursts.burst_seconds)
        whole = periods * bursts.period_seconds
        quiet = (rest - inside) * bursts.quiet_factor
        return math.ceil(self._rate * (whole + inside * bursts.factor + quiet) - _FUZZ)

    def first_due(self, seconds: float) -> int:
        """Return the number of the first message that is not due before a time."""
        number = self.due_by(seconds)
        while self.due_at(number) < seconds:
            number += 1
        return number

    def due_at(self, number: int) -> float:
        """Return the time at which a message is due."""
        bursts = self._bursts
        work = number / self._rate  # seconds at the mean rate
        if bursts is None:
            return work
        periods, rest = divmod(work, bursts.period_seconds)
        in_burst = bursts.burst_seconds * bursts.factor
        start = periods * bursts.period_seconds
        if rest <= in_burst or bursts.quiet_factor <= 0:
            return start + rest / bursts.factor
        return start + bursts.burst_seconds + (rest - in_burst) / bursts.quiet_factor
