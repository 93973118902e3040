import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_cluster import ONE, TOPIC, ScriptedCluster, options

from geminga.errors import InvalidConfiguration, Timeout, TopicNotFound
from geminga.spark.offsets import EARLIEST, LATEST, WHOLE_ENTRY, Offset, Offsets, entries_between
from geminga.spark.retry_policy import RetryPolicy
from geminga.spark.source.admission import PEEK_BYTES_MAX, BatchLimits
from geminga.spark.source.planning import Planner
from geminga.spark.source.ranges import Range, combined


def planner(cluster: ScriptedCluster, *, is_batch: bool = False, **given: Any) -> Planner:
    return Planner(cluster, options(**given), is_batch=is_batch)


def one_ledger(entries: int, rows: int = 10) -> ScriptedCluster:
    cluster = ScriptedCluster()
    cluster.publish(ONE, 5, [[b"v"] * rows] * entries)
    return cluster


def three_ledgers() -> ScriptedCluster:
    cluster = ScriptedCluster()
    for ledger, entries in ((3, 4), (7, 6), (8, 5)):
        cluster.publish(ONE, ledger, [[b"v"] * 10] * entries, publish_time=1000 * ledger)
    return cluster


@pytest.fixture
def cluster():
    return ScriptedCluster()


# --- positions ---
def test_starting_offsets_are_resolved():
    cluster = one_ledger(4)
    assert planner(cluster).starting("earliest") == {ONE: EARLIEST}
    assert planner(cluster).starting("latest") == {ONE: Offset(5, 3)}
    assert planner(cluster, starting_offsets="latest").starting("earliest") == {ONE: Offset(5, 3)}
    assert planner(cluster, starting_offsets={ONE: Offset(5, 2)}).starting("earliest") == {ONE: Offset(5, 1)}
    assert planner(cluster, starting_offsets={ONE: LATEST}).starting("earliest") == {ONE: Offset(5, 3)}


def test_ending_offsets_are_limited_to_the_newest_message():
    cluster = one_ledger(4)
    assert planner(cluster).ending([ONE]) == {ONE: Offset(5, 3)}
    assert planner(cluster, ending_offsets={ONE: Offset(5, 1, 3)}).ending([ONE]) == {ONE: Offset(5, 1, 3)}
    assert planner(cluster, ending_offsets={ONE: Offset(9, 9)}).ending([ONE]) == {ONE: Offset(5, 3)}


def test_ending_offsets_may_name_filtered_partitions():
    cluster, other = one_ledger(4), ("persistent://public/default/u", 1)
    for ends in (
        {"ending_offsets": {ONE: Offset(5, 1), other: Offset(7, 7)}},
        {"ending_times": {ONE: 1, other: 1}},
    ):
        asked = planner(cluster, **ends).ending([ONE], [ONE, other])
        assert list(asked) == [ONE]
        with pytest.raises(InvalidConfiguration, match="u-partition-1, which this query does not read"):
            planner(cluster, **ends).ending([ONE])


def test_offsets_of_other_partitions_are_refused():
    plan = planner(one_ledger(1), starting_offsets={("persistent://public/default/u", 1): EARLIEST})
    with pytest.raises(InvalidConfiguration, match=r"startingOffsets names persistent://.*/u-partition-1"):
        plan.starting("earliest")


def test_small_ranges_share_tasks():
    small = [Range((f"{TOPIC}-{number}", -1), Offset(5, 2), Offset(5, 3)) for number in range(500)]
    large = [Range(ONE, Offset(5, 2), Offset(5, 2 + entries)) for entries in (16, 10_000)]
    unknown = [Range(ONE, Offset(5, 2), Offset(7, 3)), Range(ONE, EARLIEST, Offset(5, 0), compacted=True)]
    for ranges in (small, small[:250] + large + unknown + small[250:]):
        tasks = combined(ranges, 32)
        assert sorted(str(part) for task in tasks for part in task) == sorted(map(str, ranges))
        assert len(tasks) == 32
        assert all(len(task) == 1 for task in tasks if task[0] not in small)
    assert [len(combined(small[:count], 8)) for count in (9, 17, 63)] == [8, 8, 8]
    assert len(combined(small, 200)) == 200
    assert combined(small[:32], 32) == [[part] for part in small[:32]]
    assert combined([], 32) == []
    assert [len(combined(small, 8, each)) for each in (1, 10, 64)] == [500, 50, 8]
    several = [replace(part, end=Offset(5, 17)) for part in small]
    assert max(sum(part.end.entry - part.start.entry for part in task) for task in combined(several, 1)) <= 75


