"""Scripted faults: the point at which each one happens, and its kind.

A stream from topic to topic passes every point, so most faults use one. The counts of passes put a fault in
the middle of the work: in the driver in the second micro-batch, in a task after the first task has finished.
"""

from collections.abc import Iterable, Iterator

import chaos
from chaos import Scenario, Strike
from faulty_source import OF_READING, OF_THE_SOURCE, OF_WRITING

TASK_HIT, DRIVER_HIT = 2, 1
READING = (*OF_THE_SOURCE, *OF_READING)
BROKER_DIES_AT = (
    "looking", "planning", "opening", "reading", "writing", "written",
    "committing", "publishing", "published",
)  # fmt: skip
CUT_AT = ("looking", "planned", "opening", "reading", "written", "publishing", "published")
UNLOADED_AT = ("looking", "planned", "reading", "publishing", "published")
THROUGH_A_PROXY = (chaos.connections_cut, chaos.messages_withheld, chaos.receipts_lost)
STAYS_BESIDE = {"stagingLocation": "{folder}/staging"}


def all_scenarios() -> list[Scenario]:
    found = [
        *_copied_exactly_once(), *_copied_at_least_once(), *_copied_from_what_changes(), *_checkpoints(),
        *_read(), *_read_in_a_batch(), *_written_in_a_batch(),
    ]  # fmt: skip
    assert len({each.name for each in found}) == len(found)
    return found


def _hit(point: str) -> int:
    if point == "starting":
        return 0
    return TASK_HIT if point in (*OF_READING, *OF_WRITING) else DRIVER_HIT


def _words(strike: str | Strike) -> str:
    if isinstance(strike, str):
        return {"kill": "process killed", "fail": "exception", "full": "disk full"}[strike]
    return strike.__name__.replace("_", " ")


def _struck(prefix: str, points: Iterable[str], strike: str | Strike, **rest: object) -> Iterator[Scenario]:
    for point in points:
        fields: dict[str, object] = {"point": point, "hit": _hit(point), "fault": strike, **rest}
        fields["is_cut"] = strike in THROUGH_A_PROXY
        yield Scenario(name=f"{prefix}: {_words(strike)} at {point}", **fields)


def _copied_exactly_once() -> Iterator[Scenario]:
    def struck(points: Iterable[str], strike: str | Strike) -> Iterator[Scenario]:
        return _struck("exactly once", points, strike, shape="copy")

    yield from struck(chaos.POINTS, "kill")
    yield from struck(
        ("reading", "writing", "staging", "written", "committing", "publishing", "published"), "fail"
    )
    yield from struck(("staging", "deciding", "published"), "full")
    yield from struck(BROKER_DIES_AT, chaos.broker_killed)
    yield from struck(("looking", "reading", "publishing"), chaos.broker_suspended)
    yield from struck(CUT_AT, chaos.connections_cut)
    yield from struck(UNLOADED_AT, chaos.topics_unloaded)
    yield from struck(("committing", "publishing"), chaos.receipts_lost)


def _copied_at_least_once() -> Iterator[Scenario]:
    def struck(points: Iterable[str], strike: str | Strike) -> Iterator[Scenario]:
        rest = {"shape": "copy", "exactly_once": False, "outcome": "superset"}
        return _struck("at least once", points, strike, **rest)

    yield from struck(("planned", "reading", "writing", "written"), "kill")
    yield from struck(("writing", "written"), "fail")
    yield from struck(("reading", "writing", "written"), chaos.broker_killed)
    yield from struck(("reading", "writing"), chaos.connections_cut)
    yield from struck(("writing",), chaos.topics_unloaded)
    yield from struck(("writing",), chaos.receipts_lost)


def _copied_from_what_changes() -> Iterator[Scenario]:
    """Topics that are not what they were when the query began."""

    def struck(points: Iterable[str], strike: str | Strike, **rest: object) -> Iterator[Scenario]:
        return _struck("exactly once", points, strike, shape="copy", **rest)

    yield from struck(("looking", "planned", "publishing"), chaos.partitions_added)
    yield from struck(("opening", "writing", "committing"), chaos.partitions_of_the_target_added)
    yield from struck(("looking", "planned"), chaos.topic_added, by_pattern=True)
    yield from struck(("planned",), chaos.more_published)


