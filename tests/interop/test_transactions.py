"""The client's transactions on an Apache Pulsar with a transaction coordinator, and on Geminga's broker."""

import asyncio
import re
import subprocess
import time
from pathlib import Path
from uuid import uuid4

import pulsar
import pytest
from waiting import eventually

import geminga
import geminga.asyncio
from geminga import BatchingType, ConsumerType, InitialPosition, TransactionState, errors
from geminga.schema import StringSchema
from geminga.testing.apache_pulsar import ApachePulsar, free_ports

pytestmark = pytest.mark.interop
PAGE = Path(__file__).parents[2] / "docs/transactions.md"
LITTLE_MS, LONG_MS = 1500, 20_000
ALONE = [ConsumerType.Exclusive, ConsumerType.Failover]
TOGETHER = [ConsumerType.Shared, ConsumerType.KeyShared]


class Geminga:
    """Geminga's broker on a folder, which can be stopped and started again at its ports."""

    def __init__(self, folder):
        self._folder, ports = folder, free_ports(2)
        self._ports = {"port": ports[0], "web_port": ports[1]}
        self.start_again()

    def start_again(self, timeout_seconds=0):
        self._broker = geminga.embedded(self._folder, **self._ports)
        self.service_url, self.admin_url = self._broker.service_url, self._broker.admin_url

    def stop(self):
        self._broker.close()


@pytest.fixture(scope="module", params=["geminga", "apache"])
def broker(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("transactions")
    if request.param == "geminga":
        found = Geminga(folder)
        yield found
        found.stop()
        return
    home = request.getfixturevalue("pulsar_home")
    with ApachePulsar.start(
        home, folder, timeout_seconds=180, transactionCoordinatorEnabled=True,
        acknowledgmentAtBatchIndexLevelEnabled=True, brokerDeleteInactiveTopicsEnabled=False,
    ) as found:  # fmt: skip
        yield found


@pytest.fixture
def client(broker):
    with geminga.Client(broker.service_url) as client:
        yield client


def named(name):
    return f"persistent://public/default/{name}-{uuid4().hex[:10]}"


def subscribed(client, topic, kind=ConsumerType.Exclusive, name="s", **options):
    return client.subscribe(topic, name, kind, initial_position=InitialPosition.Earliest, **options)


def received(consumer, count):
    return [consumer.receive(LONG_MS) for _ in range(count)]


def values(consumer, count):
    return sorted(message.data() for message in received(consumer, count))


def assert_nothing_more(consumer):
    with pytest.raises(geminga.Timeout):
        consumer.receive(LITTLE_MS)


def fill(client, topic, count, batched):
    """Publish messages 0 to ``count`` - 1, in one batch or each alone."""
    producer = client.create_producer(topic, batching_enabled=batched)
    producer.send_many([b"%d" % number for number in range(count)])
    producer.close()


def test_a_commit_over_two_topics_and_a_subscription_is_atomic(broker, client):
    source, plain, partitioned = named("source"), named("plain"), named("partitioned")
    geminga.Admin(broker.admin_url).topics.create(partitioned, partitions=3)
    consumer = subscribed(client, source)
    outs = [subscribed(client, topic) for topic in (plain, partitioned)]
    other = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn))
    witness = other.subscribe(plain, "witness", initial_position=pulsar.InitialPosition.Earliest)
    producers = [client.create_producer(plain), client.create_producer(partitioned, batching_enabled=False)]
    fill(client, source, 1, batched=False)
    message = consumer.receive(LONG_MS)
    with client.new_transaction() as txn:
        producers[0].send(b"0", txn=txn)
        producers[0].send_async(b"1", None, {"a": "b"}, "key", txn=txn)
        producers[1].send_many([b"%d" % number for number in range(12)], txn=txn)
        consumer.acknowledge(message, txn=txn)
        for out in outs:
            assert_nothing_more(out)
        with pytest.raises(pulsar.Timeout):
            witness.receive(LITTLE_MS)
    assert txn.state is TransactionState.COMMITTED
    assert values(outs[0], 2) == [b"0", b"1"]
    assert sorted(witness.receive(LONG_MS).data() for _ in range(2)) == [b"0", b"1"]
    other.close()
    assert values(outs[1], 12) == sorted(b"%d" % number for number in range(12))
    consumer.close()
    assert_nothing_more(subscribed(client, source))


