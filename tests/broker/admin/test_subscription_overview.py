"""Overview of all subscriptions, those in most trouble first, for any number of them."""

import asyncio
import itertools
import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import loop_turns

from geminga.broker.admin import subscription_overview
from geminga.broker.admin.subscription_overview import SubscriptionOverview, Visibility
from geminga.broker.topics import resting
from geminga.diagnosis.conclude import Trouble
from geminga.ids import MessageId, TopicName
from tests.support.disk_stores import succeeded

PREFIX = "persistent://public/default/"


QUESTION: dict[str, Any] = {
    "search": "", "sort": "trouble", "reverse": False, "level": None, "offset": 0, "limit": 50, "sight": None,
}  # fmt: skip


def complete_page(harness: Any, overview: Any, **asked: Any) -> dict[str, Any]:
    """A page of an overview whose scan is complete."""
    harness.broker.topics.resting.begin(lambda: None)
    harness.advance(1)

    async def ask() -> dict[str, Any]:
        while not (found := await overview.page(**QUESTION | asked))["complete"]:
            await loop_turns()
        overview.close()
        return found

    return asyncio.run(ask())


def page(harness: Any, **asked: Any) -> dict[str, Any]:
    return complete_page(harness, SubscriptionOverview(harness.broker), **asked)


def names(found: dict[str, Any]) -> list[str]:
    return [row["topic"].removeprefix(PREFIX) for row in found["rows"]]


@pytest.fixture
def boards(harness):
    found = SubscriptionOverview(harness.broker)
    yield found
    found.close()


@pytest.fixture
def make_topic(harness):
    def make(name: str, subscriptions: tuple[str, ...] = ("s",), messages: int = 0) -> None:
        topic = TopicName.parse(PREFIX + name)
        harness.actions.create(topic, succeeded)
        for subscription in subscriptions:
            harness.actions.cursors.create(topic, subscription, MessageId.earliest, succeeded)
        harness.poll()
        if messages:
            peer = harness.producer(PREFIX + name)
            peer.publish(messages)
            peer.disconnect()

    return make


def test_subscriptions_in_most_trouble_come_first(harness, make_topic):
    make_topic("quiet")
    make_topic("small", messages=2)
    make_topic("large", messages=9)
    consumer = harness.peer()
    make_topic("moving", messages=3)
    consumer.subscribe(PREFIX + "moving", kind="Shared")
    found = page(harness)
    assert names(found) == ["large", "small", "moving", "quiet"]
    assert [row["trouble"] for row in found["rows"]] == [5, 5, 2, 0]
    assert found["rows"][0]["sentence"].startswith("no consumer is connected")
    assert found["rows"][0]["messages"] == 9
    assert found["rows"][2]["sentence"] == "all messages are delivered, and wait to be acknowledged"
    assert found["rows"][2]["unacked"] == 3
    assert found["totals"]["levels"] == [1, 0, 1, 0, 0, 2, 0]
    assert found["totals"]["subscriptions"] == 4


def test_partitions_of_a_topic_are_one_row(harness, make_entry):
    name = TopicName.parse(PREFIX + "parts")
    harness.actions.create_partitioned(name, 3, succeeded)
    for index in range(3):
        harness.actions.cursors.create(name.partition_name(index), "s", MessageId.earliest, succeeded)
    harness.producer(f"{PREFIX}parts-partition-1").publish(4)
    row, *others = page(harness)["rows"]
    assert not others
    assert (row["topic"], row["partitions"], row["messages"]) == (PREFIX + "parts", 3, 4)
    assert row["worst"].endswith("-partition-1")
    assert row["trouble"] == Trouble.GROWING


def test_topics_that_are_not_in_memory_are_listed(harness, make_topic):
    """The longest-waiting subscription may belong to a topic that is not in memory, and must be listed."""
    make_topic("resting", messages=5)
    make_topic("done")
    harness.restart()
    assert not harness.broker.topics.loaded()
    found = page(harness)
    rows = found["rows"]
    assert names(found) == ["resting", "done"]
    assert [(row["entries"], row["awake"]) for row in rows] == [(5, False), (0, False)]
    assert rows[0]["trouble"] == Trouble.IDLE
    assert "no consumer is connected" in rows[0]["sentence"]
    assert not harness.broker.topics.loaded(), "looking loads nothing"