@pytest.mark.parametrize("entries", [[3, 20, 3], [3] * 9 + [20] + [3] * 9, [20, 3, 3, 20] * 5, [2] * 30])
def test_tasks_read_each_partition_in_its_order(entries):
    others = [Range((f"{TOPIC}-{number}", -1), Offset(5, 2), Offset(5, 3)) for number in range(20)]
    ledgers = [Range(ONE, Offset(n, -1), Offset(n, count - 1)) for n, count in enumerate(entries)]
    for ranges in (ledgers, others + ledgers + others):
        for tasks_min in (1, 8):
            read = [part for task in combined(ranges, tasks_min) for part in task]
            assert [part for part in read if part.partition == ONE] == ledgers


@st.composite
def planned_ranges(draw: st.DrawFn) -> list[Range]:
    """Ranges as planned: the partitions one after the other, each in its order; also ends inside batches."""
    found = []
    for number in range(draw(st.integers(0, 30))):
        for ledger, entries in enumerate(draw(st.lists(st.integers(1, 20), max_size=5))):
            index = draw(st.sampled_from([0, 3, WHOLE_ENTRY]))
            start = Offset(ledger, -1) if index == WHOLE_ENTRY else Offset(ledger, 0, index)
            end = Offset(
                ledger, entries - 1 + (index != WHOLE_ENTRY), draw(st.sampled_from([4, WHOLE_ENTRY]))
            )
            found.append(Range((TOPIC, number), start, end, compacted=not draw(st.integers(0, 9))))
    return found


def entries_of(part: Range) -> int:
    return 16 if part.compacted else entries_between(part.start, part.end)


@given(planned_ranges(), st.integers(1, 40), st.integers(1, 64))
def test_ranges_are_combined_within_the_limits(ranges, tasks_min, entries_max):
    tasks = combined(ranges, tasks_min, entries_max)
    assert sorted(map(repr, itertools.chain(*tasks))) == sorted(map(repr, ranges))
    read = sorted(itertools.chain(*tasks), key=lambda part: part.partition)
    assert read == ranges, "each partition is read in its order"
    assert len(tasks) >= min(len(ranges), tasks_min)
    shared = [list(map(entries_of, task)) for task in tasks if len(task) > 1]
    assert max(map(max, shared), default=0) < 16
    small = [entries_of(part) for part in ranges if entries_of(part) < 16]
    if small:
        wanted = max(min(len(small), tasks_min - len(ranges) + len(small)), 1)
        assert max(map(sum, shared), default=0) <= min(entries_max, sum(small) / wanted + 15)


def test_missing_topics_are_refused_or_awaited():
    with pytest.raises(TopicNotFound, match=r"does not exist.*waitingForNonExistedTopic"):
        planner(ScriptedCluster()).partitions()
    assert planner(ScriptedCluster(), wait_for_topics=True).partitions() == []
    assert planner(ScriptedCluster()).partitions(missing_is_empty=True) == []
    assert planner(ScriptedCluster(), topics=(), topics_pattern=TOPIC).partitions() == []


@pytest.mark.parametrize(("rows", "limit"), [((90, 110), 3_000), ((900, 1100), 100_000), ((1, 200), 10_000)])
def test_a_limit_is_filled_by_many_partitions_whose_batches_differ(rows, limit):
    """Each of 64 partitions may have a share that is smaller than its next batch."""
    cluster, numbers = ScriptedCluster(), random.Random(3)
    counts = {}
    for index in range(64):
        counts[TOPIC, index] = [numbers.randint(*rows) for _ in range(12)]
        cluster.publish((TOPIC, index), 5, [[b""] * count for count in counts[TOPIC, index]])
    plan = planner(cluster)
    start: Offsets = dict.fromkeys(counts, EARLIEST)
    for _ in range(3):
        end = plan.limited(start, plan.latest(counts), BatchLimits(rows=limit))
        taken = sum(sum(each[start[p].entry + 1 : end[p].entry + 1]) for p, each in counts.items())
        assert 0.9 * limit < taken < 1.1 * limit
        start = end


