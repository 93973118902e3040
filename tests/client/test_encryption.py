"""End-to-end encryption through a broker: both shells, batches, chunks, tables, and the official client."""

import random
import threading
import uuid
from pathlib import Path

import pytest
from waiting import eventually

import geminga
from geminga.client.admin import admin
from geminga.client.options.crypto import CryptoKeyReader, ProducerCryptoFailureAction
from geminga.client.publish import producer as producer_module
from geminga.errors import CryptoError
from geminga.schema import StringSchema
from geminga.wire.encryption import PayloadEncryptor

pytest.importorskip("cryptography")

KEYS = Path(__file__).parent.parent / "vectors" / "keys"
RSA = (str(KEYS / "k1_public.pem"), str(KEYS / "k1_private_pkcs1.pem"))
EC = (str(KEYS / "ec_p521_public.pem"), str(KEYS / "ec_p521_private.pem"))
Earliest = geminga.InitialPosition.Earliest
Action = geminga.ConsumerCryptoFailureAction
CANARY = b"the canary that nobody must see"


def reader(files=RSA):
    return CryptoKeyReader(*files)


def encrypting(client, topic, files=RSA, **options):
    return client.create_producer(
        topic, encryption_key="k1", crypto_key_reader=CryptoKeyReader(*files), **options
    )


def received(consumer, count):
    messages = [consumer.receive(30_000) for _ in range(count)]
    for message in messages:
        consumer.acknowledge(message)
    return messages


def names_of(context):
    keys = context.keys()
    return [key.key for key in keys]


def nothing(consumer, millis=300):
    with pytest.raises(geminga.Timeout):
        consumer.receive(millis)


COMPRESSIONS = [geminga.CompressionType.NONE, geminga.CompressionType.ZSTD]


