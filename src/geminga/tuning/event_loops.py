"""When an event loop wakes up for a timer: asyncio's and uvloop's, whose clocks tick in milliseconds.

A batch's delay is over when the client's loop has woken up for it. Neither loop sleeps fractions of a
millisecond, and each does it in its own way:

* *asyncio* remembers the exact time of a timer and sleeps whole milliseconds, rounded up, from when something
  last woke it: never early, up to a millisecond late.
* *uvloop* (libuv) cuts the time now down to a millisecond, adds the rounded delay, and fires as soon as its
  clock shows that millisecond. It sleeps whole milliseconds from when something last woke it, so that it
  comes up to a millisecond late or early: early when a receipt has moved it to another part of a millisecond.

A client runs on uvloop where it is installed (`geminga.event_loops.new_event_loop`).
"""

from __future__ import annotations

import math
from enum import Enum

_FUZZ = 1e-6
"""Milliseconds that arithmetic with fractions may be off."""


class EventLoop(Enum):
    """What the client's event loop is."""

    ASYNCIO = "asyncio"
    UVLOOP = "uvloop"

    def set_for(self, deadline: float, now: float) -> float:
        """What a timer is set for that is asked for ``now``; seconds on the loop's clock."""
        if self is EventLoop.ASYNCIO:
            return deadline
        return (_whole(now * 1000) + math.floor((deadline - now) * 1000 + 0.5)) / 1000

    def wakes_at(self, timer: float, now: float) -> float:
        """When a loop that goes to sleep ``now`` wakes up for a timer that was set for a time."""
        if self is EventLoop.ASYNCIO:
            return now + math.ceil(max(0.0, timer - now) * 1000 - _FUZZ) / 1000
        return now + max(0.0, round(timer * 1000) - _whole(now * 1000)) / 1000


def _whole(milliseconds: float) -> float:
    return math.floor(milliseconds + _FUZZ)


def installed() -> EventLoop:
    """The loop that clients run on here."""
    from geminga.event_loops import new_event_loop

    loop = new_event_loop()
    try:
        return EventLoop.UVLOOP if type(loop).__module__.startswith("uvloop") else EventLoop.ASYNCIO
    finally:
        loop.close()


__all__ = ["EventLoop", "installed"]