@pytest.mark.parametrize("batched", [False, True], ids=["alone", "batched"])
@pytest.mark.parametrize("kind", ALONE + TOGETHER, ids=lambda kind: kind.name)
def test_an_abort_is_invisible_and_its_acknowledgements_come_back(client, kind, batched):
    source, target = named("source"), named("target")
    consumer, out = subscribed(client, source, kind), subscribed(client, target)
    producer = client.create_producer(target)
    fill(client, source, 4, batched)
    messages = received(consumer, 4)
    txn = client.new_transaction()
    producer.send(b"never", txn=txn)
    consumer.acknowledge(messages[0], txn=txn)
    consumer.acknowledge([messages[1], messages[2].message_id()], txn=txn)
    txn.abort()
    producer.send(b"seen")
    assert out.receive(LONG_MS).data() == b"seen"
    # Exclusive and Failover consumers get everything again, the others what the transaction had acknowledged.
    again = received(consumer, 4 if kind in ALONE else 3)
    assert {message.data() for message in again} >= {b"0", b"1", b"2"}
    with client.new_transaction() as txn:
        consumer.acknowledge(again, txn=txn)
    for message in messages[3:]:
        consumer.acknowledge(message)
    consumer.close()
    assert_nothing_more(subscribed(client, source, kind))
    assert_nothing_more(out)


def test_parts_of_a_batch_are_acknowledged_in_different_transactions(client):
    topic = named("batch")
    consumer = subscribed(client, topic, ConsumerType.Shared)
    fill(client, topic, 6, batched=True)
    messages = received(consumer, 6)
    kept, lost = client.new_transaction(), client.new_transaction()
    consumer.acknowledge(messages[0], txn=kept)
    consumer.acknowledge(messages[1], txn=lost)
    consumer.acknowledge(messages[2:4], txn=kept)
    consumer.acknowledge(messages[4])
    kept.commit()
    lost.abort()
    eventually(lambda: consumer.receive(LONG_MS).data() == b"1")
    consumer.close()
    assert values(subscribed(client, topic, ConsumerType.Shared), 2) == [b"1", b"5"]


@pytest.mark.parametrize("batched", [False, True], ids=["alone", "batched"])
def test_a_cumulative_acknowledgement_is_committed_or_comes_back(client, batched):
    topic = named("cumulative")
    consumer = subscribed(client, topic)
    fill(client, topic, 5, batched)
    messages = received(consumer, 5)
    txn = client.new_transaction()
    consumer.acknowledge_cumulative(messages[3], txn=txn)
    txn.abort()
    again = received(consumer, 5)
    assert [message.data() for message in again] == [b"%d" % number for number in range(5)]
    with client.new_transaction() as txn:
        consumer.acknowledge_cumulative(again[2], txn=txn)
    consumer.close()
    assert values(subscribed(client, topic), 2) == [b"3", b"4"]


@pytest.mark.parametrize("batched", [False, True], ids=["alone", "batched"])
def test_of_two_transactions_that_acknowledge_a_message_the_second_fails(client, batched):
    topic = named("conflict")
    consumer = subscribed(client, topic, ConsumerType.Shared)
    fill(client, topic, 2, batched)
    messages = received(consumer, 2)
    first, second = client.new_transaction(), client.new_transaction()
    consumer.acknowledge(messages[0], txn=first)
    # The broker has the first one's acknowledgement before it gets the second's.
    eventually(lambda: not first.transaction.core.pending)
    consumer.acknowledge(messages[0], txn=second)
    with pytest.raises(errors.TransactionHasOperationFailed) as raised:
        second.commit()
    assert isinstance(raised.value.__cause__, errors.TransactionConflict)
    assert second.state is TransactionState.ABORTED
    first.commit()


