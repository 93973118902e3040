"""Key_Shared: assignment of key hash slots to consumers (algorithms.md section 3)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

from geminga.broker.refusal import Refused
from geminga.wire.hashing import SLOTS, consistent_points, consistent_slot, range_slot
from geminga.wire.proto import pulsar_wire_pb2 as pb

RING_POINTS = 100
_NONE_KEY = b"NONE_KEY"


class NamedConsumer(Protocol):
    """Interface of a consumer for selectors."""

    @property
    def name(self) -> str: ...


C = TypeVar("C", bound=NamedConsumer)
Range = tuple[int, int]
"""Inclusive, as in the protocol and the admin API."""


class Selector(Protocol[C]):
    """Assignment of slots to consumers."""

    def slot(self, sticky_key: bytes) -> int:
        """Return the slot of a key."""

    def select(self, slot: int) -> C | None:
        """Return the owner of a slot; None if no consumer owns it."""

    def add(self, consumer: C, ranges: Sequence[Range]) -> None:
        """Add a consumer; ``ranges`` are used by STICKY alone. Raises `Refused`."""

    def remove(self, consumer: C) -> None:
        """Remove a consumer."""

    def ranges(self) -> dict[C, list[Range]]:
        """Return the slots of each consumer that has some, for stats; one pass over all."""


class ConsistentHashSelector(Generic[C]):
    """Each consumer owns the slots up to each of its 100 points on a ring: the default of Pulsar 4."""

    def __init__(self) -> None:
        self._points: list[int] = []
        self._lines: dict[int, list[C]] = {}
        self._own: dict[C, tuple[int, list[int]]] = {}
        """Index of each consumer among those of its name, and its points."""
        self._indexes: dict[str, int] = {}
        """Indexes in use for each name, as the bits of a number."""

    def slot(self, sticky_key: bytes) -> int:
        return consistent_slot(sticky_key)

    def add(self, consumer: C, ranges: Sequence[Range] = ()) -> None:
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

    def remove(self, consumer: C) -> None:
        index, own = self._own.pop(consumer)
        self._indexes[consumer.name] ^= 1 << index
        if not self._indexes[consumer.name]:
            del self._indexes[consumer.name]
        for point in own:
            line = self._lines.get(point, [])
            if consumer in line:
                line.remove(consumer)
                if not line:
                    del self._lines[point]
                    del self._points[bisect_left(self._points, point)]

    def select(self, slot: int) -> C | None:
        points = self._points
        if not points:
            return None
        at = bisect_left(points, slot)
        return self._lines[points[at if at < len(points) else 0]][0]

    def ranges(self) -> dict[C, list[Range]]:
        found: dict[C, list[Range]] = {}
        points = self._points
        low = 1
        for point in points:
            _join(found, self._lines[point][0], low, point)
            low = point + 1
        if points and low < SLOTS:
            _join(found, self._lines[points[0]][0], low, SLOTS - 1)
        return found


class AutoSplitSelector(Generic[C]):
    """Each new consumer takes half of the largest range."""

    def __init__(self) -> None:
        self._bounds: list[int] = []
        self._owners: dict[int, C] = {}

    def slot(self, sticky_key: bytes) -> int:
        return range_slot(sticky_key)

    def add(self, consumer: C, ranges: Sequence[Range] = ()) -> None:
        if not self._bounds:
            self._bounds.append(SLOTS)
            self._owners[SLOTS] = consumer
            return
        largest, upper, low = 0, 0, 0
        for bound in self._bounds:
            if bound - low > largest:
                largest, upper = bound - low, bound
            low = bound
        if largest < 2:
            raise Refused(pb.ConsumerAssignError, "No more range can assigned to new consumer")
        bound = upper - largest // 2
        insort(self._bounds, bound)
        self._owners[bound] = consumer

    def remove(self, consumer: C) -> None:
        for bound in [bound for bound in self._bounds if self._owners[bound] is consumer]:
            at = self._bounds.index(bound)
            if bound == SLOTS and at > 0:
                lower = self._bounds[at - 1]
                self._owners[SLOTS] = self._owners.pop(lower)
                del self._bounds[at - 1]
            else:
                del self._owners[bound]
                del self._bounds[at]

    def select(self, slot: int) -> C | None:
        at = bisect_left(self._bounds, slot)
        return self._owners[self._bounds[at]] if at < len(self._bounds) else None

    def ranges(self) -> dict[C, list[Range]]:
        found: dict[C, list[Range]] = {}
        low = 0
        for bound in self._bounds:
            _join(found, self._owners[bound], low, bound if bound < SLOTS else SLOTS - 1)
            low = bound + 1
        return found


class StickySelector(Generic[C]):
    """Each consumer names its own ranges."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, C]] = []

    def slot(self, sticky_key: bytes) -> int:
        return range_slot(sticky_key)

    def add(self, consumer: C, ranges: Sequence[Range]) -> None:
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
        merged = sorted(
            [*self._ranges, *((start, end, consumer) for start, end in new)], key=lambda each: each[0]
        )
        for (_, end, left), (start, _, right) in pairwise(merged):
            if start <= end:
                other = right if left is consumer else left
                raise Refused(pb.ConsumerAssignError, f"Range conflict with consumer {other!r}")
        self._ranges = merged

    def remove(self, consumer: C) -> None:
        self._ranges = [each for each in self._ranges if each[2] is not consumer]

    def select(self, slot: int) -> C | None:
        at = bisect_left(self._ranges, slot + 1, key=lambda each: each[0]) - 1
        if at >= 0 and slot <= self._ranges[at][1]:
            return self._ranges[at][2]
        return None

    def ranges(self) -> dict[C, list[Range]]:
        found: dict[C, list[Range]] = {}
        for start, end, owner in self._ranges:
            found.setdefault(owner, []).append((start, end))
        return found


def _join(found: dict[C, list[Range]], owner: C, low: int, high: int) -> None:
    own = found.setdefault(owner, [])
    if own and own[-1][1] + 1 == low:
        own[-1] = (own[-1][0], high)
    else:
        own.append((low, high))