def test_an_entry_that_does_not_arrive_is_an_error():
    cluster = one_ledger(4)
    cluster.silent = {ONE}
    found = Planner(cluster, options(starting_time_ms=1), retry_policy=RetryPolicy(0))
    latest = found.latest([ONE])
    for plan in (
        lambda: found.ranges({}, latest),
        lambda: found.limited({}, latest, BatchLimits(entries=2)),
        lambda: found.starting("earliest"),
    ):
        with pytest.raises(Timeout, match="did not come"):
            plan()


def test_a_start_after_the_newest_message_is_refused():
    cluster = three_ledgers()
    for place in (Offset(9, 0), Offset(8, 6), Offset(8, 5, 3)):
        with pytest.raises(
            InvalidConfiguration, match=rf"startingOffsets: {TOPIC} has no message {place}, its"
        ):
            planner(cluster, starting_offsets={ONE: place}).starting("latest")
    following = planner(cluster, starting_offsets={ONE: Offset(8, 5)})
    assert following.starting("latest") == {ONE: Offset(8, 4)}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"starting_time_ms": 20_000}, "option startingTime=20000"),
        ({"starting_times": {ONE: 20_000}}, "option startingOffsetsByTimestamp: the time 20000"),
    ],
    ids=["all", "one partition"],
)
def test_a_starting_time_in_the_future_is_refused(given, told):
    plan = Planner(three_ledgers(), options(**given), wall_clock=lambda: 10.0)
    with pytest.raises(InvalidConfiguration, match=f"{told} is 10 s in the future"):
        plan.starting("latest")


def test_ending_times_apply_by_partition():
    cluster = three_ledgers()
    cluster.publish((TOPIC, 0), 3, [[b"v"]] * 5, publish_time=5000)
    del cluster.topics[ONE]
    cluster.topics[TOPIC, 1] = three_ledgers().topics[ONE]
    asked = [(TOPIC, 0), (TOPIC, 1)]
    ends = planner(cluster, ending_time_ms=7002).ending(asked)
    assert ends == {asked[0]: Offset(3, 4), asked[1]: Offset(7, 1)}
    times = {(TOPIC, 1): 8003, (TOPIC, -1): 5002}
    ends = planner(cluster, ending_times=times).ending(asked)
    assert ends == {asked[0]: Offset(3, 1), asked[1]: Offset(8, 2)}
    plan = planner(cluster, starting_times={(TOPIC, 1): 7001}, starting_offsets="latest")
    assert plan.starting("earliest") == {asked[0]: Offset(3, 4), asked[1]: Offset(7, 0)}
    with pytest.raises(
        InvalidConfiguration, match=r"startingOffsetsByTimestamp names .*-partition-7, which this"
    ):
        planner(cluster, starting_times={(TOPIC, 7): 1}).starting("earliest")
    future = planner(cluster, starting_time_ms=1 << 42, future_is_latest=True)
    assert future.starting("earliest") == {asked[0]: Offset(3, 4), asked[1]: Offset(8, 4)}


@pytest.mark.parametrize("time_ms", [0, 2999, *range(3000, 3006), *range(6999, 7008), *range(7999, 8007)])
def test_a_starting_time_selects_later_messages(time_ms):
    cluster = three_ledgers()
    times = {place: 1000 * place[0] + place[1] for place in cluster.topics[ONE]}  # as `publish` numbers them
    (start,) = planner(cluster, starting_time_ms=time_ms).starting("earliest").values()
    read = [place for place in sorted(times) if Offset(*place) > start]
    assert read == [place for place in sorted(times) if times[place] >= time_ms]


