"""Everyday uses of ``pulsar-client``. Arguments: service URL, token, a prefix of topics."""

import re
import sys
import time

import pulsar
from pulsar import schema as schemas

URL, TOKEN, PREFIX = sys.argv[1:]
client = pulsar.Client(URL, authentication=pulsar.AuthenticationToken(TOKEN))
MINUTE = 60_000


def equal(found, expected):
    if found != expected:
        raise AssertionError(f"{found} instead of {expected}")


def subscribe(topic, **options):
    return client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest, **options)


def publish(topic, first, end, **options):
    """Send numbers, two keys in turn, in batches of up to ten."""
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=1000, **options
    )
    for number in range(first, end):
        content = {"partition_key": f"k{number % 2}", "properties": {"number": str(number)}}
        content |= {"content": b"%d" % number, "event_timestamp": number + 1}
        if number + 1 < end:
            producer.send_async(callback=lambda result, _: None, **content)
        else:
            producer.send(**content)  # after it all are sent; flush does not wait for them in some versions
    producer.close()


def take(count, *consumers):
    """Receive and acknowledge messages; return their numbers in order."""
    found = []
    for turn in range(6000):
        each = consumers[turn % len(consumers)]
        try:
            message = each.receive(10)
        except pulsar.Timeout:
            continue
        each.acknowledge(message)
        found.append(int(message.data()))
        if len(found) == count:
            return found
    raise AssertionError(f"only {found}")


def compression(topic):
    kinds = [getattr(pulsar.CompressionType, name) for name in ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY")]
    for index, kind in enumerate(kinds):
        publish(topic, 10 * index, 10 * index + 10, compression_type=kind)
    consumer = subscribe(topic)
    for number in range(10 * len(kinds)):
        message = consumer.receive(MINUTE)
        found = (
            int(message.data()), message.partition_key(), message.properties(), message.event_timestamp(),
        )  # fmt: skip
        equal(found, (number, f"k{number % 2}", {"number": str(number)}, number + 1))


def large(topic):
    payload = b"x" * (4 << 20)
    client.create_producer(topic).send(payload)
    equal(subscribe(topic).receive(MINUTE).data(), payload)


def acknowledgement(topic):
    publish(topic, 0, 20)
    consumer = subscribe(topic)
    equal(take(15, consumer), list(range(15)))
    consumer.close()
    consumer = subscribe(topic)
    while int((message := consumer.receive(MINUTE)).data()) < 15:
        pass  # acknowledged in a batch that is not
    consumer.acknowledge_cumulative(message)
    consumer.unsubscribe()


def redelivery(topic):
    consumer = subscribe(
        topic, consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100
    )
    publish(topic, 0, 1)
    for count in range(3):
        message = consumer.receive(MINUTE)
        equal(message.redelivery_count(), count)
        consumer.negative_acknowledge(message)


def subscription_types(topic):
    for kind in (pulsar.ConsumerType.Shared, pulsar.ConsumerType.Failover, pulsar.ConsumerType.KeyShared):
        name = f"{topic}-{kind}"
        one, other = subscribe(name, consumer_type=kind), subscribe(name, consumer_type=kind)
        publish(name, 0, 20)
        equal(sorted(take(20, one, other)), list(range(20)))
        one.close()
        other.unsubscribe()


def delay(topic):
    consumer = subscribe(topic, consumer_type=pulsar.ConsumerType.Shared)
    begin = time.monotonic()
    client.create_producer(topic).send(b"0", deliver_at=int(time.time() * 1000) + 1000)
    take(1, consumer)
    equal(time.monotonic() - begin > 0.9, True)


def seek(topic):
    publish(topic, 0, 10)
    consumer = subscribe(topic)
    take(10, consumer)
    for place in (pulsar.MessageId.earliest, int(time.time() * 1000) - 3_600_000):
        consumer.seek(place)
        equal(take(10, consumer), list(range(10)))


def reader(topic):
    publish(topic, 0, 10)
    reads = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reads.has_message_available():
        found.append(int(reads.read_next(MINUTE).data()))
    equal(found, list(range(10)))


def partitions(topic):
    equal(len(client.get_topic_partitions(topic)), 3)
    publish(topic, 0, 20)
    equal(sorted(take(20, subscribe(topic))), list(range(20)))


def pattern(topic):
    publish(topic + "-1", 0, 10)
    publish(topic + "-2", 10, 20)
    equal(sorted(take(20, subscribe(re.compile(topic + "-.*")))), list(range(20)))


class Reading(schemas.Record):
    number = schemas.Integer()


def schema(topic):
    client.create_producer(topic, schema=schemas.JsonSchema(Reading)).send(Reading(number=7))
    equal(subscribe(topic, schema=schemas.JsonSchema(Reading)).receive(MINUTE).value().number, 7)


def ours(topic):
    """Read what Geminga's client has published."""
    equal(take(20, subscribe(topic)), list(range(20)))


for each in (
    compression,
    large,
    acknowledgement,
    redelivery,
    subscription_types,
    delay,
    seek,
    reader,
    partitions,
    pattern,
    schema,
    ours,
):
    print(each.__name__, flush=True)
    each(f"{PREFIX}-{each.__name__}")
client.close()
print("all passed")
