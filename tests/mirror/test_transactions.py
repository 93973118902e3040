"""Transactions in a source that is Geminga's broker: open and aborted messages are not copied, committed ones
once and in order, over restarts of the mirror."""

import pytest
from waiting import eventually

import geminga
from tests.mirror.helpers import left, mirror, mirrored

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def brokers():
    with geminga.embedded() as source, geminga.embedded() as target:
        yield source, target


def test_committed_messages_are_copied_once_and_in_order_over_restarts_of_the_mirror(brokers):
    source, target = brokers
    client = source.client()
    client.subscribe("t", "s").close()
    producer = client.create_producer("t")
    expected: list[bytes] = []

    def send(text: str, txn: geminga.Transaction | None = None) -> None:
        producer.send_many([b"%s-%d" % (text.encode(), n) for n in range(3)], txn=txn)

    def copied() -> list[bytes]:
        """Run the mirror once more, and return the target's messages."""
        status = mirrored(source, target)
        assert [part.duplicates for part in status.partitions] == [0]
        return left(target, "t", "s")

    send("plain")
    committed, aborted, waits = (client.new_transaction(timeout=600) for _ in range(3))
    send("committed", committed)
    send("aborted", aborted)
    send("after")
    expected += [b"plain-%d" % n for n in range(3)]
    assert copied() == expected  # both transactions are open
    aborted.abort()
    assert copied() == expected
    committed.commit()
    expected += [b"%s-%d" % (text, n) for text in (b"committed", b"after") for n in range(3)]
    assert copied() == expected
    send("waits", waits)
    send("behind")
    late = client.new_transaction()
    send("late", late)
    late.abort()
    assert copied() == expected
    waits.commit()
    expected += [b"%s-%d" % (text, n) for text in (b"waits", b"behind") for n in range(3)]
    assert copied() == copied() == expected


def test_a_running_mirror_copies_what_is_committed(brokers):
    source, target = brokers
    client = source.client()
    client.subscribe("t", "s").close()
    producer = client.create_producer("t")
    producer.send(b"plain")
    with mirror(source, target) as running:
        eventually(lambda: running.status().messages == 1)
        for number in range(10):
            with client.new_transaction() as txn:
                producer.send_many([b"%d-%d" % (number, n) for n in range(5)], txn=txn)
                if number % 2:
                    txn.abort()
            producer.send(b"behind-%d" % number)
        eventually(lambda: running.status().messages == 1 + 5 * 5 + 10)
        open_one = client.new_transaction()
        producer.send(b"open", txn=open_one)
    expected = [b"plain"]
    for number in range(10):
        expected += [b"%d-%d" % (number, n) for n in range(5)] if number % 2 == 0 else []
        expected.append(b"behind-%d" % number)
    assert left(target, "t", "s") == expected
    open_one.abort()
    assert mirrored(source, target).messages == 0
    assert left(target, "t", "s") == expected


def test_subscriptions_are_copied_over_aborted_messages(brokers):
    source, target = brokers
    client = source.client()
    consumer = client.subscribe("t", "s")
    producer = client.create_producer("t")
    for number in range(4):
        txn = client.new_transaction()
        producer.send(b"%d" % number, txn=txn)
        txn.commit() if number % 2 else txn.abort()
    message = consumer.receive(20_000)
    assert message.data() == b"1"
    consumer.acknowledge(message)
    consumer.close()
    mirrored(source, target)
    assert left(target, "t", "s") == [b"3"]
