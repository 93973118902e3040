"""The decisions of a client that knows several clusters."""

from hypothesis import given
from hypothesis import strategies as st

from geminga.client.handles.failover import PRIMARY, ClusterChoice


def choice(clusters: int = 3, failover: int = 1, back: int = 1) -> ClusterChoice:
    return ClusterChoice(clusters, failover_threshold=failover, switch_back_threshold=back)


def test_consecutive_failures_cause_a_failover():
    one = choice(failover=3)
    assert one.wanted() == (PRIMARY,)
    for reachable in (False, False, True, False, False):
        assert one.probed([reachable]) == ()
    assert one.probed([False]) == [1, 2]
    assert one.probed([False]) == [1, 2]  # none of them answered: the next probe tries again


def test_the_primary_is_used_again_after_enough_good_probes():
    one = choice(back=2)
    one.moved(1)
    assert one.wanted() == (PRIMARY, 1)
    assert one.probed([True, True]) == ()
    assert one.probed([False, True]) == ()
    assert one.probed([True, True]) == ()
    assert one.probed([True, False]) == (PRIMARY,)
    one.moved(PRIMARY)
    assert one.probed([True]) == ()


def test_a_failing_secondary_causes_another_failover():
    one = choice(failover=2)
    one.moved(1)
    assert one.probed([False, False]) == ()
    assert one.probed([False, False]) == [0, 2]


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=50), st.integers(1, 4), st.integers(1, 4))
def test_a_move_needs_the_threshold_and_another_cluster(outcomes, failover, back):
    one = choice(failover=failover, back=back)
    bad = good = 0
    for primary, current in outcomes:
        at = one.current
        reachable = [primary] if at == PRIMARY else [primary, current]
        bad = 0 if reachable[-1] else bad + 1
        good = good + 1 if at != PRIMARY and primary else 0
        targets = one.probed(reachable)
        assert at not in targets
        assert bool(targets) == (bad >= failover or good >= back)
        if targets:
            one.moved(targets[0])
            bad = good = 0
