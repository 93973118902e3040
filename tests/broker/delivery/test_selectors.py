"""Assignment of slots to consumers."""

import random

import pytest

from geminga.broker.delivery import selectors
from geminga.broker.delivery.selectors import ConsistentHashSelector, StickySelector
from geminga.broker.runtime.refusal import Refused
from geminga.wire.hashing import SLOTS, consistent_slot
from geminga.wire.proto import pulsar_wire_pb2 as pb


class Named:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def brute_force_ring(names: list[tuple[Named, int]]) -> dict[int, Named]:
    """Section 3 of algorithms.md, read literally: the first owner of a point keeps it."""
    ring: dict[int, Named] = {}
    for consumer, index in names:
        for point in range(100):
            ring.setdefault(consistent_slot(f"{consumer.name}\0{index}\0{point}".encode()), consumer)
    return ring


def slots_of(ranges: list[tuple[int, int]]) -> set[int]:
    assert all(start <= end for start, end in ranges)
    slots = [slot for start, end in ranges for slot in range(max(1, start), end + 1)]
    assert len(set(slots)) == len(slots)
    return set(slots)


def test_ranges_cover_every_slot_once_after_each_change_of_consumers():
    random_source = random.Random(7)
    selector = ConsistentHashSelector()
    consumers: list[Named] = []
    for step in range(60):
        if consumers and random_source.random() < 0.4:
            selector.remove(consumers.pop(random_source.randrange(len(consumers))))
        else:
            consumers.append(Named(f"c{random_source.randrange(6)}"))
            selector.add(consumers[-1], ())
        covered: dict[int, Named] = {}
        found = selector.ranges()
        assert found.keys() <= set(consumers)
        for consumer in consumers:
            own = slots_of(found.get(consumer, []))
            assert covered.keys().isdisjoint(own)
            covered |= dict.fromkeys(own, consumer)
            assert slots_of(selector.ranges_of(consumer)) == own
        if not consumers:
            assert selector.select(5) is None
            continue
        assert len(covered) == SLOTS - 1
        for slot in random_source.sample(range(1, SLOTS), 200):
            assert selector.select(slot) is covered[slot], (step, slot)


def test_the_ring_assigns_as_documented_after_each_change():
    random_source = random.Random(12)
    selector = ConsistentHashSelector()
    consumers: list[Named] = []
    for step in range(60):
        if consumers and random_source.random() < 0.4:
            selector.remove(consumers.pop(random_source.randrange(len(consumers))))
        else:
            consumers.append(Named(f"c{step}"))
            selector.add(consumers[-1])
        ring = brute_force_ring([(consumer, 0) for consumer in consumers])
        points = sorted(ring)
        for point in random_source.sample(points, min(len(points), 50)):
            assert selector.select(point) is ring[point]


def test_more_consumers_than_the_ring_has_room_for_share_all_slots():
    selector = ConsistentHashSelector()
    consumers = [Named(f"c{number}") for number in range(3000)]
    for consumer in consumers:
        selector.add(consumer)
    covered = [n for own in selector.ranges().values() for low, high in own for n in range(low, high + 1)]
    assert sorted(covered) == list(range(1, SLOTS))
    assert len(selector.ranges()) < len(consumers)  # the last to come get no slots
    for consumer in consumers[:-1]:
        selector.remove(consumer)
    assert selector.select(5) is consumers[-1]


@pytest.mark.parametrize("size", [1, 150])
def test_sticky_ranges_of_consumers_that_join_and_leave(size):
    random_source = random.Random(size)
    selector: StickySelector[Named] = StickySelector()
    joined: dict[Named, list[tuple[int, int]]] = {}
    for step in range(80):
        if joined and random_source.random() < 0.4:
            leaving = random_source.choice(list(joined))
            del joined[leaving]
            selector.remove(leaving)
        else:
            first = random_source.randrange(40) * size * 10
            ranges = [(first + 10 * each, first + 10 * each + 7) for each in range(size)]
            consumer = Named(f"c{step}")
            if any(ranges[0] in own for own in joined.values()):
                with pytest.raises(Refused, match="conflict"):
                    selector.add(consumer, ranges)
            else:
                selector.add(consumer, ranges)
                joined[consumer] = ranges
        assert selector.ranges() == joined
        assert all(selector.select(own[-1][1]) is each for each, own in joined.items())
        assert all(selector.select(own[-1][1] + 1) is None for own in joined.values())


@pytest.mark.parametrize(
    ("ranges", "reason"),
    [
        ([], "must not be empty"),
        ([(5, 4)], "Invalid hash range"),
        ([(0, SLOTS)], "Invalid hash range"),
        ([(-1, 5)], "Invalid hash range"),
        ([(0, 10), (10, 20)], "must not overlap"),
        ([(0, 0)] * (SLOTS + 1), "must overlap"),
        ([(600, 700)], "Range conflict with consumer a"),
        ([(0, 65535)], "Range conflict with consumer a"),
    ],
)
def test_sticky_ranges_are_checked(ranges, reason):
    selector: StickySelector[Named] = StickySelector()
    selector.add(Named("a"), [(500, 600)])
    with pytest.raises(Refused, match=reason) as refused:
        selector.add(Named("b"), ranges)
    assert refused.value.code == pb.ConsumerAssignError
    assert selector.select(0) is None


class Point(int):
    """A number that counts how often points are compared."""

    compared = 0
    __hash__ = int.__hash__

    def __lt__(self, other: int) -> bool:
        Point.compared += 1
        return int(self) < int(other)

    def __eq__(self, other: object) -> bool:
        Point.compared += 1
        return isinstance(other, int) and int(self) == int(other)


def test_a_join_and_a_leave_compare_few_points_however_many_consumers_there_are(monkeypatch):
    points_of, hashed = selectors.consistent_points, []

    def counted_points(prefix: bytes, count: int) -> list[Point]:
        hashed.append(count)
        return list(map(Point, points_of(prefix, count)))

    monkeypatch.setattr(selectors, "consistent_points", counted_points)
    compared = []
    for count in (20, 200):
        selector, newcomer = ConsistentHashSelector(), Named("newcomer")
        for number in range(count):
            selector.add(Named(f"consumer-{number}"))
        Point.compared = 0
        hashed.clear()
        selector.add(newcomer)
        selector.remove(newcomer)
        compared.append(Point.compared)
        assert hashed == [100]
    assert compared[1] < 2 * compared[0]


def test_a_name_gets_the_lowest_index_that_is_free():
    selector = ConsistentHashSelector()
    first, second, third = (Named("same") for _ in range(3))
    for consumer in (first, second, third):
        selector.add(consumer)
    selector.remove(first)
    selector.remove(third)
    for consumer in (first, third):
        selector.add(consumer)
    ring = brute_force_ring([(second, 1), (first, 0), (third, 2)])
    points = sorted(ring)
    for slot in range(1, SLOTS, 7):
        assert selector.select(slot) is ring[next((point for point in points if point >= slot), points[0])]