def test_after_the_time_limit_the_broker_has_aborted(client):
    source, target = named("source"), named("target")
    consumer, out = subscribed(client, source, ConsumerType.Shared), subscribed(client, target)
    producer = client.create_producer(target)
    fill(client, source, 1, batched=False)
    txn = client.new_transaction(timeout=10)
    producer.send(b"never", txn=txn)
    consumer.acknowledge(consumer.receive(LONG_MS), txn=txn)
    assert consumer.receive(LONG_MS).data() == b"0"
    with pytest.raises(errors.InvalidTxnStatusError, match="time limit has passed"):
        txn.commit()
    producer.send(b"seen")
    assert out.receive(LONG_MS).data() == b"seen"


def test_a_transaction_ended_by_its_coordinator_cannot_be_committed(client):
    txn = client.new_transaction(timeout=2)
    txn.transaction.core.deadline += 60  # as if this machine's clock were slow
    late = time.monotonic() + 5
    eventually(lambda: time.monotonic() > late)
    with pytest.raises((errors.TransactionNotFound, errors.InvalidTxnStatusError)):
        txn.commit()
    assert txn.state is TransactionState.ERROR


def test_every_way_to_send_belongs_to_a_transaction(client):
    pyarrow = pytest.importorskip("pyarrow")
    topic = named("ways")
    out = subscribed(client, topic)
    producer = client.create_producer(topic, batching_enabled=True)
    keyed = client.create_producer(topic, batching_enabled=True, batching_type=BatchingType.KeyBased)
    chunking = client.create_producer(topic, chunking_enabled=True, chunk_max_message_size=1000)
    compressing = client.create_producer(topic, compression_type=geminga.CompressionType.ZLib)
    typed = client.create_producer(topic, schema=StringSchema(), batching_enabled=True)
    for end in ("abort", "commit"):
        txn = client.new_transaction()
        producer.send(b"send", txn=txn)
        producer.send_many([b"many"] * 3, txn=txn)
        producer.send_table(pyarrow.table({"value": [b"table"] * 4}), txn=txn)
        keyed.send_many([b"keyed"] * 4, keys=list("abab"), txn=txn)
        chunking.send(b"chunked" * 1000, txn=txn)
        compressing.send(b"compressed" * 100, txn=txn)
        typed.send("typed", txn=txn)
        getattr(txn, end)()
    producer.send(b"last")
    found = [message.data()[:10] for message in received(out, 16)]
    assert sorted(found[:-1]) == sorted(
        [b"send", *[b"many"] * 3, *[b"table"] * 4, *[b"keyed"] * 4, b"chunkedchu", b"compressed", b"typed"]
    )
    assert found[-1] == b"last"


def test_asyncio_commits_and_aborts(broker):
    async def main():
        async with geminga.asyncio.Client(broker.service_url) as client:
            topic = named("asyncio")
            consumer = await client.subscribe(topic, "s")
            producer = await client.create_producer(topic)
            aborted = await client.new_transaction()
            await producer.send(b"never", txn=aborted)
            await aborted.abort()
            async with await client.new_transaction() as txn:
                await asyncio.gather(*(producer.send(b"%d" % number, txn=txn) for number in range(100)))
            messages = [await consumer.receive(LONG_MS) for _ in range(100)]
            async with await client.new_transaction() as txn:
                for message in messages:
                    await consumer.acknowledge(message, txn=txn)
            assert {message.data() for message in messages} == {b"%d" % number for number in range(100)}
            await consumer.close()
            again = await client.subscribe(topic, "s")
            with pytest.raises(geminga.Timeout):
                await again.receive(LITTLE_MS)

    asyncio.run(main())