# --- admission ---
def take_all(found: Planner, latest: Offsets, limits: BatchLimits) -> list[Offsets]:
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


@pytest.mark.parametrize(
    "limits", [BatchLimits(entries=3), BatchLimits(rows=35), BatchLimits(rows=35, entries=2)]
)
def test_limits_apply_within_a_ledger(limits):
    found = planner(one_ledger(10))
    per_step = min(limits.entries or 99, (limits.rows or 990) // 10)
    ends = [end[ONE] for end in take_all(found, {ONE: Offset(5, 9)}, limits)]
    assert ends == [Offset(5, min(entry, 9)) for entry in range(per_step - 1, 9 + per_step, per_step)]


def test_entry_limits_stop_at_the_end_of_a_ledger():
    ends = [
        end[ONE] for end in take_all(planner(three_ledgers()), {ONE: Offset(8, 4)}, BatchLimits(entries=3))
    ]
    assert ends == [
        Offset(3, 2), Offset(7, -1), Offset(7, 2), Offset(7, 5), Offset(8, 2), Offset(8, 4),
    ]  # fmt: skip


def test_row_limits_cross_ledgers_and_take_one_batch_at_least():
    ends = [end[ONE] for end in take_all(planner(three_ledgers()), {ONE: Offset(8, 4)}, BatchLimits(rows=60))]
    assert ends == [Offset(7, 1), Offset(8, 1), Offset(8, 4)]
    assert len(take_all(planner(three_ledgers()), {ONE: Offset(8, 4)}, BatchLimits(rows=1))) == 15
    assert len(take_all(planner(three_ledgers()), {ONE: Offset(8, 4)}, BatchLimits(bytes=1))) == 15


def test_shares_of_idle_partitions_go_to_the_others(cluster):
    cluster.publish((TOPIC, 0), 1, [[b"v"] * 10] * 2)
    cluster.publish((TOPIC, 1), 2, [[b"v"] * 10] * 50)
    cluster.publish((TOPIC, 2), 3, [])
    found = planner(cluster)
    latest = found.latest(found.partitions())
    start = dict.fromkeys(latest, EARLIEST)
    by_rows = found.limited(start, latest, BatchLimits(rows=200))
    assert (by_rows[TOPIC, 0], by_rows[TOPIC, 1]) == (Offset(1, 1), Offset(2, 17))
    begin = {(TOPIC, 0): Offset(1, -1), (TOPIC, 1): Offset(2, -1), (TOPIC, 2): EARLIEST}
    by_entries = found.limited(begin, latest, BatchLimits(entries=20))
    assert (by_entries[TOPIC, 0], by_entries[TOPIC, 1]) == (Offset(1, 1), Offset(2, 17))


def test_a_limit_holds_for_the_micro_batch_and_each_partition_gets_a_turn(cluster):
    """A micro-batch takes at least one entry, not one of each partition; later ones take the others."""
    for index in range(50):
        cluster.publish((TOPIC, index), 3 + index, [[b"v"] * 100] * 2)
    found = planner(cluster)
    latest = found.latest(found.partitions())
    start = dict.fromkeys(latest, EARLIEST)
    seen = []
    for _ in range(100):
        end = found.limited(start, latest, BatchLimits(rows=150))
        moved = [p[1] for p in end if end[p] > start[p]]
        assert len(moved) == 1
        seen += moved
        start = end
    assert start == latest
    assert sorted(seen[:50]) == list(range(50))


def test_shares_beyond_the_sampled_entries_use_the_average():
    cluster = one_ledger(4000, rows=100)
    found = planner(cluster)
    start = {ONE: Offset(5, -1)}
    size = len(cluster.topics[ONE][5, 0])
    assert found.limited(start, {ONE: Offset(5, 3999)}, BatchLimits(rows=200_000)) == {ONE: Offset(5, 1999)}
    assert cluster.bytes_read <= PEEK_BYTES_MAX + size
    end = found.limited(start, {ONE: Offset(5, 3999)}, BatchLimits(bytes=1500 * size))
    assert end == {ONE: Offset(5, 1499)}


# --- tasks ---
def places_of(cluster: ScriptedCluster, ranges: list[Range]) -> list[Any]:
    return [
        (part.partition, place)
        for part in ranges
        for place in sorted(cluster.topics[part.partition])
        if part.start < Offset(*place) <= part.end
    ]


def test_ranges_follow_ledgers_and_sizes():
    cluster = three_ledgers()
    found = planner(cluster, max_entries_per_split=3)
    ranges = found.ranges({}, {ONE: Offset(8, 4)})
    assert [(part.start, part.end) for part in ranges] == [
        (Offset(3, -1), Offset(3, 2)), (Offset(3, 2), Offset(7, -1)),
        (Offset(7, -1), Offset(7, 2)), (Offset(7, 2), Offset(8, -1)),
        (Offset(8, -1), Offset(8, 2)), (Offset(8, 2), Offset(8, 4)),
    ]  # fmt: skip
    assert len(planner(one_ledger(40), min_partitions=8).ranges({}, {ONE: Offset(5, 39)})) == 8
    assert planner(cluster).ranges({ONE: Offset(8, 4)}, {ONE: Offset(8, 4)}) == []
    assert planner(ScriptedCluster({ONE: {}})).ranges({}, {ONE: EARLIEST}) == []


@pytest.mark.parametrize("compacted", [False, True])
def test_a_batch_range_that_ends_before_its_start_is_empty(compacted, cluster):
    ahead, behind = (TOPIC, 0), (TOPIC, 1)
    for partition in (ahead, behind):
        cluster.publish(partition, 5, [[b"v"]] * 9)
    start = {ahead: Offset(5, 6), behind: Offset(5, 1)}
    end = dict.fromkeys(start, Offset(5, 4))
    found = planner(cluster, is_batch=True, read_compacted=compacted)
    assert {part.partition for part in found.ranges(start, end)} == {behind}


def test_saved_offsets_that_are_ahead_of_the_ending_time_read_nothing():
    cluster = three_ledgers()
    found = planner(cluster, is_batch=True, starting_offsets={ONE: Offset(8, 1)}, ending_time_ms=7003)
    start = found.starting("earliest")
    assert found.ranges(start, found.ending(start)) == []


def test_a_stream_reads_each_partition_in_one_task_unless_options_split_it():
    cluster, other = ScriptedCluster(), (TOPIC, 1)
    for ledger in (3, 7, 9):
        cluster.publish((TOPIC, 0), ledger, [[b"v" * 1000]] * 40)
        cluster.publish(other, ledger, [[b"v"]] * 40)
    start, end = {other: Offset(3, 39)}, dict.fromkeys([(TOPIC, 0), other], Offset(9, 39))
    stream = planner(cluster)
    ranges = stream.ranges({**start, (TOPIC, 0): Offset(3, 4)}, end)
    assert [(part.partition[1], part.start, part.end) for part in ranges] == [
        (0, Offset(3, 4), Offset(9, 39)), (1, Offset(3, 39), Offset(9, 39)),
    ]  # fmt: skip
    assert cluster.questions == 0, "no entry has to be looked at"
    assert len(planner(cluster, min_partitions=2).ranges(start, end)) == 2
    choices: list[dict[str, int | bool]] = [
        {"min_partitions": 3}, {"max_entries_per_split": 40}, {"max_bytes_per_split": 20_000},
        {"is_batch": True},
    ]  # fmt: skip
    for choice in choices:
        ranges = planner(cluster, **choice).ranges(start, end)
        assert len(ranges) > 2, choice
        assert len(places_of(cluster, ranges)) == 200


def test_many_ledgers_are_split_evenly_in_few_rounds(cluster):
    for ledger in range(1000):
        cluster.publish(ONE, 7 + 13 * ledger, [[b"v"]] * 2)
    last = 7 + 13 * 999
    ranges = planner(cluster, is_batch=True).ranges({}, {ONE: Offset(last, 1)})
    assert len(ranges) == 1000
    assert len(places_of(cluster, ranges)) == 2000
    assert max(len(places_of(cluster, [part])) for part in ranges) == 2
    # Ledgers and their sizes take less than three requests each, and requests are sent together.
    assert cluster.rounds < 100 + 1000


def test_closed_ledgers_are_split_too(cluster):
    for ledger, entries in ((3, 95), (20, 7), (21, 40)):
        cluster.publish(ONE, ledger, [[b"v"]] * entries)
    end = {ONE: Offset(21, 39)}
    ranges = planner(cluster, max_entries_per_split=10).ranges({}, end)
    sizes = [len(places_of(cluster, [part])) for part in ranges]
    assert sizes == [10] * 9 + [5, 7] + [10] * 4
    ranges = planner(cluster, min_partitions=12).ranges({}, end)
    sizes = [len(places_of(cluster, [part])) for part in ranges]
    assert len(sizes) >= 12
    assert sum(sizes) == 142
    assert max(sizes) <= 12


def test_a_minimum_of_tasks_counts_all_ledgers(cluster):
    for ledger, entries in enumerate([1] * 40 + [200] * 20 + [1]):
        cluster.publish(ONE, ledger, [[b"v"]] * entries)
    ranges = planner(cluster, min_partitions=50).ranges({}, {ONE: Offset(60, 0)})
    assert len(places_of(cluster, ranges)) == 41 + 20 * 200
    assert 50 <= len(ranges) <= 41 + 20 * 3


def test_tasks_are_even_and_of_a_size_in_bytes(cluster):
    cluster.publish(ONE, 3, [[b"v" * 900]] * 2000)
    end = {ONE: Offset(3, 1999)}
    (length,) = {len(entry) for entry in cluster.topics[ONE].values()}
    for start in ({}, {ONE: Offset(3, -1)}):
        ranges = planner(cluster, max_bytes_per_split=300 * length).ranges(start, end)
        assert [len(places_of(cluster, [part])) for part in ranges] == [286] * 6 + [284]
    assert cluster.rounds <= 4
    assert len(planner(cluster).ranges({}, end)) == 1
    # The minimum of a task; a range of less than two minima is not split and needs no request.
    ranges = planner(cluster, max_bytes_per_split=1).ranges({}, end)
    assert {len(places_of(cluster, [part])) for part in ranges} == {16}
    cluster.questions = 0
    assert len(planner(cluster, max_bytes_per_split=1).ranges({ONE: Offset(3, 1969)}, end)) == 1
    assert cluster.questions == 0


def test_many_large_partitions_are_estimated_by_samples(cluster):
    partitions = [(TOPIC, index) for index in range(40)]
    for partition in partitions:
        cluster.publish(partition, 3, [[b"v" * 900]] * 300)
    found = planner(cluster, max_bytes_per_split=150_000)
    ranges = found.ranges(dict.fromkeys(partitions, Offset(3, -1)), dict.fromkeys(partitions, Offset(3, 299)))
    assert len(ranges) == 80
    assert cluster.questions < 40 + 40


def test_a_range_that_is_planned_again_has_the_same_tasks():
    cluster, end = ScriptedCluster(), {ONE: Offset(3, 1999)}
    cluster.publish(ONE, 3, [[b"v" * 9000]] * 1000)
    cluster.publish(ONE, 3, [[b"v" * 900]] * 1000)
    running = planner(cluster, max_bytes_per_split=100_000)
    running.ranges({}, {ONE: Offset(3, 999)})
    running.micro_batches.limited({}, end, BatchLimits(bytes=1_000_000))
    # The producers' names of dead letters contain the starts of ranges.
    restarted = planner(cluster, max_bytes_per_split=100_000)
    assert running.ranges({ONE: Offset(3, 999)}, end) == restarted.ranges({ONE: Offset(3, 999)}, end)


@given(
    layout=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), min_size=1, max_size=3),
    limits=st.builds(
        BatchLimits,
        entries=st.none() | st.integers(1, 9),
        rows=st.none() | st.integers(1, 40),
        bytes=st.none() | st.integers(1, 3000),
    ),
    split=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_every_entry_is_read_once_over_micro_batches_and_tasks(layout, limits, split, seed):
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