def _checkpoints() -> Iterator[Scenario]:
    def after(between: Strike, **rest: object) -> Scenario:
        fields = {"shape": "copy", "between": between, **rest}
        return Scenario(name=f"exactly once: {_words(between)}", **fields)

    beside = {"sink": STAYS_BESIDE}
    named = {"sink": {**STAYS_BESIDE, "sinkName": "mine"}}
    yield after(chaos.commit_removed)
    yield after(chaos.plan_removed_and_nothing_new)
    yield after(chaos.plan_removed, error="published before", outcome="subset")
    yield after(chaos.plans_removed, error="has published micro-batch", outcome="subset")
    yield after(chaos.staging_removed)
    yield after(chaos.staging_and_commit_removed, error="has\\s+rows\\s+under", outcome="subset")
    yield after(chaos.checkpoint_removed, **beside)
    yield Scenario(
        name="exactly once: checkpoint removed, with a name of the sink's own", shape="copy",
        between=chaos.checkpoint_removed, error="has published micro-batch", outcome="subset", **named,
    )  # fmt: skip
    yield after(chaos.another_query, **beside)


def _read() -> Iterator[Scenario]:
    def struck(points: Iterable[str], strike: str | Strike, **rest: object) -> Iterator[Scenario]:
        return _struck("read", points, strike, shape="read", **rest)

    yield from struck(READING, "kill")
    yield from struck(("planning", "reading"), "fail")
    yield from struck(("starting", "looking", "planning", "opening", "reading"), chaos.broker_killed)
    yield from struck(("starting", "looking", "planned", "opening", "reading"), chaos.connections_cut)
    yield from struck(("looking", "opening", "reading"), chaos.topics_unloaded)
    yield from struck(("starting", "opening"), chaos.messages_withheld)
    yield from struck(("starting", "planned", "reading"), chaos.partitions_added)
    yield from struck(("looking", "reading"), chaos.topic_added, by_pattern=True)
    durable = {"durableSubscription": "true"}
    # The first micro-batch has four tasks at the most, and nothing lies behind it before the second.
    for points, hit in ((("looking", "planned"), 2), (("opening",), 4)):
        yield from struck(points, chaos.ledgers_trimmed, trims=True, source=durable, hit=hit)
    yield from struck(
        ("planned",), chaos.topic_truncated, trims=True, error="is gone|ends at", outcome="subset",
        second={"failOnDataLoss": "false"},
    )  # fmt: skip
    for between in (chaos.commit_removed, chaos.plan_removed, chaos.plans_removed):
        yield Scenario(name=f"read: {_words(between)}", shape="read", between=between)
        yield Scenario(
            name=f"read with a subscription: {_words(between)}", shape="read", between=between, source=durable
        )


def _read_in_a_batch() -> Iterator[Scenario]:
    def struck(points: Iterable[str], strike: str | Strike, **rest: object) -> Iterator[Scenario]:
        return _struck("batch read", points, strike, **{"shape": "batch read", "hit": 0, **rest})

    yield from struck(("planning", "opening", "reading"), "kill")
    yield from struck(("planning", "opening", "reading"), chaos.broker_killed)
    yield from struck(("planning", "opening", "reading"), chaos.connections_cut)
    yield from struck(("planned", "reading"), chaos.topics_unloaded)
    yield from struck(("opening",), chaos.messages_withheld)
    yield from struck(("planned", "opening"), chaos.published_too_late)
    yield from struck(
        ("planned",), chaos.topic_truncated, trims=True, error="is gone|ends at", outcome="subset"
    )


def _written_in_a_batch() -> Iterator[Scenario]:
    def struck(points: Iterable[str], strike: str | Strike, **rest: object) -> Iterator[Scenario]:
        name = "batch write" if rest.get("exactly_once") is False else "batch write, all or nothing"
        return _struck(name, points, strike, **{"shape": "batch write", "hit": 0, **rest})

    twice = {"exactly_once": False, "outcome": "superset"}
    yield from struck(("writing", "written"), "kill", **twice)
    yield from struck(("writing", "written"), chaos.broker_killed, **twice)
    yield from struck(("writing",), chaos.connections_cut, **twice)
    yield from struck(("writing", "staging", "written"), "kill")
    yield from struck(("committing", "publishing"), "kill", error=".", outcome="subset")
    yield from struck(("staging",), "full")
    yield from struck(("staging", "publishing", "published"), chaos.broker_killed)
    yield from struck(("publishing", "published"), chaos.connections_cut)
    yield from struck(("publishing",), chaos.receipts_lost)
    yield from struck(("publishing",), chaos.topics_unloaded)


KILLED_ON_APACHE_PULSAR = (
    "exactly once: broker killed at reading",
    "exactly once: broker killed at publishing",
    "at least once: broker killed at writing",
    "read: broker killed at planning",
    "batch read: broker killed at reading",
    "batch write, all or nothing: broker killed at publishing",
)
"""Scenarios with a restart of Apache Pulsar, which takes 15 s."""


def on_apache_pulsar() -> list[Scenario]:
    return [
        each
        for each in all_scenarios()
        if each.fault is not chaos.broker_killed or each.name in KILLED_ON_APACHE_PULSAR
    ]
