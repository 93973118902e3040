"""The state topic of a function stays small: compaction covers it, and what is covered is trimmed."""

from typing import Any

import pytest
from waiting import eventually

import geminga
from geminga.admin import Retention
from geminga.broker.topics import topic_maintenance
from geminga.functions import FunctionRunner, state_topic
from tests.functions.place import Place


@pytest.fixture
def small_ledgers(pulsar_topic, monkeypatch):
    """A broker that closes ledgers after ten entries and trims them every 0.1 s; functions trim as often."""
    monkeypatch.setattr(state_topic, "TRIM_SECONDS", 0.05)
    monkeypatch.setattr(topic_maintenance, "ROUND_SECONDS", 0.1)
    with geminga.embedded(ledger_entries_max=10) as broker:
        yield Place(broker, broker.client(), pulsar_topic)


def keep(value: str, context: Any) -> str:
    context.put_state("last", value)
    context.incr_counter("n", 1)
    return f"{value} {context.get_counter('n')}"


def test_state_messages_that_compaction_covers_are_trimmed_and_the_state_stays(small_ledgers):
    place = small_ledgers
    settings = place.settings(keep, connection={"admin_url": place.broker.admin_url})
    topic = f"{settings.tenant}/{settings.namespace}/{settings.name}-state"
    with geminga.Admin(place.broker.admin_url) as admin:
        with FunctionRunner(settings):
            for value in range(20):
                place.send(value)
                eventually(lambda count=value + 1: _messages(admin, topic) >= 2 * count)
            eventually(lambda: admin.topic_policies.retention.get(topic) == Retention(minutes=0, megabytes=0))
            eventually(lambda: admin.topic_policies.compaction_threshold.get(topic) == 16 * 1024 * 1024)
            assert admin.topics.internal_stats(topic).number_of_entries >= 20
            admin.topics.compact(topic)
            eventually(lambda: admin.topics.internal_stats(topic).number_of_entries <= 10)
        with FunctionRunner(settings):
            place.send("again")
            assert place.values(21)[-1] == "again 21"


def _messages(admin: geminga.Admin, topic: str) -> int:
    try:
        return admin.topics.stats(topic).msg_in_counter
    except geminga.exceptions.PulsarException:
        return 0


def test_existing_policies_of_a_state_topic_are_kept(small_ledgers):
    place = small_ledgers
    settings = place.settings(keep, connection={"admin_url": place.broker.admin_url})
    topic = f"{settings.tenant}/{settings.namespace}/{settings.name}-state"
    with geminga.Admin(place.broker.admin_url) as admin:
        admin.topics.create(topic)
        wanted = Retention(minutes=5, megabytes=7)
        admin.topic_policies.retention.set(topic, wanted)
        admin.topic_policies.compaction_threshold.set(topic, 0)
        with FunctionRunner(settings):
            place.send("a")
            assert place.values(1) == ["a 1"]
        assert admin.topic_policies.retention.get(topic) == wanted
        assert admin.topic_policies.compaction_threshold.get(topic) == 0


def test_a_state_topic_that_cannot_be_trimmed_is_named_in_the_log(small_ledgers, caplog):
    caplog.set_level("WARNING", "geminga.functions")
    settings = small_ledgers.settings(keep, connection={"admin_url": "http://127.0.0.1:1"})
    with FunctionRunner(settings):
        small_ledgers.send("a")
        assert small_ledgers.values(1) == ["a 1"]
        text = "-state is not trimmed, and grows: no answer from http://127.0.0.1:1"
        eventually(lambda: text in caplog.text)


def test_the_web_address_for_trimming_is_learned_from_the_broker(small_ledgers):
    settings = small_ledgers.settings(keep)
    topic = f"{settings.tenant}/{settings.namespace}/{settings.name}-state"
    with geminga.Admin(small_ledgers.broker.admin_url) as admin, FunctionRunner(settings):
        small_ledgers.send("a")
        assert small_ledgers.values(1) == ["a 1"]
        eventually(lambda: admin.topic_policies.compaction_threshold.get(topic) == 16 * 1024 * 1024)
