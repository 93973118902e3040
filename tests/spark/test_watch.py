"""The driver's questions against the embedded broker."""

import pytest
from waiting import eventually

from geminga import Client
from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.client.admin import admin
from geminga.errors import SubscriptionNotFound, Timeout
from geminga.ids import MessageId
from geminga.spark.cluster.entry_samples import EntrySample
from geminga.spark.cluster.watch import PulsarCursors, PulsarPartitions
from geminga.spark.offsets import EARLIEST, Offset


@pytest.fixture
def watch(pulsar_client):
    found = PulsarPartitions(pulsar_client, "w")
    yield found
    found.close()


def subscriptions(broker: EmbeddedBroker, topic: str) -> list[str]:
    return admin(broker.admin_url, "GET", topic.replace("://", "/") + "/subscriptions")


def publish(client: Client, topic: str, count: int, size: int = 10) -> None:
    with client.create_producer(topic, batching_enabled=False) as producer:
        for _ in range(count):
            producer.send(b"v" * size)


def test_many_partitions_are_queried_at_once(pulsar_broker, pulsar_client, pulsar_topic, watch):
    admin(pulsar_broker.admin_url, "PUT", pulsar_topic.replace("://", "/") + "/partitions", 40)
    partitions = [(pulsar_topic, index) for index in range(40)]
    for index in (3, 39):
        publish(pulsar_client, f"{pulsar_topic}-partition-{index}", index)
    for _ in range(2):
        newest = watch.newest(partitions)
        assert {p[1]: found.entry_id for p, found in newest.items() if found.entry_id >= 0} == {3: 2, 39: 38}
    entries = watch.first([(p, MessageId.earliest) for p in partitions])
    assert [number for number, entry in enumerate(entries) if entry is not None] == [3, 39]
    name = f"{pulsar_topic}-partition-3"
    assert [found[:2] for found in subscriptions(pulsar_broker, name)] == ["w-"]
    watch.close()
    eventually(lambda: not subscriptions(pulsar_broker, name))


def test_samples_end_with_their_budget(pulsar_broker, pulsar_client, pulsar_topic, watch):
    one = (pulsar_topic, -1)
    publish(pulsar_client, pulsar_topic, 50, size=1000)
    newest = Offset.through(watch.newest([one])[one])._replace(batch_index=EARLIEST.batch_index)
    ((seen, is_all),) = watch.sample([EntrySample(one, EARLIEST, newest, None, 10_000)])
    assert not is_all
    assert [each.place.entry for each in seen] == list(range(10))
    path = pulsar_topic.replace("://", "/")
    sent = admin(pulsar_broker.admin_url, "GET", f"{path}/stats")["bytesOutCounter"]
    assert sent <= 13_000, "sampling fetches no more than it measures"
    ((seen, is_all),) = watch.sample([EntrySample(one, Offset(newest.ledger, 45), newest, 100, 10_000)])
    assert (len(seen), is_all) == (4, True)
    ((seen, is_all),) = watch.sample([EntrySample(one, newest, newest._replace(entry=99), 100, 10_000)])
    assert (seen, is_all) == ([], True)


def test_a_missing_answer_for_an_existing_entry_is_an_error(pulsar_broker, pulsar_topic, monkeypatch):
    with Client(pulsar_broker.service_url, operation_timeout_seconds=2) as client:
        publish(client, pulsar_topic, 1)
        monkeypatch.setattr("geminga.consumer.core.ConsumerCore._grant", lambda self: None)
        watch = PulsarPartitions(client, "w")
        one = (pulsar_topic, -1)
        with pytest.raises(Timeout, match=r"exists and did not arrive for 2 s.*operationTimeoutMs"):
            watch.first([(one, MessageId.earliest)])
        last = watch.newest([one])[one]
        assert watch.first([(one, MessageId(-1, last.ledger_id, last.entry_id + 1))]) == [None]
        watch.close()


def test_the_newest_message_of_a_recreated_topic_is_found(pulsar_broker, pulsar_client, pulsar_topic, watch):
    one = (pulsar_topic, -1)
    publish(pulsar_client, pulsar_topic, 3)
    assert watch.newest([one])[one].entry_id == 2
    admin(pulsar_broker.admin_url, "DELETE", pulsar_topic.replace("://", "/") + "?force=true")
    publish(pulsar_client, pulsar_topic, 1)
    assert watch.newest([one])[one].entry_id == 0


def test_a_removed_subscription_is_reported_to_its_holder(pulsar_broker, pulsar_client, pulsar_topic):
    cursors, one = PulsarCursors(pulsar_client, "s"), (pulsar_topic, -1)
    publish(pulsar_client, pulsar_topic, 3)
    assert cursors.states([one])[one] is not None
    admin(pulsar_broker.admin_url, "DELETE", pulsar_topic.replace("://", "/") + "/subscription/s?force=true")
    eventually(lambda: cursors._consumers[one].failure is not None)  # it has requested it again, and got it
    for moves in (cursors.move, cursors.rewind):  # it was there when it was asked for
        with pytest.raises(SubscriptionNotFound, match="has no durable subscription s"):
            moves({one: MessageId.earliest})
    assert cursors.states([one], known=[one]) == {one: None}
    cursors.close()