def shape(document):
    """The names and types of a JSON document, without those of one broker's own ledgers and threads."""
    if not isinstance(document, dict):
        return type(document).__name__
    own = {"lowWaterMarks", "segmentsStats", "snapshotType", "totalAbortedTransactions"}
    own |= {"lastSnapshotTimestamps", "recoverStartTime", "recoverEndTime", "owner"}
    return {key: shape(value) for key, value in document.items() if key not in own}


def test_administrators_see_and_abort_open_transactions(broker, client):
    source, target = named("seen"), named("target")
    consumer, out = subscribed(client, source), subscribed(client, target)
    fill(client, source, 2, batched=False)
    message = received(consumer, 2)[0]
    admin, producer = geminga.Admin(broker.admin_url), client.create_producer(target)
    txn = client.new_transaction(timeout=300)
    producer.send(b"never", txn=txn)
    consumer.acknowledge(message, txn=txn)
    number = "{}/{}".format(*txn.id)
    place, there = ("public/default/" + each.rpartition("/")[2] for each in (source, target))

    def ask(path):
        return admin.call("GET", f"/admin/v3/transactions/{path}")

    eventually(lambda: source in ask(f"transactionMetadata/{number}")["ackedPartitions"])
    eventually(lambda: not txn.transaction.core.pending)
    found = ask(f"transactionMetadata/{number}")
    assert found["txnId"] == "({},{})".format(*txn.id)
    assert (found["status"], found["timeoutAt"]) == ("OPEN", 300_000)
    first = found["producedPartitions"][target]
    assert shape(first) == {"startPosition": "str", "aborted": "bool"}
    assert ask(f"transactionInBufferStats/{there}/{number}") == first
    assert found["ackedPartitions"][source]["s"] == {}  # none is cumulative
    assert ask(f"transactionInPendingAckStats/{place}/s/{number}") == {}
    assert "({},{})".format(*txn.id) in ask("slowTransactions/0")
    assert shape(ask("coordinatorStats?coordinatorId=0")) == {
        "state": "str", "leastSigBits": "int", "lowWaterMark": "int", "ongoingTxnSize": "int",
    }  # fmt: skip
    assert shape(ask(f"transactionBufferStats/{there}")) == {
        "state": "str", "maxReadPosition": "str", "ongoingTxnSize": "int",
    }  # fmt: skip
    assert shape(ask(f"pendingAckStats/{place}/s")) == {"state": "str", "ongoingTxnSize": "int"}
    assert admin.topics.stats(target).raw["ongoingTxnCount"] == 1
    admin.call("POST", f"/admin/v3/transactions/abortTransaction/{number}")
    producer.send(b"seen")
    assert out.receive(LONG_MS).data() == b"seen"
    with pytest.raises((errors.TransactionNotFound, errors.InvalidTxnStatusError)):
        txn.commit()


def test_transactions_of_javas_client(broker, pulsar_home):
    program = Path(__file__).parent / "programs/Transactions.java"
    java = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{pulsar_home}/lib/*"]
    done = subprocess.run(
        [*java, program, broker.service_url, named("java")],
        capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert done.stdout.endswith("done\n"), f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def test_the_programs_of_the_page_run(broker):
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S):
        exec(block.replace("pulsar://localhost:6650", broker.service_url), names)


def test_a_broker_that_restarts_commits_what_was_begun_before(broker):
    topic = named("restart")
    with geminga.Client(broker.service_url, operation_timeout_seconds=90) as client:
        out, producer = subscribed(client, topic), client.create_producer(topic)
        txn = client.new_transaction(timeout=180)
        producer.send(b"before", txn=txn)
        broker.stop()
        broker.start_again(timeout_seconds=120)
        producer.send(b"after", txn=txn)
        txn.commit()
        assert [message.data() for message in received(out, 2)] == [b"before", b"after"]