def test_a_backlog_that_is_none_of_the_largest_is_shown_as_unknown(harness, make_topic, monkeypatch):
    monkeypatch.setattr(resting, "LISTED_MAX", 1)
    for number in range(3):
        make_topic(f"t{number}", messages=number + 1)
    harness.restart()
    rows = page(harness, sort="backlog")["rows"]
    assert [(row["topic"][-1], row["entries"], row["messages"]) for row in rows] == [
        ("2", 3, -1), ("0", 0, -1), ("1", 0, -1),
    ]  # fmt: skip
    assert "none of the largest" in rows[1]["sentence"]


async def test_backlogs_of_topics_that_are_not_read_yet_are_shown_as_unknown(harness, make_topic):
    make_topic("resting", messages=5)
    harness.restart()
    boards = SubscriptionOverview(harness.broker)
    found = await boards.page(**QUESTION)
    # The scan that was made before is shown while the next one is made.
    harness.broker.topics.resting.begin(lambda: None)
    harness.advance(1)
    later = await boards.page(**QUESTION)
    boards.close()
    assert later["complete"] is False
    assert later["rows"][0]["sentence"] == found["rows"][0]["sentence"]
    [row] = found["rows"]
    assert (found["complete"], row["entries"], row["messages"]) == (False, 0, -1)
    assert row["sentence"] == "the topic is not in memory, and its backlog is still being read"


def test_holes_of_cursors_not_in_memory_are_counted(harness, make_topic):
    make_topic("holes", messages=6)
    peer = harness.consumer(PREFIX + "holes", kind="Shared")
    ids = peer.ids()
    peer.ack(ids[1], ids[3])
    peer.disconnect()
    harness.restart()
    assert page(harness)["rows"][0]["entries"] == 4


def test_rows_are_searched_sorted_and_paged(harness, make_topic):
    for number in range(7):
        make_topic(f"jobs-{number}", ("workers", f"audit-{number}"), messages=number)
    assert page(harness, search="AUDIT jobs-3")["rows"][0]["subscription"] == "audit-3"
    assert page(harness, search="nothing-like-it")["matching"] == 0
    listed = names(page(harness, search="workers", sort="name"))
    assert listed == sorted(listed)
    assert names(page(harness, search="workers", sort="backlog", reverse=True))[0] == "jobs-0"
    found = page(harness, sort="backlog", offset=4, limit=3)
    assert (len(found["rows"]), found["matching"], found["offset"]) == (3, 14, 4)
    assert page(harness, level=5)["matching"] == 12
    assert page(harness, level=0)["matching"] == 2


def test_roles_that_see_only_some_topics_get_no_totals(harness, make_topic):
    make_topic("mine", messages=1)
    make_topic("theirs", messages=1)
    found = page(harness, sight=Visibility("me", lambda topic: topic.endswith("mine")))
    assert names(found) == ["mine"]
    assert found["totals"] is None
    assert found["matching"] == 1


def test_names_with_markup_are_shown_unchanged(harness, make_topic):
    make_topic("<img src=x onerror=alert(1)>", ("<script>alert(1)</script>",), messages=1)
    make_topic("x-partition-", messages=1)
    assert set(names(page(harness))) == {"<img src=x onerror=alert(1)>", "x-partition-"}


def test_a_non_persistent_topic_has_a_row(harness):
    harness.peer().subscribe("non-persistent://public/default/n", kind="Shared", earliest=False)
    row = page(harness)["rows"][0]
    assert (row["durable"], row["trouble"], row["consumers"]) == (False, 0, 1)


async def test_surveys_are_not_repeated_soon_and_unused_boards_are_dropped(harness, make_topic, monkeypatch):
    monkeypatch.setattr(subscription_overview, "AGAIN_SECONDS_MIN", 1_000.0)
    make_topic("a", messages=1)
    cached: weakref.WeakSet[subscription_overview.OverviewCache] = weakref.WeakSet()

    class Cache(subscription_overview.OverviewCache):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            cached.add(self)

    monkeypatch.setattr(subscription_overview, "OverviewCache", Cache)
    boards = SubscriptionOverview(harness.broker)
    first = await boards.page(**QUESTION)
    for _ in range(5):
        again = await boards.page(**QUESTION)
        assert again["surveyedAt"] == first["surveyedAt"], "not surveyed again so soon"
    for number in range(3 * subscription_overview.BOARDS_MAX):
        await boards.page(**QUESTION | {"search": str(number)})
    assert len(cached) <= subscription_overview.BOARDS_MAX
    boards.close()
    assert not cached


