"""Consumers of both shells against the embedded broker."""

import asyncio
import pickle
import threading
from typing import Any

import pytest
from insides import group_of
from published import backlog, data, publish, receive
from waiting import eventually, eventually_async, loop_turns

import geminga
import geminga.asyncio
from geminga import ConsumerType, InitialPosition, errors
from geminga.client.admin import admin

EARLIEST = InitialPosition.Earliest


@pytest.fixture
def subscribe(pulsar_client, pulsar_topic):
    def make(subscription: str = "s", **options: Any) -> Any:
        return pulsar_client.subscribe(
            pulsar_topic, subscription, **{"initial_position": EARLIEST, **options}
        )

    return make


# --- receiving and acknowledging ---
@pytest.mark.parametrize("batched", [True, False])
def test_receipts(pulsar_broker, pulsar_client, pulsar_topic, subscribe, batched):
    consumer = subscribe(ack_receipt_enabled=True)
    publish(pulsar_client, pulsar_topic, 4, batched=batched)
    messages = receive(consumer, 4)
    for message in messages[:2]:
        consumer.acknowledge(message)
    if not batched:
        assert backlog(pulsar_broker, pulsar_topic) == 2, "receipted means stored, at once"
    consumer.acknowledge(messages[2].message_id())
    consumer.acknowledge_cumulative(messages[3])
    assert backlog(pulsar_broker, pulsar_topic) == 0


@pytest.mark.parametrize("queue_size", [0, 1, 3])
@pytest.mark.parametrize("batched", [True, False])
def test_small_receiver_queues_deliver_all_messages_in_order(
    pulsar_client, pulsar_topic, subscribe, queue_size, batched
):
    values = publish(pulsar_client, pulsar_topic, 25, batched=batched)
    consumer = subscribe(receiver_queue_size=queue_size)
    for value in values:
        message = consumer.receive(30_000)
        assert message.data() == value
        consumer.acknowledge(message)


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_cumulative_is_refused_where_messages_are_shared(pulsar_client, pulsar_topic, subscribe, kind):
    consumer = subscribe(consumer_type=kind)
    publish(pulsar_client, pulsar_topic, 1)
    with pytest.raises(errors.CumulativeAcknowledgementNotAllowedError, match=kind.name):
        consumer.acknowledge_cumulative(consumer.receive(30_000))


def test_iteration_ends_with_the_consumer(pulsar_client, pulsar_topic, subscribe):
    consumer = subscribe()
    publish(pulsar_client, pulsar_topic, 3)
    seen = []
    for message in consumer:
        seen.append(message.data())
        consumer.acknowledge(message)
        if len(seen) == 3:
            threading.Timer(0.1, consumer.close).start()
    assert seen == [b"0", b"1", b"2"]


# --- the end ---
def test_unsubscribe_is_refused_while_others_are_there(pulsar_client, pulsar_topic, subscribe):
    first = subscribe(consumer_type=ConsumerType.Shared)
    second = subscribe(consumer_type=ConsumerType.Shared)
    with pytest.raises(errors.BrokerMetadataError):
        first.unsubscribe()
    second.close()
    publish(pulsar_client, pulsar_topic, 1)
    assert first.receive(30_000).data() == b"0", "the refused consumer goes on"
    first.unsubscribe()


def test_a_consumer_returns_its_topic_subscription_and_name(pulsar_topic, subscribe):
    with subscribe(consumer_name="me") as consumer:
        assert consumer.topic() == pulsar_topic
        assert consumer.subscription_name() == "s"
        assert consumer.consumer_name() == "me"
        assert consumer.is_connected()
        assert "me" in repr(consumer)
        assert not consumer.has_reached_end_of_topic()
        with pytest.raises(errors.UsageError, match="pickle"):
            pickle.dumps(consumer)
    with pytest.raises(errors.AlreadyClosed):
        consumer.receive(1)


def test_end_of_topic(pulsar_broker, pulsar_client, pulsar_topic, subscribe):
    consumer = subscribe()
    publish(pulsar_client, pulsar_topic, 1)
    admin(pulsar_broker.admin_url, "POST", pulsar_topic.replace("://", "/") + "/terminate")
    consumer.acknowledge(consumer.receive(30_000))
    eventually(consumer.has_reached_end_of_topic)


