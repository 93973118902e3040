"""Key_Shared: assignment of key hash slots to consumers (algorithms.md section 3)."""

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Protocol

from geminga.broker.delivery.consumer import Consumer
from geminga.broker.runtime.refusal import Refused
from geminga.wire.hashing import SLOTS, consistent_points, consistent_slot, range_slot
from geminga.wire.proto import pulsar_wire_pb2 as pb

RING_POINTS = 100
_NONE_KEY = b"NONE_KEY"
_RANGES_ONE_BY_ONE = 100
"""More ranges of one consumer are inserted and removed in one pass over all."""


Range = tuple[int, int]
"""Inclusive, as in the protocol and the admin API."""


class Selector(Protocol):
    """Assignment of slots to consumers."""

    def slot(self, sticky_key: bytes) -> int:
        """Return the slot of a key."""

    def select(self, slot: int) -> Consumer | None:
        """Return the owner of a slot; None if no consumer owns it."""

    def add(self, consumer: Consumer, ranges: Sequence[Range]) -> None:
        """Add a consumer; ``ranges`` are used by STICKY alone. Raises `Refused`."""

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer."""

    def ranges(self) -> dict[Consumer, list[Range]]:
        """Return the slots of each consumer that has some, for stats; one pass over all."""

    def ranges_of(self, consumer: Consumer) -> list[Range]:
        """Return the slots of one consumer, in no order, without a pass over all."""


class ConsistentHashSelector:
    """Each consumer owns the slots up to each of its 100 points on a ring: the default of Pulsar 4."""

    def __init__(self) -> None:
        self._points = array("H")  # inserting moves all that follow: of 65,535 points, 128 KiB
        self._lines: dict[int, list[Consumer]] = {}
        self._own: dict[Consumer, tuple[int, list[int]]] = {}
        """Index of each consumer among those of its name, and its points."""
        self._indexes: dict[str, int] = {}
        """Indexes in use for each name, as the bits of a number."""

    def slot(self, sticky_key: bytes) -> int:
        return consistent_slot(sticky_key)

    def add(self, consumer: Consumer, ranges: Sequence[Range] = ()) -> None:
        taken = self._indexes.get(consumer.name, 0)
        index = (~taken & (taken + 1)).bit_length() - 1
        self._indexes[consumer.name] = taken | 1 << index
        own = consistent_points(f"{consumer.name}\0{index}\0".encode(), RING_POINTS)
        self._own[consumer] = index, own
        for point in own:
            line = self._lines.get(point)
            if line is None:
                self._lines[point] = [consumer]
                insort(self._points, point)
            elif consumer not in line:
                line.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        index, own = self._own.pop(consumer)
        self._indexes[consumer.name] ^= 1 << index
        if not self._indexes[consumer.name]:
            del self._indexes[consumer.name]
        for point in set(own):
            line = self._lines[point]
            if len(line) > 1:
                line.remove(consumer)
            else:
                del self._lines[point], self._points[bisect_left(self._points, point)]

    def select(self, slot: int) -> Consumer | None:
        points = self._points
        if not points:
            return None
        at = bisect_left(points, slot)
        return self._lines[points[at if at < len(points) else 0]][0]

    def ranges(self) -> dict[Consumer, list[Range]]:
        found: dict[Consumer, list[Range]] = {}
        points, lines = self._points, self._lines
        low = 1
        for point in (*points, SLOTS - 1) if points else ():
            owner = lines.get(point, lines[points[0]])[0]
            own = found.get(owner)
            if own is None:
                found[owner] = [(low, point)]
            elif own[-1][1] + 1 == low:
                own[-1] = (own[-1][0], point)
            else:
                own.append((low, point))
            low = point + 1
        return found

    def ranges_of(self, consumer: Consumer) -> list[Range]:
        found, points = [], self._points
        for point in set(self._own[consumer][1]):
            if self._lines[point][0] is consumer:
                at = bisect_left(points, point)
                found.append((points[at - 1] + 1 if at else 1, point))
                if not at and points[-1] < SLOTS - 1:
                    found.append((points[-1] + 1, SLOTS - 1))
        return found


class StickySelector:
    """Each consumer names its own ranges."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, Consumer]] = []
        self._own: dict[Consumer, list[Range]] = {}

    def slot(self, sticky_key: bytes) -> int:
        return range_slot(sticky_key)

    def add(self, consumer: Consumer, ranges: Sequence[Range]) -> None:
        if not ranges:
            raise Refused(pb.ConsumerAssignError, "Ranges for KeyShared policy must not be empty.")
        if len(ranges) > SLOTS:
            raise Refused(pb.ConsumerAssignError, f"{len(ranges)} ranges for {SLOTS} slots must overlap.")
        new = sorted(ranges)
        for start, end in new:
            if start < 0 or end >= SLOTS or start > end:
                raise Refused(
                    pb.ConsumerAssignError,
                    f"Invalid hash range {start}..{end}: allowed are ranges inside 0..{SLOTS - 1}",
                )
        for (_, end), (start, _) in pairwise(new):
            if start <= end:
                raise Refused(pb.ConsumerAssignError, "Ranges for KeyShared policy must not overlap.")
        for start, end in new:
            at = self._behind(end) - 1
            if at >= 0 and start <= self._ranges[at][1]:
                other = self._ranges[at][2]
                raise Refused(pb.ConsumerAssignError, f"Range conflict with consumer {other!r}")
        self._own[consumer] = new
        if len(new) > _RANGES_ONE_BY_ONE:
            self._ranges += [(start, end, consumer) for start, end in new]
            self._ranges.sort(key=itemgetter(0))
            return
        for start, end in new:
            self._ranges.insert(self._behind(start), (start, end, consumer))

    def remove(self, consumer: Consumer) -> None:
        own = self._own.pop(consumer)
        if len(own) > _RANGES_ONE_BY_ONE:
            self._ranges = [each for each in self._ranges if each[2] is not consumer]
            return
        for start, _ in own:
            del self._ranges[self._behind(start) - 1]

    def _behind(self, slot: int) -> int:
        """Return the index of the first range that starts behind ``slot``."""
        return bisect_right(self._ranges, slot, key=itemgetter(0))

    def select(self, slot: int) -> Consumer | None:
        at = self._behind(slot) - 1
        if at >= 0 and slot <= self._ranges[at][1]:
            return self._ranges[at][2]
        return None

    def ranges(self) -> dict[Consumer, list[Range]]:
        found: dict[Consumer, list[Range]] = {}
        for start, end, owner in self._ranges:
            found.setdefault(owner, []).append((start, end))
        return found

    def ranges_of(self, consumer: Consumer) -> list[Range]:
        return self._own[consumer]


def slots_in(ranges: Sequence[Range], slots: Collection[int]) -> list[int]:
    """Return the ``slots`` in some of the ranges, or all if they are fewer than the ranges' slots."""
    if sum(high - low + 1 for low, high in ranges) >= len(slots):
        return list(slots)
    return [slot for low, high in ranges for slot in range(low, high + 1) if slot in slots]
