from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_cluster import TOPIC, ScriptedCluster, ScriptedSource

from geminga.errors import AlreadyClosed, InvalidConfiguration, TopicNotFound
from geminga.ids import MessageId
from geminga.spark.offsets import EARLIEST, LATEST, Offset, Offsets
from geminga.spark.options import ConnectionOptions, ReadOptions
from geminga.spark.planning import Limits, Planner, Range

ONE = (TOPIC, -1)
CONNECTION = ConnectionOptions(service_url="pulsar://h")


def planner(cluster: ScriptedCluster, **options: Any) -> Planner:
    options = {"topics": (TOPIC,), **options}
    return Planner(cluster, ReadOptions(connection=CONNECTION, **options))


def one_ledger(entries: int, rows: int = 10) -> ScriptedCluster:
    cluster = ScriptedCluster()
    cluster.publish(ONE, 5, [[b"v"] * rows] * entries)
    return cluster


def three_ledgers() -> ScriptedCluster:
    cluster = ScriptedCluster()
    for ledger, entries in ((3, 4), (7, 6), (8, 5)):
        cluster.publish(ONE, ledger, [[b"v"] * 10] * entries, publish_time=1000 * ledger)
    return cluster


# --- places --------------------------------------------------------------------------------------


def test_starts() -> None:
    cluster = one_ledger(4)
    assert planner(cluster).starting("earliest") == {ONE: EARLIEST}
    assert planner(cluster).starting("latest") == {ONE: Offset(5, 3)}
    assert planner(cluster, starting_offsets="latest").starting("earliest") == {ONE: Offset(5, 3)}
    assert planner(cluster, starting_offsets={ONE: Offset(5, 2)}).starting("earliest") == {ONE: Offset(5, 1)}
    assert planner(cluster, starting_offsets={ONE: LATEST}).starting("earliest") == {ONE: Offset(5, 3)}


def test_ends_are_never_behind_the_newest_message() -> None:
    cluster = one_ledger(4)
    assert planner(cluster).ending([ONE]) == {ONE: Offset(5, 3)}
    assert planner(cluster, ending_offsets={ONE: Offset(5, 1, 3)}).ending([ONE]) == {ONE: Offset(5, 1, 3)}
    assert planner(cluster, ending_offsets={ONE: Offset(9, 9)}).ending([ONE]) == {ONE: Offset(5, 3)}


def test_offsets_of_what_is_not_read_are_refused() -> None:
    with pytest.raises(
        InvalidConfiguration, match="startingOffsets names persistent://public/default/u-partition-1"
    ):
        planner(one_ledger(1), starting_offsets={("persistent://public/default/u", 1): EARLIEST}).starting(
            "earliest"
        )


def test_missing_topics() -> None:
    with pytest.raises(TopicNotFound, match=r"does not exist.*waitingForNonExistedTopic"):
        planner(ScriptedCluster()).partitions()
    assert planner(ScriptedCluster(), wait_for_topics=True).partitions() == []
    assert planner(ScriptedCluster(), topics=(), topics_pattern=TOPIC).partitions() == []


def test_a_watcher_is_kept_a_partition_and_asks_for_little() -> None:
    cluster = one_ledger(4)
    found = planner(cluster)
    for _ in range(3):
        assert found.latest([ONE]) == {ONE: Offset(5, 3)}
    assert (cluster.opened, cluster.queue_sizes) == (1, [1])
    found.close()
    assert cluster.closed == 1


def test_a_watcher_that_ended_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = one_ledger(4)
    found = planner(cluster)
    found.latest([ONE])
    real = ScriptedSource.last_message_id
    calls = iter([AlreadyClosed("the topic was deleted"), None])

    def ended(self: ScriptedSource) -> MessageId:
        error = next(calls, None)
        if error is not None:
            raise error
        return real(self)

    monkeypatch.setattr(ScriptedSource, "last_message_id", ended)
    assert found.latest([ONE]) == {ONE: Offset(5, 3)}
    assert (cluster.opened, cluster.closed) == (2, 1)


@pytest.mark.parametrize("time_ms", [0, 2999, *range(3000, 3006), *range(6999, 7008), *range(7999, 8007)])
def test_starting_time(time_ms: int) -> None:
    cluster = three_ledgers()
    times = {place: 1000 * place[0] + place[1] for place in cluster.topics[ONE]}  # as `publish` numbers them
    (start,) = planner(cluster, starting_time_ms=time_ms).starting("earliest").values()
    read = [place for place in sorted(times) if Offset(*place) > start]
    assert read == [place for place in sorted(times) if times[place] >= time_ms]


# --- admission -----------------------------------------------------------------------------------


def take_all(found: Planner, latest: Offsets, limits: Limits) -> list[Offsets]:
    """Micro-batches until everything is read."""
    start: Offsets = {}
    steps = []
    while start != latest:
        end = found.limited({p: start.get(p, EARLIEST) for p in latest}, latest, limits)
        assert end != start, "no progress"
        assert all(end[p] >= start.get(p, EARLIEST) for p in end)
        steps.append(end)
        start = end
        assert len(steps) < 1000
    return steps


def test_no_limits() -> None:
    found = planner(one_ledger(4))
    assert found.limited({}, {ONE: Offset(5, 3)}, Limits()) == {ONE: Offset(5, 3)}
    assert found.limited({ONE: Offset(5, 3)}, {ONE: Offset(5, 1)}, Limits()) == {ONE: Offset(5, 3)}