# --- lost connections ---
def test_an_unloaded_topic_is_found_again(pulsar_broker, pulsar_client, pulsar_topic, subscribe):
    consumer = subscribe()
    values = publish(pulsar_client, pulsar_topic, 3)
    messages = receive(consumer, 3)
    admin(pulsar_broker.admin_url, "PUT", pulsar_topic.replace("://", "/") + "/unload")
    assert data(receive(consumer, 3, 10_000)) == values
    for message in messages:
        consumer.acknowledge(message)
    eventually(lambda: backlog(pulsar_broker, pulsar_topic) == 0)


def test_what_is_acknowledged_is_not_tracked_by_the_ack_timeout(pulsar_client, pulsar_topic):
    """Messages are taken and acknowledged while the loop empties the inbox all the time."""
    publish(pulsar_client, pulsar_topic, 10_000, batched=False, max_pending_messages=0)
    consumer = pulsar_client.subscribe(
        pulsar_topic, "s", ConsumerType.Shared, initial_position=EARLIEST, unacked_messages_timeout_ms=60_000,
        ack_grouping_time_ms=0,
    )  # fmt: skip
    for _ in range(10_000):
        consumer.acknowledge(consumer.receive(30_000))
    cores = [handle.consumer for handle in group_of(consumer).handles.values()]
    eventually(lambda: [len(context.unsettled.ack_timeout) for context in cores] == [0])


# --- lists ---
@pytest.mark.parametrize("receipts", [False, True])
def test_a_list_is_acknowledged_by_one_call(pulsar_broker, pulsar_client, pulsar_topic, receipts):
    consumer = pulsar_client.subscribe(
        pulsar_topic, "s", ConsumerType.Shared, initial_position=EARLIEST, ack_receipt_enabled=receipts
    )
    publish(pulsar_client, pulsar_topic, 5, batched=False)
    messages = receive(consumer, 5)
    consumer.acknowledge([])
    with pytest.raises(errors.OperationNotSupported, match="not str"):
        consumer.acknowledge([messages[4], "another"])
    consumer.acknowledge([messages[0], messages[1].message_id(), messages[2]])
    consumer.acknowledge((messages[3],))
    if receipts:
        assert backlog(pulsar_broker, pulsar_topic) == 1, "nothing of the refused list"
    eventually(lambda: backlog(pulsar_broker, pulsar_topic) == 1)


