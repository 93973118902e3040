import pytest

from geminga.errors import InvalidMessage
from geminga.producer.message import OutgoingMessage
from geminga.producer.routing import BlockedReason, Router
from geminga.producer.settings import HashingScheme, PartitionsRoutingMode, ProducerSettings


class Partition:
    def __init__(self, reason=None):
        self.reason = reason
        self.steps = []
        self.chosen_at = []

    def blocked(self, now):
        return self.reason

    def stepped_over(self, reason, now):
        self.steps.append(reason)

    def chosen(self, now):
        self.chosen_at.append(now)


def router(start=0.0, **settings):
    return Router(ProducerSettings(**{"batching_enabled": True, **settings}), lambda: start)


# algorithms.md section 1: (key, JavaStringHash, Murmur3_32, BoostHash)
VECTORS = [
    ("", 0, 0, 2133126054),
    ("a", 97, 1009084850, 2135870748),
    ("key-100", 1330809219, 1814691625, 416866741),
    ("é", 233, 269551495, 348017353),
    ("\U0001f600", 1772899, 1051995898, 683164379),
    ("polygenelubricants", 0, 1101602400, 371591337),
]


@pytest.mark.parametrize("partitions", [1, 3, 10, 31])
@pytest.mark.parametrize(("key", "java", "murmur", "boost"), VECTORS)
def test_a_key_goes_where_the_official_clients_send_it(key, java, murmur, boost, partitions):
    for scheme, value in zip(
        (HashingScheme.JavaStringHash, HashingScheme.Murmur3_32Hash, HashingScheme.BoostHash),
        (java, murmur, boost),
        strict=True,
    ):
        assert router(hashing_scheme=scheme).of_key(key, partitions) == value % partitions


def test_without_batching_every_message_moves_on():
    route = router(batching_enabled=False, start=0.5)
    partitions = [Partition() for _ in range(4)]
    chosen = [route.of_unkeyed(partitions, 0.0) for _ in range(6)]
    assert chosen == [2, 3, 0, 1, 2, 3]


def test_with_batching_a_partition_is_kept_for_its_time():
    route = router(batching_max_publish_delay_seconds=0.01, batching_partition_switch_frequency=10)
    partitions = [Partition() for _ in range(3)]
    times = [0.0, 0.05, 0.099, 0.1, 0.19, 0.25, 0.36]
    assert [route.of_unkeyed(partitions, now) for now in times] == [0, 0, 0, 1, 1, 2, 0]


def test_a_full_batch_moves_on_before_its_time():
    route = router()
    partitions = [Partition() for _ in range(3)]
    assert route.of_unkeyed(partitions, 0.0) == 0
    route.batch_filled(0.001)
    assert route.of_unkeyed(partitions, 0.001) == 1
    assert route.of_unkeyed(partitions, 0.002) == 1


@pytest.mark.parametrize("reason", list(BlockedReason))
def test_blocked_partitions_are_skipped_and_notified(reason):
    route = router()
    partitions = [Partition(reason), Partition(reason), Partition()]
    assert route.of_unkeyed(partitions, 0.0) == 2
    assert partitions[0].steps == [reason]
    assert partitions[1].steps == [reason]
    assert partitions[2].chosen_at == [0.0]
    # The free one is kept until its time is over: its batch stays open.
    assert route.of_unkeyed(partitions, 0.01) == 2


def test_when_all_are_blocked_the_preferred_one_is_returned_and_none_is_skipped():
    route = router(start=0.4)
    partitions = [Partition(BlockedReason.PERMITS) for _ in range(5)]
    assert route.of_unkeyed(partitions, 0.0) == 2
    assert not any(partition.steps for partition in partitions)


def test_a_single_partition_is_kept_even_when_it_is_blocked():
    route = router(start=0.9, message_routing_mode=PartitionsRoutingMode.UseSinglePartition)
    partitions = [Partition(BlockedReason.AGE) for _ in range(3)]
    assert {route.of_unkeyed(partitions, now) for now in (0.0, 1.0, 2.0)} == {2}


def test_stepping_over_can_be_switched_off():
    route = router(step_over_blocked_partitions=False)
    partitions = [Partition(BlockedReason.PERMITS), Partition()]
    assert route.of_unkeyed(partitions, 0.0) == 0
    assert partitions[0].steps == []


def test_one_partition_needs_no_choice():
    assert router(start=0.99).of_unkeyed([Partition(BlockedReason.AGE)], 5.0) == 0


def test_new_partitions_join_the_round():
    route = router(batching_enabled=False)
    partitions = [Partition(), Partition()]
    assert [route.of_unkeyed(partitions, 0.0) for _ in range(3)] == [0, 1, 0]
    partitions += [Partition(), Partition()]
    assert [route.of_unkeyed(partitions, 0.0) for _ in range(4)] == [1, 2, 3, 0]


def custom(function):
    return router(message_routing_mode=PartitionsRoutingMode.CustomPartition, message_router=function)


def test_a_custom_router_sees_message_and_count():
    route = custom(lambda message, count: len(message.data()) % count)
    assert route.custom
    assert route.of_custom(OutgoingMessage(b"12345"), [Partition()] * 3) == 2


def test_a_custom_router_may_ask_for_the_states():
    partitions = [Partition(BlockedReason.AGE), Partition()]
    route = custom(
        lambda message, count, states: next(i for i, s in enumerate(states) if s.blocked(0.0) is None)
    )
    assert route.of_custom(OutgoingMessage(b""), partitions) == 1


@pytest.mark.parametrize("answer", [-1, 3, "3"])
def test_a_router_that_names_no_partition_raises_invalid_message(answer):
    with pytest.raises(InvalidMessage, match=f"message_router returned {answer!r}"):
        custom(lambda message, count: answer).of_custom(OutgoingMessage(b""), [Partition()] * 3)


@pytest.mark.parametrize(("answer", "partition"), [(True, 1), (2.0, 2), ("1", 1)])
def test_a_routers_answer_is_taken_as_a_whole_number(answer, partition):
    route = custom(lambda message, count: answer)
    assert route.of_custom(OutgoingMessage(b""), [Partition()] * 3) == partition


def test_a_routers_answer_that_is_no_number():
    with pytest.raises(TypeError, match="NoneType"):
        custom(lambda message, count: None).of_custom(OutgoingMessage(b""), [Partition()] * 3)
