"""Figures from an Apache Pulsar's stats, and what is concluded from them."""

from typing import Any

import pytest

from geminga.diagnosis.conclude import Diagnosis, Trouble, diagnose, explanation
from geminga.diagnosis.pulsar import facts_from_stats

TOPIC = "persistent://public/default/t"
NOW = 1_800_000_000_000
BEHIND = {"markDeletePosition": "5:1", "readPosition": "5:40"}
CAUGHT_UP = {"markDeletePosition": "5:1", "readPosition": "5:100"}


def consumer(**fields: Any) -> dict[str, Any]:
    """A Shared consumer without permits that was last served and has last acknowledged 90 seconds ago."""
    return {
        "consumerName": "worker", "address": "/1.2.3.4:5", "availablePermits": 0, "unackedMessages": 20,
        "msgRateOut": 0.0, "messageAckRate": 0.0, "lastConsumedTimestamp": NOW - 90_000,
        "lastAckedTimestamp": NOW - 90_000,
    } | fields  # fmt: skip


def concluded(
    *consumers: dict[str, Any],
    cursor: dict[str, str] = BEHIND,
    rate: float = 0.0,
    open_transactions: int = 0,
    **fields: Any,
) -> Diagnosis:
    own = {"msgBacklog": 98, "backlogSize": 9_800, "type": "Shared", "consumers": [*consumers]} | fields
    own["unackedMessages"] = sum(each["unackedMessages"] for each in consumers)
    stats = {"msgRateIn": rate, "backlogQuotaLimitSize": 9_000 if "quota" in fields else -1}
    stats["ongoingTxnCount"] = open_transactions
    stats["subscriptions"] = {"s": own, "other": {"msgBacklog": 99, "backlogSize": fields.get("quota", 0)}}
    inside = {"lastConfirmedEntry": "5:99", "cursors": {"s": cursor}}
    return diagnose(facts_from_stats(TOPIC, "s", stats, inside, NOW))


def test_a_consumer_that_acknowledges_is_slow_and_not_paused():
    found = concluded(
        consumer(lastAckedTimestamp=NOW - 102, messageAckRate=5.0, unackedMessages=555), rate=15.0
    )
    assert found.level == Trouble.WATCH
    assert found.sentence == (
        "consumer 'worker' at /1.2.3.4:5 is slower than the producers: 5.0/s against 15/s; "
        "555 unacknowledged, the last acknowledgement 0s ago"
    )


def test_a_consumer_that_neither_receives_nor_acknowledges_is_paused():
    found = concluded(consumer())
    assert (found.level, found.kind) == (Trouble.STOPPED, "paused")
    assert "worker" in found.sentence
    assert concluded(consumer(), rate=1.0).level == Trouble.GROWING


def test_a_consumer_that_never_acknowledges_shows_while_it_is_being_served():
    busy = {
        "availablePermits": 500,
        "lastConsumedTimestamp": NOW,
        "lastAckedTimestamp": 0,
        "msgRateOut": 30.0,
    }
    assert concluded(consumer(**busy, unackedMessages=1_000), cursor=CAUGHT_UP).level == Trouble.MOVING
    found = concluded(consumer(**busy, unackedMessages=12_555), cursor=CAUGHT_UP)
    assert found.level == Trouble.WATCH
    assert "'worker' at /1.2.3.4:5 holds 12,555 messages, and has acknowledged none since" in found.sentence


def test_idle_subscriptions_are_not_stopped():
    assert concluded().level == Trouble.IDLE
    assert concluded(rate=2.0).level == Trouble.GROWING


def test_delivered_messages_are_not_waiting():
    found = concluded(consumer(availablePermits=100, lastConsumedTimestamp=NOW - 1_000), cursor=CAUGHT_UP)
    assert (found.level, found.kind) == (Trouble.MOVING, "")


def test_messages_that_no_consumer_gets_for_an_unknown_cause():
    found = concluded(consumer(availablePermits=100))
    assert (found.level, found.kind) == (Trouble.STOPPED, "undelivered")
    assert (
        "consumer 'worker' at /1.2.3.4:5 could take them, but none was delivered for 60 s" in found.sentence
    )


def test_open_transactions_may_hold_back_messages_that_no_consumer_gets():
    found = concluded(consumer(availablePermits=100), open_transactions=3)
    assert (found.level, found.kind) == (Trouble.STOPPED, "transaction")
    assert found.sentence.endswith("first message of an open transaction, of which the topic has 3")
    assert "geminga transactions list" in found.findings[0].mend


@pytest.mark.parametrize(
    ("other", "then"),
    [(100, "and producers continue"), (9_500, "but subscription 'other' exceeds the quota")],
)
def test_advice_for_a_quota_looks_at_the_other_subscriptions(other, then):
    found = concluded(quota=other, backlogSize=9_020)
    finding = next(each for each in found.findings if each.kind == "quota")
    assert "8.81 KiB, 8.79 KiB are allowed" in finding.text
    assert then in finding.mend
    assert finding.mend.endswith(f"geminga subscriptions clear {TOPIC} s")


def test_commands_that_apache_pulsar_does_not_have_are_not_advised():
    found = concluded(consumer(), nonContiguousDeletedMessagesRanges=3, msgDelayed=2)
    text = " ".join(each.mend for each in found.findings)
    assert "expire" in text
    assert not any(f" {each} " in text for each in ("redeliver-unacked", "subscriptions skip", "policy"))


def test_a_reader_of_the_explanation_finds_plain_json():
    stats = {"subscriptions": {"s": {"msgBacklog": 0}}}
    found = explanation(facts_from_stats(TOPIC, "s", stats, {}, NOW))
    assert (found["summary"], found["trouble"]) == ("everything is acknowledged", 0)
    with pytest.raises(KeyError):
        facts_from_stats(TOPIC, "none", stats, {}, NOW)


def test_fields_without_a_value_are_unknown():
    nothing = dict.fromkeys(("lastAckedTimestamp", "messageAckRate", "address"))
    found = concluded(
        consumer(**nothing, msgRateOut="NaN"), type="Failover", activeConsumerName=None, msgDelayed=None
    )
    assert (found.level, found.kind) == (Trouble.STOPPED, "paused"), "the consumer is not taken for a standby"


def test_expired_messages_without_a_time_of_expiry_are_not_dated():
    """Brokers may give a count alone."""
    found = concluded(cursor=CAUGHT_UP, msgBacklog=0, totalMsgExpired=7)
    assert found.sentence == "everything is acknowledged"