# --- active and inactive ---
class Heard:
    """A `ConsumerEventListener`."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def became_active(self, consumer: Any, partition: int) -> None:
        self.events.append((True, consumer, partition, threading.current_thread().name))

    def became_inactive(self, consumer: Any, partition: int) -> None:
        self.events.append((False, consumer, partition, threading.current_thread().name))
        raise RuntimeError("a listener's own mistake")


def test_an_event_listener_is_notified_of_the_active_consumer(pulsar_broker, pulsar_client, pulsar_topic):
    # With partition 0 the first name is active; without partitions the topic's name would decide.
    admin(pulsar_broker.admin_url, "PUT", pulsar_topic.replace("://", "/") + "/partitions", 1)
    first, second = Heard(), Heard()
    one = pulsar_client.subscribe(
        pulsar_topic, "s", ConsumerType.Failover, consumer_name="a", event_listener=first
    )
    eventually(lambda: len(first.events) == 1)
    assert first.events[0][:3] == (True, one, 0)
    assert first.events[0][3].startswith("geminga-listener")
    # Among equals the topic's name decides, which is another one in every run.
    two = pulsar_client.subscribe(
        pulsar_topic, "s", ConsumerType.Failover, consumer_name="b", event_listener=second, priority_level=1
    )
    # The broker may say more than once who waits.
    eventually(lambda: bool(second.events))
    one.close()
    eventually(lambda: second.events[-1][:3] == (True, two, 0))
    assert {event[:3] for event in second.events[:-1]} == {(False, two, 0)}


async def test_an_event_listener_of_asyncio(pulsar_broker, pulsar_topic):
    heard: list[Any] = []

    class Listener:
        async def became_active(self, consumer: Any, partition: int) -> None:
            await loop_turns()
            heard.append((consumer, partition))

        def became_inactive(self, consumer: Any, partition: int) -> None:
            heard.append(None)

    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        consumer = await client.subscribe(pulsar_topic, "s", ConsumerType.Failover, event_listener=Listener())
        async with asyncio.timeout(60):
            await eventually_async(lambda: heard)
        assert heard == [(consumer, -1)]


@pytest.mark.parametrize("listener", [7, object()])
def test_a_wrong_event_listener_is_refused(pulsar_client, pulsar_topic, listener):
    with pytest.raises(errors.InvalidConfiguration, match="became_active"):
        pulsar_client.subscribe(pulsar_topic, "s", event_listener=listener)


def test_a_listener_that_starts_paused(pulsar_broker, pulsar_client, pulsar_topic):
    heard: list[bytes] = []
    consumer = pulsar_client.subscribe(
        pulsar_topic,
        "s",
        message_listener=lambda _, message: heard.append(message.data()),
        start_paused=True,
        broker_consumer_stats_cache_time_ms=0,
    )
    publish(pulsar_client, pulsar_topic, 2, batched=False)
    eventually(lambda: consumer.stats().waiting_messages == 2)
    assert not heard
    consumer.resume_message_listener()
    eventually(lambda: heard == [b"0", b"1"])
    with pytest.raises(errors.InvalidConfiguration, match="takes the messages"):
        consumer.receive(10)
    with pytest.raises(errors.InvalidConfiguration, match="start_paused"):
        pulsar_client.subscribe(pulsar_topic, "t", start_paused=True)
    with pytest.raises(errors.InvalidConfiguration, match="no message_listener"):
        pulsar_client.subscribe(pulsar_topic, "t").pause_message_listener()


# --- statistics ---
def test_statistics_of_a_consumer(pulsar_broker, pulsar_client, pulsar_topic):
    admin(pulsar_broker.admin_url, "PUT", pulsar_topic.replace("://", "/") + "/partitions", 2)
    with pulsar_client.subscribe(
        pulsar_topic, "s", ConsumerType.Shared, initial_position=EARLIEST, receiver_queue_size=10,
        broker_consumer_stats_cache_time_ms=0,
    ) as consumer:  # fmt: skip
        publish(pulsar_client, pulsar_topic, 6, batched=False)
        taken = receive(consumer, 2)
        consumer.acknowledge(taken[0])
        # All have come, and the acknowledgement has gone.
        eventually(lambda: (stats := consumer.stats()).waiting_messages >= 4 and stats.backlog <= 5)
        stats = consumer.stats()
        assert (stats.waiting_messages, stats.unacknowledged_messages, stats.backlog) == (4, 5, 5)
        assert (stats.topic, stats.blocked) == (consumer.topic(), False)
        assert [part.topic[-12:] for part in stats.partitions] == ["-partition-0", "-partition-1"]
        assert sum(part.unacknowledged_messages for part in stats.partitions) == 5
        assert stats.ack_holes is not None
        assert stats.available_permits > 0
    with pytest.raises(errors.AlreadyClosed):
        consumer.stats()


def test_the_brokers_statistics_are_kept_for_a_while(pulsar_broker, pulsar_client, pulsar_topic):
    """``broker_consumer_stats_cache_time_ms`` spares the broker a request per call."""
    consumer = pulsar_client.subscribe(
        pulsar_topic, "s", initial_position=EARLIEST, broker_consumer_stats_cache_time_ms=3_600_000
    )
    assert consumer.stats().backlog == 0
    publish(pulsar_client, pulsar_topic, 3, batched=False)
    receive(consumer, 1)
    eventually(lambda: consumer.stats().waiting_messages == 2)
    assert consumer.stats().backlog == 0, "what waits here is known without the broker"


@pytest.mark.parametrize("over", ["pulsar", "http"])
def test_statistics_tell_ack_holes(pulsar_broker, pulsar_topic, over):
    url = pulsar_broker.service_url if over == "pulsar" else pulsar_broker.admin_url
    with geminga.Client(url) as client:
        consumer = client.subscribe(
            pulsar_topic, "s", ConsumerType.Shared, initial_position=EARLIEST,
            broker_consumer_stats_cache_time_ms=0,
        )  # fmt: skip
        publish(client, pulsar_topic, 6, batched=False)
        taken = receive(consumer, 6)
        for message in taken[1::2]:
            consumer.acknowledge(message)
        eventually(lambda: consumer.stats().ack_holes == 3)
        for message in taken[::2]:
            consumer.acknowledge(message)
        eventually(lambda: consumer.stats().ack_holes == 0)