def test_of_too_many_subscriptions_those_in_least_trouble_are_left_out(harness, make_topic, monkeypatch):
    monkeypatch.setattr(subscription_overview, "LINES_MAX", 10)
    for number in range(20):
        make_topic(f"quiet-{number:02}")
    make_topic("z-stuck", messages=1)
    found = page(harness)
    assert found["rows"][0]["topic"] == PREFIX + "z-stuck"
    assert found["totals"]["leftOut"] > 0
    assert found["matching"] <= 10
    assert found["matching"] + found["totals"]["leftOut"] == 21
    assert page(harness, search="quiet-19")["matching"] == 1


@pytest.mark.parametrize("search", ["", "no such thing"])
def test_no_step_of_a_survey_looks_at_all_names(harness, make_topic, monkeypatch, search):
    """This includes names that the search does not match, and topics that are in memory."""
    for number in range(40):
        make_topic(f"t{number:02}", messages=number % 2)
    for _ in range(2):
        looked = 0
        monkeypatch.setattr(subscription_overview, "_NAMES_AT_ONCE", 4)
        names = harness.store.keys.names

        def counted(prefix: str, names: Any = names) -> Any:
            nonlocal looked
            for name in names(prefix):
                looked += 1
                yield name

        monkeypatch.setattr(harness.broker.store.keys, "names", counted)
        most = before = 0
        for _step in subscription_overview.OverviewCache(harness.broker, search)._walk(
            subscription_overview.SubscriptionScan()
        ):
            most, before = max(most, looked - before), looked
        assert looked == 40
        assert max(most, looked - before) <= 4
        monkeypatch.undo()
        harness.restart()


def test_names_that_only_resemble_partitions_are_rows_of_their_own(harness, make_topic):
    """Names that only resemble partitions (empty base name, other digits) are listed as separate topics."""
    for name in ("-partition-0", "x", "x-partition-\u0663", "x-partition-01", "y-partition-0"):
        make_topic(name)
    sight = Visibility("role", lambda topic: TopicName.parse(topic).local != "x-partition-01")
    shown = names(page(harness, sort="name", sight=sight))
    assert shown == ["-partition-0", "x", "x-partition-\u0663", "y"]


def test_times_that_no_calendar_has_are_shown(harness, make_entry):
    """A producer says when a message is to come: any number."""
    topic = PREFIX + "late"
    harness.peer().subscribe(topic, kind="Shared")
    harness.producer(topic).send(0, make_entry(deliver_at_time=1 << 62))
    (row,) = page(harness)["rows"]
    assert str(1 << 62) in row["sentence"]


async def test_a_revoked_permission_hides_a_topic_at_once(boards, make_topic):
    """Between two surveys of very many topics, minutes pass."""
    for name in ("mine", "was-mine"):
        make_topic(name)
    allowed = {PREFIX + "mine", PREFIX + "was-mine"}
    asked = QUESTION | {"sort": "name", "sight": Visibility("role", allowed.__contains__)}
    assert names(await boards.page(**asked)) == ["mine", "was-mine"]
    allowed.remove(PREFIX + "was-mine")
    assert names(await boards.page(**asked)) == ["mine"]


async def test_new_searches_take_turns_and_keep_the_unfiltered_board(boards, make_topic, monkeypatch):
    for number in range(20):
        make_topic(f"t{number}")
    monkeypatch.setattr(subscription_overview, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(subscription_overview, "AGAIN_SECONDS_MIN", 1_000.0)
    monkeypatch.setattr(subscription_overview, "WAIT_SECONDS", 60.0)  # however slow the machine is
    steps: list[float] = []
    walk = subscription_overview.OverviewCache._walk

    def walked(self: Any, survey: Any) -> Any:
        for step in walk(self, survey):
            until = time.monotonic() + 0.002
            while time.monotonic() < until:
                pass
            if self._pace is not None:
                steps.append(time.monotonic())
            yield step

    monkeypatch.setattr(subscription_overview.OverviewCache, "_walk", walked)
    monkeypatch.setattr(
        subscription_overview, "time", SimpleNamespace(**{**vars(time), "thread_time": time.monotonic})
    )

    def ask(search: str) -> Any:
        return boards.page(**QUESTION | {"search": search})

    of_all = await ask("")
    assert not steps
    found = await asyncio.gather(*(ask(f"T{number}  t") for number in range(5)))
    for search, before in (("", of_all), ("t4 t", found[4])):
        assert (await ask(search))["surveyedAt"] == before["surveyedAt"]
    for number in range(5):
        await ask(f"u{number}")
    assert len(steps) > 10
    # Each took 2 ms of a core, and four times as long nothing was done.
    assert min(after - before for before, after in itertools.pairwise(steps)) >= 0.008
