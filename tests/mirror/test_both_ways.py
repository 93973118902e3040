"""Mirrors in both directions: acknowledgements on either side are mirrored to the other."""

from typing import Any

import pytest
from waiting import eventually

import geminga
from geminga.mirror import Mirror
from tests.mirror.helpers import mirror, mirrored

Earliest = geminga.InitialPosition.Earliest
Shared = geminga.ConsumerType.Shared


@pytest.fixture
def sides():
    with geminga.embedded(batch_index_ack=True) as one, geminga.embedded(batch_index_ack=True) as other:
        yield one, other


def publish(broker: Any, *numbers: int, topic: str = "t") -> None:
    client = broker.client()
    producer = client.create_producer(topic)
    for number in numbers:
        producer.send(b"%d" % number)
    client.close()


def subscribed(client: geminga.Client, **options: Any) -> Any:
    """Open a consumer; retries while a mirror updates the subscription."""
    return eventually(
        lambda: client.subscribe("t", "s", initial_position=Earliest, **options),
        but=geminga.exceptions.ConsumerBusy,
    )


def take(broker: Any, *, but: tuple[int, ...] = (), count: int, **options: Any) -> None:
    """Receive a number of messages, and acknowledge all but some."""
    client = broker.client()
    consumer = subscribed(client, consumer_type=Shared, **options)
    for _ in range(count):
        message = consumer.receive(60_000)
        if int(message.data()) not in but:
            consumer.acknowledge(message)
    client.close()


def backlog(broker: Any, topic: str = "t") -> int:
    with geminga.Admin(broker.admin_url) as admin:
        return admin.topics.stats(topic).subscriptions["s"].messages_in_backlog


def waiting(broker: Any) -> list[int]:
    client = broker.client()
    consumer = subscribed(client, consumer_type=Shared)
    found = sorted(int(consumer.receive(60_000).data()) for _ in range(backlog(broker)))
    client.close()
    return found


def has_left(broker: Any, count: int) -> None:
    eventually(lambda: backlog(broker) == count)


def subscribe(broker: Any) -> None:
    client = broker.client()
    client.subscribe("t", "s", initial_position=Earliest).close()
    client.close()


def arrived(running: Mirror, messages: int) -> None:
    eventually(lambda: running.status().messages >= messages)


def test_acknowledgements_in_one_cluster_are_mirrored_to_the_other(sides):
    one, other = sides
    subscribe(one)
    publish(one, *range(50))
    with mirror(one, other) as there, mirror(other, one) as back:
        arrived(there, 50)
        take(other, count=50)
        eventually(lambda: backlog(one) == 0)
        # And from now on, some published on either side.
        publish(one, *range(50, 70))
        publish(other, *range(70, 80))
        publish(one, *range(80, 90))
        arrived(there, 80)
        arrived(back, 10)
        take(other, count=40, but=(55, 75, 85))
        eventually(lambda: backlog(one) == 3)
        assert there.status().line()
    assert waiting(one) == waiting(other) == [55, 75, 85]


def test_acknowledgements_within_batches_are_mirrored(sides):
    one, other = sides
    subscribe(one)
    client = one.client()
    producer = client.create_producer("t", batching_enabled=True, batching_max_messages=10)
    for number in range(40):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    with mirror(one, other) as there, mirror(other, one):
        arrived(there, 40)
        take(other, count=40, but=(3, 4, 17, 39), batch_index_ack_enabled=True)
        eventually(lambda: backlog(one) == 4)
    assert waiting(one) == waiting(other) == [3, 4, 17, 39]


def test_acknowledgements_made_while_no_mirror_ran_are_mirrored_later(sides):
    """The map of copied positions starts empty with the process: older positions are read from the source."""
    one, other = sides
    subscribe(one)
    publish(one, *range(30))
    mirrored(one, other)
    publish(other, *range(100, 110))
    mirrored(other, one)
    mirrored(one, other)
    take(other, count=40, but=(7, 20, 105))
    mirrored(other, one)
    assert waiting(one) == waiting(other) == [7, 20, 105]
    # The unacknowledged messages 7 and 20 are older than the mirrors; their acknowledgement is mirrored, too.
    take(other, count=3, but=(105,))
    publish(other, 110)
    mirrored(other, one)
    assert waiting(one) == waiting(other) == [105, 110]


def test_ack_holes_that_close_while_mirrors_run_are_mirrored(sides):
    one, other = sides
    subscribe(one)
    publish(one, *range(30))
    mirrored(one, other)
    mirrored(other, one)
    with mirror(one, other), mirror(other, one):
        left_over: tuple[int, ...]
        for left_over in ((0, 1, 2, 15, 25), (0, 15), (15,), ()):
            take(other, count=backlog(other), but=left_over)
            has_left(one, len(left_over))
            assert waiting(one) == list(left_over)


def rewind(broker: Any, place: Any = geminga.MessageId.earliest) -> None:
    with geminga.Admin(broker.admin_url) as admin:
        admin.subscriptions.reset_to_id("t", "s", place)


def seen(running: Mirror) -> int:
    """Return the entry of the source's mark-delete position when the mirror last sent it."""
    run = running._run
    (part,) = run._parts.values()
    one = part.cursors.followed.get("s")
    return -1 if one is None or one.state is None else one.state.marked.entry


def test_a_rewind_stays_on_its_side(sides):
    one, other = sides
    subscribe(one)
    publish(one, *range(20))
    with mirror(one, other) as there, mirror(other, one) as back:
        arrived(there, 20)
        publish(other, *range(20, 30))
        arrived(back, 10)
        take(one, count=25)
        # Both are at rest: else the one back may bring what the other side has just learnt from here.
        eventually(lambda: seen(back) == 24)
        rewind(one)
        take(other, count=2)
        eventually(lambda: backlog(one) == 28)
        assert backlog(other) == 3
    assert waiting(one) == [*range(25), *range(27, 30)]


def test_acknowledgements_beyond_the_map_of_positions_are_mirrored(sides, monkeypatch):
    """Entries of both sides in turn: each is a stretch of its own."""
    monkeypatch.setattr("geminga.mirror.position_map.RUNS_MAX", 8)
    one, other = sides
    subscribe(one)
    with mirror(one, other) as there, mirror(other, one) as back:
        for number in range(30):
            publish(one, number)
            arrived(there, number + 1)
            publish(other, 100 + number)
            arrived(back, number + 1)
    take(one, count=60, but=(29,))
    mirrored(one, other)
    assert waiting(other) == [29]
    take(one, count=1)
    mirrored(one, other)
    assert waiting(other) == []
