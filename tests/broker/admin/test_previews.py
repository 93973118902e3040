"""Previews: what is announced is what happens, and announcing it changes nothing."""

import importlib
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.previews import ACTIONS, Preview, preview
from geminga.ids import MessageId
from tests.broker.conftest import NAME, TOPIC
from tests.support.disk_stores import succeeded

END = (1 << 63) - 1


class Case:
    """Twelve messages in entries of one and of four, some acknowledged, with a consumer that has the rest."""

    def __init__(self, harness: Any, make_entry: Callable[..., bytes]) -> None:
        self.harness = harness
        self.peer = harness.consumer(TOPIC, kind="Shared")
        producer = harness.producer(TOPIC)
        for number, messages in enumerate((1, 4, 1, 4, 1, 1)):
            batch = {"num_messages_in_batch": messages if messages > 1 else None}
            entry = make_entry(publish_time=harness.now_ms, **batch)
            producer.send(number, entry, messages=messages)
            harness.advance(10)
        self.peer.ack((0, 0), (0, 2))
        self.topic, self.subscription = harness.actions.cursors.found(NAME, "s")

    def preview(self, action: str, message: tuple[int, int] | None = None, **query: Any) -> dict[str, Any]:
        before = self.state()
        consumer, number = query.get("consumer", ""), lambda name: int(query[name])
        found = preview(Preview(self.topic, self.subscription), action, number, message, consumer)
        assert self.state() == before, "a preview changes nothing"
        return found

    def state(self) -> Any:
        cursor, consumers = self.subscription.cursor, len(self.subscription.consumers)
        return cursor.mark, list(cursor.holes.ranges()), dict(cursor.batches), consumers

    @property
    def open(self) -> int:
        return int(self.subscription.backlog_tally()[0])


@pytest.fixture
def case(harness, make_entry):
    return Case(harness, make_entry)


@pytest.mark.parametrize("count", [1, 4, 5, 6, 10, 1000])
def test_a_preview_of_skipping_counts_what_skipping_then_skips(case, count):
    before = case.open
    found = case.preview("skip", count=count)
    assert "are skipped" in found["text"]
    skipped = case.harness.actions.cursors.skip_messages(NAME, "s", count, succeeded)
    assert found["messages"] == skipped == before - case.open
    assert found["left"] == case.open


def test_a_preview_of_skipping_inside_a_batch_names_the_batch(case):
    assert "of them lie in batch 0:1" in case.preview("skip", count=2)["text"]


def test_a_preview_of_skipping_all_counts_all_messages(case):
    found = case.preview("skip-all")
    assert (found["messages"], found["left"], found["to"]) == (10, 0, "the end")
    case.harness.actions.cursors.skip_all(NAME, "s", succeeded)
    assert case.open == 0
    assert "nothing is skipped" in case.preview("skip-all")["text"]


@pytest.mark.parametrize("seconds", [0, 15, 35, 55, 1000])
def test_a_preview_of_expiring_counts_what_then_expires(case, seconds):
    before = case.open
    found = case.preview("expire", seconds=seconds)
    case.harness.actions.cursors.expire(NAME, "s", succeeded, seconds=seconds)
    assert found["messages"] == before - case.open


def test_a_preview_of_resetting_back_counts_messages_delivered_again(case):
    found = case.preview("reset", message=(0, 0))
    assert (found["messages"], found["messagesAgain"]) == (0, 2)
    assert "2 messages that were acknowledged are redelivered" in found["text"]
    assert "its consumer reconnects" in found["text"]
    before = case.open
    case.harness.actions.cursors.reset(NAME, "s", succeeded, position=MessageId(-1, 0, 0))
    assert case.open == before + 2


def test_a_preview_of_resetting_forward_counts_messages_given_up(case):
    before = case.open
    assert case.preview("reset", message=(0, 3))["messages"] == 4
    case.harness.actions.cursors.reset(NAME, "s", succeeded, position=MessageId(-1, 0, 3))
    assert case.open == before - 4


def test_a_preview_of_resetting_to_a_time_names_the_position(case):
    found = case.preview("reset", timestamp=case.harness.now_ms - 25_000)
    assert found["to"] == "0:4"
    assert found["command"] == f"geminga subscriptions reset {TOPIC} s {case.harness.now_ms - 25_000}"
    assert case.preview("reset", timestamp=case.harness.now_ms + 1)["to"] == "the end"


def test_a_preview_of_redelivery_counts_the_delivered_messages(case):
    assert case.preview("redeliver")["messagesAgain"] == 10
    case.peer.messages()
    assert case.subscription.redeliver_unacknowledged() == 10
    case.harness.poll()
    again = case.peer.messages()
    assert len(again) == 4
    assert {each.redelivery_count for each in again} == {1}
    assert case.preview("redeliver", consumer="nobody")["messagesAgain"] == 0


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Key_Shared"])
def test_redelivery_works_for_every_subscription_type(harness, kind):
    peer = harness.consumer(TOPIC, kind=kind)
    harness.producer(TOPIC).publish(3)
    assert len(peer.messages()) == 3
    subscription = harness.actions.cursors.found(NAME, "s")[1]
    assert subscription.redeliver_unacknowledged() == 3
    assert len(peer.messages()) == 3


def test_an_unknown_action_is_refused(case):
    with pytest.raises(AdminRefusal, match="no action 'drop'; there are skip, "):
        case.preview("drop")
    assert set(ACTIONS) == {"skip", "skip-all", "expire", "reset", "redeliver"}


def test_each_preview_shows_a_command_that_geminga_parses(case):
    """The command shown beside a preview can be typed: ``geminga`` parses it."""
    shown = [
        case.preview("skip", count=2), case.preview("skip-all"), case.preview("expire", seconds=90),
        case.preview("reset", timestamp=case.harness.now_ms), case.preview("reset", message=(0, 1)),
        case.preview("reset", message=(-1, -1)), case.preview("reset", message=(END, END)),
    ]  # fmt: skip
    for found in shown:
        words = shlex.split(found["command"])
        assert words[:2] == ["geminga", "subscriptions"]
        group = importlib.import_module("geminga.cli.subscriptions").command
        command = group.commands[words[2]]
        command.make_context(words[2], words[3:]).close()
    assert [found["command"].split()[2] for found in shown] == ["skip", "clear", "expire", *["reset"] * 4]
    assert shown[-2]["command"].endswith(" earliest")
    assert shown[-1]["command"].endswith(" latest")


def test_a_publish_time_that_no_calendar_has_is_shown_as_a_number(harness, make_entry):
    harness.peer().subscribe(TOPIC)
    harness.producer(TOPIC).send(0, make_entry(publish_time=1 << 63))
    topic, subscription = harness.actions.cursors.found(NAME, "s")
    found = preview(Preview(topic, subscription), "skip-all", int, None, "")
    assert f"published {1 << 63}" in found["text"]
