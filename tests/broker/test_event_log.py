"""Log of automatic actions: the newest of each kind are kept, regardless of other kinds."""

import pytest
from cases import cases

from geminga.broker.runtime.event_log import KEPT_OF_A_KIND, ONE_LINE_SECONDS, BrokerEventLog
from geminga.broker.runtime.rate_limited_logger import AuditedRequest, AuditLog
from geminga.broker.runtime.scheduler import Scheduler


def test_the_newest_events_of_each_kind_are_kept():
    event_log = BrokerEventLog()
    event_log.tell("quota", 1, "t", "s", count=1, unit="time", text="stopped")
    for number in range(3 * KEPT_OF_A_KIND):
        event_log.tell("expired", 2 + number, f"topic-{number}", count=1, unit="entry")
    found = event_log.newest(1000)
    assert len(found) == KEPT_OF_A_KIND + 1
    assert found[0].topic == f"topic-{3 * KEPT_OF_A_KIND - 1}"
    assert found[-1].kind == "quota"
    assert len(event_log.newest(5)) == 5


def test_repeated_events_are_one_line():
    event_log = BrokerEventLog()
    for second in range(10):
        event_log.tell("expired", second * 1000, "t", "s", count=7, unit="entry", text=f"{second}")
    (line,) = event_log.newest(10)
    assert (line.count, line.times, line.first_ms, line.last_ms, line.text) == (70, 10, 0, 9000, "9")
    event_log.tell("expired", ONE_LINE_SECONDS * 1000 + 1, "t", "s", count=1, unit="entry")
    assert [each.count for each in event_log.newest(10)] == [1, 70]


@pytest.mark.parametrize(
    ("method", "path", "event"),
    cases("audited_changes"),
)  # fmt: skip
def test_changes_are_events_with_their_author(method, path, event):
    scheduler = Scheduler(0.0, 5)
    audit = AuditLog(scheduler)
    audit.add(AuditedRequest("admin", "10.0.0.1:4711", method, path, "204"), refused=False)
    audit.add(AuditedRequest("admin", "10.0.0.1:4712", method, path, "204"), refused=False)
    audit.add(AuditedRequest("admin", "10.0.0.1:4711", method, path, "403"), refused=True)
    audit.add(AuditedRequest("admin", "10.0.0.1:4711", method, path, "404"), refused=False)
    (line,) = scheduler.event_log.newest(10)
    assert [line.topic, line.subscription, line.text] == event
    assert (line.who, line.times, line.kind) == ("admin from 10.0.0.1", 2, "changed")


def test_connections_of_a_host_are_one_line(harness):
    for _ in range(3):
        harness.peer()
    (line,) = harness.broker.scheduler.event_log.newest(10)
    assert (line.kind, line.count, line.unit) == ("connected", 3, "connection")
    assert line.who
