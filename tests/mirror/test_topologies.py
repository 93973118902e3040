"""Mirrors among three clusters: a message is copied only from the cluster where it was published."""

import itertools
from contextlib import ExitStack
from typing import Any

import pytest

import geminga
from geminga.errors import InvalidConfiguration
from tests.mirror.helpers import mirror, mirrored, stored

NAMES = ("a", "b", "c")


@pytest.fixture(params=[NAMES, ("standalone",) * 3], ids=["named", "unnamed"])
def clusters(request):
    with ExitStack() as stack:
        yield [stack.enter_context(geminga.embedded(cluster=name)) for name in request.param]


@pytest.fixture
def named():
    with ExitStack() as stack:
        yield [stack.enter_context(geminga.embedded(cluster=name)) for name in NAMES]


def publish(broker: Any, *numbers: int) -> None:
    with broker.client() as client:
        producer = client.create_producer("t")
        for number in numbers:
            producer.send(b"%d" % number)


def numbers(broker: Any) -> list[int]:
    with broker.client() as client:
        return sorted(int(value) for _, value in stored(client, "t"))


def test_in_a_mesh_each_message_reaches_each_cluster_once(clusters):
    for index, broker in enumerate(clusters):
        publish(broker, *range(100 * index, 100 * index + 10))
    with ExitStack() as stack:
        running = [
            stack.enter_context(mirror(source, target, name=f"{left}-{right}", target_name=None))
            for (left, source), (right, target) in itertools.permutations(
                zip(NAMES, clusters, strict=True), 2
            )
        ]
        for one in running:
            assert one.wait_until_caught_up(60)
        # Everything that came from other clusters was seen, and not sent on.
        while sum(one.status().partitions[0].skipped for one in running) < 120:
            assert not any(one.status().failed for one in running)
        assert [one.status().messages for one in running] == [10] * 6
    expected = [*range(10), *range(100, 110), *range(200, 210)]
    assert [numbers(broker) for broker in clusters] == [expected] * 3
    for source, target in itertools.permutations(clusters, 2):
        names = {id(broker): name for broker, name in zip(clusters, NAMES, strict=True)}
        again = mirrored(source, target, name=f"{names[id(source)]}-{names[id(target)]}")
        assert again.messages == 0


def test_in_a_ring_messages_reach_the_next_cluster_only(clusters):
    a, b, c = clusters
    for index, broker in enumerate(clusters):
        publish(broker, index)
    for _ in range(2):
        for source, target in ((a, b), (b, c), (c, a)):
            mirrored(source, target)
    assert [numbers(broker) for broker in clusters] == [[0, 2], [0, 1], [1, 2]]


def test_with_forward_messages_pass_a_ring_once_and_stop_at_their_origin(named):
    a, b, c = named
    for index, broker in enumerate(named):
        publish(broker, index)
    for _ in range(3):
        for source, target in ((a, b), (b, c), (c, a)):
            mirrored(source, target, forward=True)
    assert [numbers(broker) for broker in named] == [[0, 1, 2]] * 3


def test_with_forward_messages_that_came_from_outside_do_not_circle_between_two_clusters(named):
    """As after a second move, with a mirror in each direction."""
    a, b, c = named
    publish(a, 1, 2)
    publish(b, 3)
    for _ in range(3):
        for source, target, name in ((a, b, "a-b"), (b, c, "b-c"), (c, b, "c-b")):
            mirrored(source, target, forward=True, name=name)
    assert [numbers(broker) for broker in named] == [[1, 2], [1, 2, 3], [1, 2, 3]]


def test_with_forward_messages_that_came_from_outside_pass_a_ring_once():
    with ExitStack() as stack:
        brokers = {name: stack.enter_context(geminga.embedded(cluster=name)) for name in "abcd"}
        publish(brokers["a"], 1, 2)
        for _ in range(2):
            for source, target in ("ab", "bc", "cd", "db"):
                mirrored(brokers[source], brokers[target], forward=True, name=source + target)
        assert [numbers(broker) for broker in brokers.values()] == [[1, 2]] * 4


def test_a_chain_copies_nothing_further_without_forward(named):
    a, b, c = named
    publish(a, 1, 2)
    mirrored(a, b)
    publish(b, 3)
    status = mirrored(b, c)
    assert (numbers(c), status.partitions[0].skipped) == ([3], 2)
    assert "2 messages of other clusters not copied" in status.line()
    # The mirror has passed the skipped messages: one of another name copies all, those of other clusters too.
    mirrored(b, c, name="second", forward=True)
    assert numbers(c) == [1, 2, 3, 3]


def test_forward_between_clusters_of_one_name_is_refused():
    with geminga.embedded() as one, geminga.embedded() as other:
        publish(one, 1)
        with pytest.raises(InvalidConfiguration, match="give different names, with --from-name or --to-name"):
            mirrored(one, other, forward=True)
        assert mirrored(one, other, forward=True, target_name="second").messages == 1


def test_a_message_of_geo_replication_is_not_copied(named):
    a, b, _ = named
    publish(a, 1)
    mirrored(a, b, source_name="elsewhere")  # marked as by the replicator of a cluster of that name
    with geminga.Admin(a.admin_url) as admin:
        admin.topics.delete("t", force=True)
    assert mirrored(b, a).partitions[0].skipped == 1
    assert numbers(a) == []
