from hypothesis import given
from hypothesis import strategies as st
from scripted_cluster import ONE, TOPIC, ScriptedCluster

from geminga.spark.cluster.entry_samples import EntryCost
from geminga.spark.offsets import EARLIEST, Offset
from geminga.spark.source.admission import EntryCostEstimate
from geminga.spark.source.lag import LEDGERS_MAX, ClosedLedgers, OffsetSpan, by_topic
from geminga.spark.source.search import run


def count(ledgers: ClosedLedgers, cluster: ScriptedCluster, start: Offset, end: Offset) -> OffsetSpan:
    return run({ONE: ledgers.span(ONE, start, end)}, cluster.watch(name="n").first)[ONE]


@given(
    layout=st.dictionaries(st.integers(0, 100), st.integers(1, 15), min_size=1, max_size=10), data=st.data()
)
def test_entries_are_counted_over_ledgers(layout, data):
    cluster = ScriptedCluster()
    for ledger, entries in sorted(layout.items()):
        cluster.publish(ONE, ledger, [[b"v"]] * entries)
    places = [EARLIEST, *(Offset(*place) for place in sorted(cluster.topics[ONE]))]
    ledgers = ClosedLedgers()
    start = 0
    while start < len(places) - 1:
        # Count again from later positions with the same ledger cache, as a running query does.
        start = data.draw(st.integers(start, len(places) - 1))
        assert count(ledgers, cluster, places[start], places[-1]) == OffsetSpan(len(places) - 1 - start)
        start += 1


def test_closed_ledgers_are_counted_once_and_in_bounds():
    cluster = ScriptedCluster()
    for ledger in range(100):
        cluster.publish(ONE, ledger, [[b"v"]] * 10)
    ledgers = ClosedLedgers()
    first = count(ledgers, cluster, EARLIEST, Offset(99, 9))
    assert (first.entries, first.is_exact) == (1000, False)
    cluster.questions = 0
    assert count(ledgers, cluster, Offset(99 - LEDGERS_MAX + 1, 3), Offset(99, 9)).entries == 316
    assert count(ledgers, cluster, Offset(1, 4), Offset(1, 9)) == OffsetSpan(5)


def test_lag_is_summed_by_topic_with_estimates():
    gauge = EntryCostEstimate()
    spans = {(TOPIC, 0): OffsetSpan(3), (TOPIC, 1): OffsetSpan(2, is_exact=False), ("u", -1): OffsetSpan(0)}
    nothing = {"entries": 0, "messages": 0, "bytes": 0}
    assert by_topic(spans, gauge) == {
        TOPIC: {"entries": 5, "messages": None, "bytes": None, "isEstimate": True}, "u": nothing
    }  # fmt: skip
    gauge.saw((TOPIC, 0), EntryCost(2, 20, 600))
    gauge.saw((TOPIC, 1), EntryCost(1, 5, 100))
    assert by_topic(spans, gauge)[TOPIC] == {"entries": 5, "messages": 40, "bytes": 1100, "isEstimate": True}
