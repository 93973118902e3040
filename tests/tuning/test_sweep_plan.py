"""What a sweep tries: axes, designs, and runs that are the same for the same plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from geminga.errors import InvalidConfiguration
from geminga.producer.settings import CompressionType
from geminga.tuning.sweep_plan import (
    AXES,
    Axis,
    RunSpec,
    SweepPlan,
    default_axes,
    latin_hypercube,
    profiles_of,
)
from geminga.tuning.traffic import TrafficProfile

PROFILE = TrafficProfile(rate_messages_per_second=1000, message_bytes=100, partitions=4, name="one")


def test_axes_have_values_or_ranges() -> None:
    values = Axis.parsed("batch-messages=10,100,1000")
    assert [values.at(part) for part in (0.0, 0.4, 0.99)] == [10, 100, 1000]
    delays = Axis.parsed("delay-ms=1:100")
    assert [delays.at(part) for part in (0.0, 0.5, 1.0)] == [1.0, 10.0, 100.0]
    assert delays.levels[0] == 1.0
    assert delays.levels[-1] == 100.0
    assert Axis.parsed("permits=10:20").at(0.5) == 14, "whole numbers stay whole"
    assert Axis.parsed("compression=lz4,none").values == ("LZ4", "NONE")


@pytest.mark.parametrize("text", [axis.to_text() for axis in default_axes()] + ["rate=5:50", "keys=0,10"])
def test_axes_survive_text(text: str) -> None:
    assert Axis.parsed(Axis.parsed(text).to_text()) == Axis.parsed(text)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("dely-ms=1:2", "delay-ms"),
        ("delay-ms", "NAME="),
        ("delay-ms=", "numbers"),
        ("delay-ms=a,b", "numbers"),
        ("delay-ms=5:1", "LOW < HIGH"),
        ("delay-ms=0:1", "LOW"),
        ("delay-ms=1:inf", "finite"),
        ("compression=LZ5", "compression"),
    ],
)
def test_bad_axes_get_a_sentence(text: str, word: str) -> None:
    with pytest.raises(InvalidConfiguration, match=word):
        Axis.parsed(text)


@pytest.mark.parametrize(("points", "axes"), [(1, 1), (7, 3), (200, 6)])
def test_a_latin_hypercube_covers_each_axis_evenly(points: int, axes: int) -> None:
    rows = latin_hypercube(points, axes, np.random.default_rng(1))
    assert rows.shape == (points, axes)
    for column in range(axes):
        assert sorted((rows[:, column] * points).astype(int)) == list(range(points))


def test_a_grid_has_every_combination() -> None:
    plan = SweepPlan(
        profiles=(PROFILE,), design="grid",
        axes=tuple(map(Axis.parsed, ("delay-ms=1,10", "compression=NONE,ZSTD", "permits=100:1000"))),
    )  # fmt: skip
    specs = plan.specs()
    assert len(specs) == 2 * 2 * 5
    settings = [spec.settings.producer for spec in specs if spec.settings]
    assert {s.compression_type for s in settings} == {CompressionType.NONE, CompressionType.ZSTD}
    assert {s.batching_max_publish_delay_seconds for s in settings} == {0.001, 0.01}


def test_the_same_plan_has_the_same_runs_and_another_seed_others() -> None:
    def ids(**changed: Any) -> list[str]:
        return [spec.run_id for spec in SweepPlan(profiles=(PROFILE,), runs=50, **changed).specs()]

    assert ids() == ids()
    assert len(set(ids())) == 50
    assert not set(ids()) & set(ids(seed=2))


def test_profiles_share_the_runs_and_each_has_points_of_its_own() -> None:
    plan = SweepPlan(profiles=(PROFILE, PROFILE.changed(name="two", keys=5)), runs=40)
    specs = plan.specs()
    assert [sum(spec.profile.name == name for spec in specs) for name in ("one", "two")] == [20, 20]
    delays = [
        [s.settings.producer.batching_max_publish_delay_seconds for s in part if s.settings]
        for part in (specs[:20], specs[20:])
    ]
    assert delays[0] != delays[1]


def test_traffic_can_be_an_axis() -> None:
    plan = SweepPlan(profiles=(PROFILE,), axes=(Axis.parsed("rate=10:1000"),), runs=10)
    rates = [spec.profile.rate_messages_per_second for spec in plan.specs()]
    assert len(set(rates)) == 10
    assert 10 <= min(rates) < max(rates) <= 1000


def test_points_that_make_no_sense_say_why() -> None:
    plan = SweepPlan(profiles=(PROFILE,), axes=(Axis.parsed("batch-messages=0,10"),), design="grid")
    bad, good = plan.specs()
    assert bad.settings is None
    assert "batching_max_messages=0" in bad.problem
    assert good.problem == ""


def test_runs_travel_as_text() -> None:
    for spec in SweepPlan(
        profiles=(PROFILE,), axes=(Axis.parsed("batch-messages=0,10"),), design="grid"
    ).specs():
        assert RunSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    "fields", [{"profiles": ()}, {"runs": 0}, {"seconds": 0.5}, {"design": "random"}, {"seed": -1}]
)
def test_plans_that_make_no_sense_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfiguration, match=next(iter(fields))):
        SweepPlan(**{"profiles": (PROFILE,), **fields})
    axis = Axis.parsed("delay-ms=1,2")
    with pytest.raises(InvalidConfiguration, match="each axis once"):
        SweepPlan(profiles=(PROFILE,), axes=(axis, axis))


def test_profiles_come_from_json() -> None:
    found = profiles_of([{"rate_messages_per_second": 5, "message_bytes": 10}, PROFILE.to_dict()])
    assert [profile.name for profile in found] == ["profile 1", "one"]
    for bad, word in (([], "list"), ({"a": 1}, "list"), ([5], "object"), ([{"rate": 5}], "rate")):
        with pytest.raises(InvalidConfiguration, match=word):
            profiles_of(bad)  # type: ignore[arg-type]


def test_every_axis_names_a_field_that_exists() -> None:
    for kind in AXES.values():
        if kind.part == "traffic":
            assert hasattr(PROFILE, kind.field)
