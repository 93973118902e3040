"""Several subscriptions in one call: all or none."""

import asyncio

import pytest
from waiting import loop_turns

import geminga.asyncio
from geminga import ConsumerType, InitialPosition
from geminga.errors import ConsumerBusy, InvalidConfiguration, InvalidTopicName
from geminga.schema import StringSchema


def test_each_has_its_own_arguments(pulsar_client, pulsar_topic):
    heard: list[str] = []
    consumers = pulsar_client.subscribe_many(
        [
            {"topic": pulsar_topic, "subscription_name": "billing"},
            {"topic": [pulsar_topic, pulsar_topic + "-2"], "subscription_name": "audit",
             "consumer_type": ConsumerType.Shared, "schema": StringSchema()},
            {"topic": pulsar_topic, "subscription_name": "heard", "schema": StringSchema(),
             "message_listener": lambda consumer, message: heard.append(message.value())},
        ]
    )  # fmt: skip
    assert [consumer.subscription_name() for consumer in consumers] == ["billing", "audit", "heard"]
    with pulsar_client.create_producer(pulsar_topic, schema=StringSchema()) as producer:
        producer.send("1")
    assert consumers[0].receive(60_000).data() == b"1"
    assert consumers[1].receive(60_000).value() == "1"
    while not heard:
        pulsar_client.get_topic_partitions(pulsar_topic)
    for consumer in consumers:
        consumer.close()
    assert pulsar_client.subscribe_many([]) == []


def test_all_or_none(pulsar_client, pulsar_topic):
    with pulsar_client.subscribe(pulsar_topic, "taken"):
        asked = [{"topic": pulsar_topic, "subscription_name": name} for name in ("a", "taken", "b")]
        with pytest.raises(ConsumerBusy):
            pulsar_client.subscribe_many(asked)
        for name in ("a", "b"):
            pulsar_client.subscribe(pulsar_topic, name).close()  # no consumer is attached


def test_a_hundred_at_once(pulsar_client, pulsar_topic):
    asked = [
        {
            "topic": pulsar_topic,
            "subscription_name": f"s{number}",
            "initial_position": InitialPosition.Earliest,
        }
        for number in range(100)
    ]
    consumers = pulsar_client.subscribe_many(asked)
    with pulsar_client.create_producer(pulsar_topic) as producer:
        producer.send(b"1")
    assert {consumer.receive(60_000).data() for consumer in consumers} == {b"1"}


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        ({"topic": "t"}, InvalidConfiguration, "subscriptions=.*a list of mappings"),
        (["t"], InvalidConfiguration, r"subscriptions\[0\]"),
        ([{"topic": "t"}], InvalidConfiguration, r"subscriptions\[0\]: missing a required argument: 'sub"),
        ([{"topic": "t", "subscription_name": "s", "priority": 1}], InvalidConfiguration, "'priority'"),
        ([{"topic": "", "subscription_name": "s"}], InvalidTopicName, r"subscriptions\[0\]"),
        (
            [{"topic": "t", "subscription_name": "s"}, {"topic": "t", "subscription_name": ""}],
            InvalidConfiguration, r"subscriptions\[1\]: .*subscription_name",
        ),
        (
            [{"topic": "t", "subscription_name": "s", "receiver_queue_size": -1}],
            InvalidConfiguration, r"subscriptions\[0\]: .*receiver_queue_size",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for(pulsar_client, asked, error, text):
    with pytest.raises(error, match=text):
        pulsar_client.subscribe_many(asked)


async def test_as_tasks_and_cancelled(pulsar_broker, pulsar_topic):
    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        asked = [{"topic": pulsar_topic, "subscription_name": name} for name in ("a", "b")]
        for turns in range(30):
            task = asyncio.create_task(client.subscribe_many(asked))
            await loop_turns(turns)
            task.cancel()
            try:
                await asyncio.gather(*(consumer.close() for consumer in await task))
            except asyncio.CancelledError:
                pass
        first, second = await client.subscribe_many(asked)
        producer = await client.create_producer(pulsar_topic)
        await producer.send(b"1")
        assert (await first.receive(60_000)).data() == (await second.receive(60_000)).data() == b"1"