@pytest.mark.parametrize("limits", [Limits(entries=3), Limits(rows=35), Limits(rows=35, entries=2)])
def test_limits_within_a_ledger(limits: Limits) -> None:
    found = planner(one_ledger(10))
    per_step = min(limits.entries or 99, (limits.rows or 990) // 10)
    ends = [end[ONE] for end in take_all(found, {ONE: Offset(5, 9)}, limits)]
    assert ends == [Offset(5, min(entry, 9)) for entry in range(per_step - 1, 9 + per_step, per_step)]


def test_entry_limits_stop_at_the_end_of_a_ledger() -> None:
    ends = [end[ONE] for end in take_all(planner(three_ledgers()), {ONE: Offset(8, 4)}, Limits(entries=3))]
    assert ends == [
        Offset(3, 2), Offset(7, -1), Offset(7, 2), Offset(7, 5), Offset(8, -1), Offset(8, 2), Offset(8, 4),
    ]  # fmt: skip


def test_row_limits_cross_ledgers_and_take_one_batch_at_least() -> None:
    ends = [end[ONE] for end in take_all(planner(three_ledgers()), {ONE: Offset(8, 4)}, Limits(rows=60))]
    assert ends == [Offset(7, 1), Offset(8, 1), Offset(8, 4)]
    assert len(take_all(planner(three_ledgers()), {ONE: Offset(8, 4)}, Limits(rows=1))) == 15
    assert len(take_all(planner(three_ledgers()), {ONE: Offset(8, 4)}, Limits(bytes=1))) == 15


def test_shares_of_idle_partitions_go_to_the_others() -> None:
    cluster = ScriptedCluster()
    cluster.publish((TOPIC, 0), 1, [[b"v"] * 10] * 2)
    cluster.publish((TOPIC, 1), 2, [[b"v"] * 10] * 50)
    cluster.publish((TOPIC, 2), 3, [])
    found = planner(cluster)
    latest = found.latest(found.partitions())
    start = dict.fromkeys(latest, EARLIEST)
    by_rows = found.limited(start, latest, Limits(rows=200))
    assert (by_rows[TOPIC, 0], by_rows[TOPIC, 1]) == (Offset(1, 1), Offset(2, 17))
    begin = {(TOPIC, 0): Offset(1, -1), (TOPIC, 1): Offset(2, -1), (TOPIC, 2): EARLIEST}
    by_entries = found.limited(begin, latest, Limits(entries=20))
    assert (by_entries[TOPIC, 0], by_entries[TOPIC, 1]) == (Offset(1, 1), Offset(2, 17))


# --- tasks ---------------------------------------------------------------------------------------


def places_of(cluster: ScriptedCluster, ranges: list[Range]) -> list[Any]:
    return [
        (part.partition, place)
        for part in ranges
        for place in sorted(cluster.topics[part.partition])
        if part.start < Offset(*place) <= part.end
    ]


def test_ranges_follow_ledgers_and_sizes() -> None:
    cluster = three_ledgers()
    found = planner(cluster, max_entries_per_split=3)
    ranges = found.ranges({}, {ONE: Offset(8, 4)})
    assert [(part.start, part.end) for part in ranges] == [
        (Offset(3, -1), Offset(7, -1)), (Offset(7, -1), Offset(8, -1)),
        (Offset(8, -1), Offset(8, 2)), (Offset(8, 2), Offset(8, 4)),
    ]  # fmt: skip
    assert len(planner(one_ledger(40), min_partitions=8).ranges({}, {ONE: Offset(5, 39)})) == 8
    assert planner(cluster).ranges({ONE: Offset(8, 4)}, {ONE: Offset(8, 4)}) == []
    assert planner(ScriptedCluster({ONE: {}})).ranges({}, {ONE: EARLIEST}) == []


@settings(max_examples=60, deadline=None)
@given(
    layout=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), min_size=1, max_size=3),
    limits=st.builds(
        Limits,
        entries=st.none() | st.integers(1, 9),
        rows=st.none() | st.integers(1, 40),
        bytes=st.none() | st.integers(1, 3000),
    ),
    split=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_every_entry_is_read_once_over_micro_batches_and_tasks(
    layout: list[list[int]], limits: Limits, split: int, seed: int
) -> None:
    numbers = random.Random(seed)
    cluster = ScriptedCluster()
    for index, ledgers in enumerate(layout):
        cluster.topics[TOPIC, index] = {}
        for ledger, entries in enumerate(ledgers):
            batches = [[b"v"] * numbers.randint(1, 9) for _ in range(entries)]
            cluster.publish((TOPIC, index), 2 * ledger + 1, batches)
    found = planner(cluster, max_entries_per_split=split)
    latest = found.latest(found.partitions())
    start: Offsets = dict.fromkeys(latest, EARLIEST)
    read = []
    for end in take_all(found, {p: o for p, o in latest.items() if o > EARLIEST}, limits):
        read += places_of(cluster, found.ranges(start, end))
        start = {**start, **end}
    assert sorted(read) == sorted((p, place) for p, entries in cluster.topics.items() for place in entries)
    found.close()
    assert cluster.opened == cluster.closed