@pytest.mark.parametrize("files", [RSA, EC], ids=["RSA", "EC"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("batching", [True, False])
def test_messages(client, topic, files, compression, batching):
    consumer = client.subscribe(topic, "s", crypto_key_reader=reader(files))
    sending = encrypting(client, topic, files, compression_type=compression, batching_enabled=batching)
    for index in range(20):
        sending.send_async(
            CANARY + b"%d" % index, None, properties={"p": str(index)}, partition_key=f"k{index}"
        )
    sending.flush()
    messages = received(consumer, 20)
    assert [m.data() for m in messages] == [CANARY + b"%d" % i for i in range(20)]
    assert [m.properties() for m in messages] == [{"p": str(i)} for i in range(20)]
    context = messages[0].encryption_context()
    assert not context.is_decryption_failed()
    assert names_of(context) == ["k1"]
    assert len(context.param()) == 12


def test_the_broker_stores_only_encrypted_payloads(client, topic):
    consumer = client.subscribe(topic, "s", crypto_failure_action=Action.CONSUME)
    sending = encrypting(client, topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for _ in range(10):
        sending.send_async(CANARY, None)
    sending.flush()
    sending.send(CANARY)
    batch, single = received(consumer, 2)
    for message, size in ((batch, -1), (single, len(CANARY) + 16)):
        assert CANARY not in message.data()
        assert message.encryption_context().is_decryption_failed()
        assert size in (-1, len(message.data()))
    assert batch.encryption_context().batch_size() == 10
    assert single.encryption_context().batch_size() == -1


def test_consumers_without_the_key(client, topic):
    failing = client.subscribe(topic, "fail")
    wrong = client.subscribe(topic, "wrong", crypto_key_reader=reader(EC))
    discarding = client.subscribe(topic, "discard", crypto_failure_action=Action.DISCARD)
    encrypting(client, topic).send(CANARY)
    client.create_producer(topic).send(b"plain")
    # FAIL leaves the message unacknowledged and continues; a consumer with the key receives it.
    assert received(failing, 1)[0].data() == b"plain"
    assert received(wrong, 1)[0].data() == b"plain"
    assert received(discarding, 1)[0].data() == b"plain"
    for consumer in (failing, wrong, discarding):
        nothing(consumer)
        consumer.close()
    for name in ("fail", "wrong"):
        with client.subscribe(topic, name, crypto_key_reader=reader()) as again:
            assert received(again, 1)[0].data() == CANARY
    with client.subscribe(topic, "discard", crypto_key_reader=reader()) as again:
        nothing(again)


@pytest.mark.parametrize("batching", [True, False])
def test_a_failure_listener_gets_what_cannot_be_decrypted_or_decoded(client, topic, batching):
    values, failures = [], []

    def listen(owner, message):
        values.append(message.value())
        owner.acknowledge(message)

    def fail(owner, message):
        context = message.encryption_context()
        failures.append(message.data() if context is None else context.is_decryption_failed())
        owner.acknowledge(message)

    listening = client.subscribe(
        topic, "s", schema=StringSchema(), message_listener=listen, failure_listener=fail,
        crypto_key_reader=reader(EC), initial_position=Earliest,
    )  # fmt: skip
    encrypting(client, topic, batching_enabled=batching).send(CANARY)
    encrypting(client, topic, EC, batching_enabled=batching).send(b"decrypted")
    plain = client.create_producer(topic, batching_enabled=batching)
    for payload in (b"plain", b"\xff", b"last"):
        plain.send(payload)
    eventually(lambda: values == ["decrypted", "plain", "last"])
    assert failures == [True, b"\xff"]
    listening.close()
    with client.subscribe(topic, "s") as again:
        nothing(again)


def test_a_failure_listener_of_a_reader(client, topic):
    encrypting(client, topic).send(CANARY)
    client.create_producer(topic).send(b"plain")
    values, failures = [], []
    reading = client.create_reader(
        topic, geminga.MessageId.earliest, reader_listener=lambda _, message: values.append(message.data()),
        failure_listener=lambda _, message: failures.append(message.data()),
    )  # fmt: skip
    eventually(lambda: values == [b"plain"])
    assert len(failures) == 1
    assert CANARY not in failures[0]
    reading.close()


def test_a_failure_listener_needs_a_listener_and_messages(client, topic):
    listener = {"message_listener": print}
    for wrong, message in (
        ({"failure_listener": print}, "None without a message_listener"),
        ({**listener, "failure_listener": 7}, "a callable"),
        ({**listener, "failure_listener": print, "crypto_failure_action": Action.DISCARD}, "DISCARD"),
    ):
        with pytest.raises(geminga.errors.InvalidConfiguration, match=message):
            client.subscribe(topic, "s", **wrong)
    with pytest.raises(geminga.errors.InvalidConfiguration, match="None without a reader_listener"):
        client.create_reader(topic, geminga.MessageId.earliest, failure_listener=print)


@pytest.mark.parametrize("queue_size", [1, 1000])
def test_a_reader_without_the_key_comes_to_the_end(client, topic, queue_size):
    """The last message cannot be read: it is not available, and nothing waits for it."""
    plain = client.create_producer(topic)
    plain.send(b"plain")
    encrypting(client, topic).send(CANARY)
    with client.create_reader(topic, geminga.MessageId.earliest, receiver_queue_size=queue_size) as unable:
        assert unable.has_message_available()
        assert unable.read_next(30_000).data() == b"plain"
        assert not unable.has_message_available()
        plain.send(b"later")
        assert unable.has_message_available()
        assert unable.read_next(30_000).data() == b"later"
        assert not unable.has_message_available()


def test_a_reader_of_undecryptable_messages_alone_has_none_available(client, topic):
    encrypting(client, topic).send(CANARY)
    with client.create_reader(topic, geminga.MessageId.earliest) as unable:
        assert not unable.has_message_available()
        assert list(unable.tables()) == []


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_chunks_are_encrypted_one_by_one(client, topic, compression):
    payload = random.Random(1).randbytes(100_000)
    consumer = client.subscribe(topic, "s", crypto_key_reader=reader())
    raw = client.subscribe(topic, "raw", crypto_failure_action=Action.CONSUME)
    sending = encrypting(
        client, topic, batching_enabled=False, chunking_enabled=True, chunk_max_message_size=8_000,
        compression_type=compression,
    )  # fmt: skip
    sending.send(payload, properties={"a": "b"})
    message = received(consumer, 1)[0]
    assert message.data() == payload
    assert message.properties() == {"a": "b"}
    chunks = received(raw, 13)
    assert len({chunk.encryption_context().param() for chunk in chunks}) == len(chunks)


def test_tables(client, topic):
    pa = pytest.importorskip("pyarrow")
    consumer = client.subscribe(topic, "s", crypto_key_reader=reader())
    blind = client.subscribe(topic, "blind")
    table = pa.table({"value": [b"%d" % i for i in range(5000)], "key": [f"k{i % 7}" for i in range(5000)]})
    sending = encrypting(client, topic, compression_type=geminga.CompressionType.LZ4)
    sending.send_table(table)
    rows = []
    while len(rows) < 5000:
        rows += consumer.receive_table(timeout_millis=30_000, columns=["value", "key"]).to_pylist()
    assert sorted(rows, key=lambda row: int(row["value"])) == table.to_pylist()
    with pytest.raises(geminga.Timeout):
        blind.receive_table(timeout_millis=300)
    showing = client.subscribe(topic, "shown", crypto_failure_action=Action.CONSUME)
    with pytest.raises(geminga.OperationNotSupported, match="still encrypted"):
        showing.receive_table(timeout_millis=300)


def test_several_keys(client, topic):
    files = {"rsa": RSA, "ec": EC}
    keys = CryptoKeyReader.of(public_key=lambda name, _: Path(files[name][0]).read_bytes())
    consumers = [
        client.subscribe(
            topic,
            name,
            crypto_key_reader=CryptoKeyReader.of(
                private_key=lambda asked, _, mine=name: Path(files[{mine: mine}[asked]][1]).read_bytes()
            ),
        )
        for name in files
    ]
    client.create_producer(topic, encryption_keys=["rsa", "ec"], crypto_key_reader=keys).send(CANARY)
    for consumer in consumers:
        assert received(consumer, 1)[0].data() == CANARY


@pytest.mark.parametrize("how", ["dead letter", "retry"])
def test_retried_and_dead_lettered_messages_stay_encrypted(client, topic, how):
    policy = geminga.ConsumerDeadLetterPolicy(1, initial_subscription_name="kept")
    consumer = client.subscribe(
        topic, "s", geminga.ConsumerType.Shared, crypto_key_reader=reader(), dead_letter_policy=policy,
        negative_ack_redelivery_delay_ms=1, retry_enabled=how == "retry",
    )  # fmt: skip
    kind = "RETRY" if how == "retry" else "DLQ"
    other = client.subscribe(
        f"{topic}-s-{kind}", "kept", geminga.ConsumerType.Shared, crypto_failure_action=Action.CONSUME
    )
    encrypting(client, topic).send(CANARY, properties={"a": "b"})
    if how == "retry":
        consumer.reconsume_later(consumer.receive(30_000), 1)
        assert consumer.receive(30_000).data() == CANARY
    else:
        for _ in range(2):
            consumer.negative_acknowledge(consumer.receive(30_000))
    message = other.receive(30_000)
    assert message.encryption_context().is_decryption_failed()
    assert CANARY not in message.data()
    assert names_of(message.encryption_context()) == ["k1"]
    if how == "dead letter":
        with client.subscribe(
            f"{topic}-s-DLQ", "k", crypto_key_reader=reader(), initial_position=Earliest
        ) as dead:
            again = dead.receive(30_000)
            assert (again.data(), again.properties()["a"]) == (CANARY, "b")


def test_a_message_without_a_public_key_is_not_retried(client, topic):
    blind = CryptoKeyReader.of(private_key=lambda name, metadata: Path(RSA[1]).read_bytes())
    consumer = client.subscribe(
        topic, "s", geminga.ConsumerType.Shared, crypto_key_reader=blind, retry_enabled=True,
        dead_letter_policy=geminga.ConsumerDeadLetterPolicy(1),
    )  # fmt: skip
    encrypting(client, topic).send(CANARY)
    message = consumer.receive(30_000)
    with pytest.raises(CryptoError, match="public key 'k1' was not given"):
        consumer.reconsume_later(message, 1)


# --- failures ---
def producers_of(broker, topic):
    found = admin(broker.admin_url, "GET", f"persistent/public/default/{topic.rsplit('/', 1)[1]}/stats")
    return found["publishers"]


def test_without_a_public_key_nothing_is_created(client, pulsar_broker, topic, tmp_path):
    client.create_producer(topic).close()
    bad = tmp_path / "bad.pem"
    bad.write_text("no key")
    for path in (tmp_path / "missing.pem", bad):
        with pytest.raises(CryptoError, match="public key"):
            encrypting(client, topic, (str(path), ""))
    assert producers_of(pulsar_broker, topic) == []


def test_send_in_spite_of_the_failure(client, topic, caplog):
    consumer = client.subscribe(topic, "s")
    sending = encrypting(
        client, topic, ("missing.pem", ""), crypto_failure_action=ProducerCryptoFailureAction.SEND
    )
    sending.send(b"plain")
    assert received(consumer, 1)[0].data() == b"plain"
    assert "without a new data key" in caplog.text


@pytest.mark.parametrize("batched", [True, False])
def test_what_cannot_be_encrypted_fails_and_is_not_sent(client, topic, batched, monkeypatch):
    consumer = client.subscribe(topic, "s", crypto_key_reader=reader())
    seal, has_key = PayloadEncryptor.seal, threading.Event()

    def seal_with_key(encryptor, payload):
        if not has_key.is_set():
            raise CryptoError("no data key could be made: nothing is sent")
        return seal(encryptor, payload)

    monkeypatch.setattr(PayloadEncryptor, "seal", seal_with_key)
    sending = encrypting(client, topic, batching_enabled=batched, batching_max_messages=10)
    results = []
    for _ in range(10):  # the last one fills the batch and encodes it on this thread
        sending.send_async(CANARY, lambda result, _: results.append(result))
    with pytest.raises(CryptoError, match="nothing is sent"):
        sending.send(CANARY)
    assert results == [geminga.Result.CryptoError] * 10
    has_key.set()
    sending.send(b"again")
    assert received(consumer, 1)[0].data() == b"again"


def test_data_keys_are_renewed(client, topic, monkeypatch, caplog):
    monkeypatch.setattr(producer_module, "RENEWAL_SECONDS", 0.02)
    reads = []

    def public_key(name, metadata):
        reads.append(name)
        if len(reads) == 3:
            raise OSError("not now")
        return Path(RSA[0]).read_bytes()

    keys = CryptoKeyReader.of(public_key, lambda name, metadata: Path(RSA[1]).read_bytes())
    consumer = client.subscribe(topic, "s", crypto_key_reader=keys)
    sending = client.create_producer(topic, encryption_key="k1", crypto_key_reader=keys)
    sending.send(b"1")
    eventually(lambda: len(reads) >= 5)
    sending.send(b"2")
    messages = received(consumer, 2)
    assert [m.data() for m in messages] == [b"1", b"2"]
    first, second = (m.encryption_context().keys()[0].value for m in messages)
    assert first != second
    assert "keeps its data key" in caplog.text


def test_a_namespace_that_requires_encryption(client, pulsar_broker, monkeypatch):
    namespace = f"public/secret-{uuid.uuid4().hex[:8]}"
    admin(pulsar_broker.admin_url, "PUT", f"namespaces/{namespace}")
    admin(pulsar_broker.admin_url, "POST", f"namespaces/{namespace}/encryptionRequired", True)
    topic = f"persistent://{namespace}/t"
    consumer = client.subscribe(topic, "s", crypto_key_reader=reader())
    with (
        geminga.Client(pulsar_broker.service_url, operation_timeout_seconds=2) as impatient,
        pytest.raises(geminga.BrokerMetadataError, match="Encryption is required"),
    ):
        impatient.create_producer(topic)
    encrypting(client, topic).send(CANARY)
    assert received(consumer, 1)[0].data() == CANARY
    # The broker rejects the first plain message of a producer that announced encryption.
    monkeypatch.setattr(PayloadEncryptor, "seal", lambda *_: None)
    liar = encrypting(client, topic, send_timeout_millis=500)
    with pytest.raises(geminga.PulsarException):
        liar.send(b"plain")
    nothing(consumer)


# --- the official client ---
@pytest.fixture
def official(pulsar_broker):
    pulsar = pytest.importorskip("pulsar")
    client = pulsar.Client(pulsar_broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield pulsar, client
    client.close()


def send_ten_and_receive_them(sending, consumer):
    for index in range(10):
        sending.send_async(CANARY + b"%d" % index, None, properties={"i": str(index)})
    sending.flush()
    messages = received(consumer, 10)
    assert [m.data() for m in messages] == [CANARY + b"%d" % i for i in range(10)]
    assert [m.properties() for m in messages] == [{"i": str(i)} for i in range(10)]
    return messages


@pytest.mark.witness
@pytest.mark.parametrize("kind", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
@pytest.mark.parametrize("batching", [True, False])
def test_pulsar_client_decrypts_messages_of_geminga(client, official, topic, kind, batching):
    pulsar, theirs = official
    consumer = theirs.subscribe(topic, "s", crypto_key_reader=pulsar.CryptoKeyReader(*RSA))
    sending = encrypting(
        client, topic, batching_enabled=batching, compression_type=geminga.CompressionType[kind]
    )
    send_ten_and_receive_them(sending, consumer)


@pytest.mark.witness
@pytest.mark.parametrize("kind", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
@pytest.mark.parametrize("batching", [True, False])
def test_geminga_decrypts_messages_of_pulsar_client(client, official, topic, kind, batching):
    pulsar, theirs = official
    consumer = client.subscribe(topic, "s", crypto_key_reader=reader())
    sending = theirs.create_producer(
        topic,
        encryption_key="any name",
        crypto_key_reader=pulsar.CryptoKeyReader(*RSA),
        batching_enabled=batching,
        compression_type=pulsar.CompressionType.__members__[kind],
    )
    context = send_ten_and_receive_them(sending, consumer)[0].encryption_context()
    assert names_of(context) == ["any name"]
    assert context.compression_type() is geminga.CompressionType[kind]


@pytest.mark.witness
def test_encrypted_chunks_of_and_for_pulsar_client(client, official, topic):
    pulsar, theirs = official
    payload = bytes(range(256)) * 24_000  # larger than the broker's largest message
    ours_to_theirs = theirs.subscribe(topic, "theirs", crypto_key_reader=pulsar.CryptoKeyReader(*RSA))
    theirs_to_ours = client.subscribe(topic, "ours", crypto_key_reader=reader())
    options = {"batching_enabled": False, "chunking_enabled": True}
    encrypting(client, topic, **options).send(payload)
    theirs.create_producer(
        topic, encryption_key="k1", crypto_key_reader=pulsar.CryptoKeyReader(*RSA), **options
    ).send(payload[::-1])
    for consumer in (ours_to_theirs, theirs_to_ours):
        assert consumer.receive(30_000).data() == payload
        assert consumer.receive(30_000).data() == payload[::-1]
