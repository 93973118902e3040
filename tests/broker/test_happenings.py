"""Happenings: the newest of each kind are kept, whatever else happens."""

from __future__ import annotations

from geminga.broker.happenings import KEPT_OF_A_KIND, ONE_LINE_SECONDS, Happenings


def test_the_newest_of_each_kind_are_kept() -> None:
    happenings = Happenings()
    happenings.tell("quota", 1, "t", "s", count=1, unit="times", text="stopped")
    for number in range(3 * KEPT_OF_A_KIND):
        happenings.tell("expired", 2 + number, f"topic-{number}", count=1, unit="entries")
    found = happenings.newest(1000)
    assert len(found) == KEPT_OF_A_KIND + 1
    assert found[0].topic == f"topic-{3 * KEPT_OF_A_KIND - 1}"
    assert found[-1].kind == "quota"
    assert len(happenings.newest(5)) == 5


def test_repetitions_are_one_line() -> None:
    happenings = Happenings()
    for second in range(10):
        happenings.tell("expired", second * 1000, "t", "s", count=7, unit="entries", text=f"{second}")
    (line,) = happenings.newest(10)
    assert (line.count, line.times, line.first_ms, line.last_ms, line.text) == (70, 10, 0, 9000, "9")
    happenings.tell("expired", ONE_LINE_SECONDS * 1000 + 1, "t", "s", count=1, unit="entries")
    assert [each.count for each in happenings.newest(10)] == [1, 70]
