"""Log of automatic actions: the newest of each kind are kept, regardless of other kinds."""

from __future__ import annotations

from geminga.broker.event_log import KEPT_OF_A_KIND, ONE_LINE_SECONDS, BrokerEventLog


def test_the_newest_events_of_each_kind_are_kept() -> None:
    event_log = BrokerEventLog()
    event_log.tell("quota", 1, "t", "s", count=1, unit="times", text="stopped")
    for number in range(3 * KEPT_OF_A_KIND):
        event_log.tell("expired", 2 + number, f"topic-{number}", count=1, unit="entries")
    found = event_log.newest(1000)
    assert len(found) == KEPT_OF_A_KIND + 1
    assert found[0].topic == f"topic-{3 * KEPT_OF_A_KIND - 1}"
    assert found[-1].kind == "quota"
    assert len(event_log.newest(5)) == 5


def test_repeated_events_are_one_line() -> None:
    event_log = BrokerEventLog()
    for second in range(10):
        event_log.tell("expired", second * 1000, "t", "s", count=7, unit="entries", text=f"{second}")
    (line,) = event_log.newest(10)
    assert (line.count, line.times, line.first_ms, line.last_ms, line.text) == (70, 10, 0, 9000, "9")
    event_log.tell("expired", ONE_LINE_SECONDS * 1000 + 1, "t", "s", count=1, unit="entries")
    assert [each.count for each in event_log.newest(10)] == [1, 70]
