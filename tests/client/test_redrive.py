"""Redrive: dead letters go back once each, with what they carried, also over an interruption."""

import asyncio
import datetime as dt
import json
from collections.abc import Awaitable, Callable
from dataclasses import make_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from readers import available

import geminga
import geminga.asyncio
from geminga.asyncio import Redrive, RedriveFilter
from geminga.cli.main import command as cli
from geminga.client.api import redrive as module
from geminga.client.api.redrive import REDRIVE_COUNT, REDRIVEN_FROM
from geminga.client.publish.dead_letter_publisher import DeadLetterPublisher
from geminga.schema import JsonSchema

DEAD = "persistent://public/default/orders-bank-DLQ"
KEYS = Path(__file__).parents[1] / "vectors" / "keys"
ORDERS = "persistent://public/default/orders"


@pytest.fixture
def broker(monkeypatch):
    monkeypatch.setattr(module, "SILENCE_MILLIS", 300)
    with geminga.embedded() as broker:
        yield broker


def fill(broker: geminga.EmbeddedBroker, count: int = 10, topic: str = ORDERS) -> None:
    """Publish dead letters as a consumer's dead letter policy does."""
    with broker.client() as client, client.create_producer(DEAD) as producer:
        for number in range(count):
            producer.send(
                b"order %d" % number,
                partition_key=f"key {number % 2}",
                properties={"REAL_TOPIC": topic, "RECONSUMETIMES": "16", "n": str(number)},
            )


def with_redrive(
    broker: geminga.EmbeddedBroker, work: Callable[[Redrive], Awaitable[Any]], **options: Any
) -> Any:
    async def run() -> Any:
        async with (
            geminga.asyncio.Client(broker.service_url) as client,
            geminga.asyncio.Admin(broker.admin_url) as admin,
        ):
            return await work(Redrive(client, admin, "orders", "bank", **options))

    return asyncio.run(run())


def values(broker: geminga.EmbeddedBroker, topic: str) -> list[str]:
    with broker.client() as client, client.create_reader(topic, geminga.MessageId.earliest) as reader:
        return [message.data().decode() for message in available(reader)]


def test_copies_have_everything_but_the_count_of_retries(broker):
    fill(broker, 1)
    result = with_redrive(broker, Redrive.run)
    assert (dict(result.sent), result.found, result.left) == ({ORDERS: 1}, 0, 0)
    with broker.client() as client, client.create_reader(ORDERS, geminga.MessageId.earliest) as reader:
        message = reader.read_next(60_000)
    assert (message.data(), message.partition_key()) == (b"order 0", "key 0")
    origin = message.properties().pop(REDRIVEN_FROM)
    assert origin.startswith(f"{DEAD}@")
    assert message.properties() == {
        "REAL_TOPIC": ORDERS, "n": "0", REDRIVE_COUNT: "1", REDRIVEN_FROM: origin
    }  # fmt: skip


def test_what_the_filter_leaves_is_sent_by_a_later_run(broker):
    fill(broker)
    only = RedriveFilter(key="key 1", properties={"n": "3"})
    assert (with_redrive(broker, Redrive.preview, only=only)).sent.total() == 1
    result = with_redrive(broker, Redrive.run, only=only)
    assert (result.sent.total(), result.left) == (1, 9)
    result = with_redrive(broker, Redrive.run, only=RedriveFilter(count_max=4))
    assert (result.sent.total(), result.left) == (4, 5)
    assert (with_redrive(broker, Redrive.run)).sent.total() == 5
    assert (with_redrive(broker, Redrive.run)).sent.total() == 0
    assert values(broker, ORDERS) == [f"order {n}" for n in (3, 0, 1, 2, 4, 5, 6, 7, 8, 9)]


def test_times_and_texts_choose_dead_letters(broker):
    fill(broker, 3)
    an_hour = dt.timedelta(hours=1)
    now = dt.datetime.now(dt.UTC)
    for only, count in (
        (RedriveFilter(since=now - an_hour), 3),
        (RedriveFilter(before=now - an_hour), 0),
        (RedriveFilter(contains=b"der 2"), 1),
    ):
        assert (with_redrive(broker, Redrive.preview, only=only)).sent.total() == count


def test_an_interrupted_run_sends_nothing_twice(broker, monkeypatch):
    fill(broker)
    publish = DeadLetterPublisher.publish

    async def fail_after_six(self: Any, plan: Any, message: Any, policy: Any) -> None:
        await publish(self, plan, message, policy)
        if message.properties()["n"] == "6":
            raise geminga.Timeout("the receipt is lost")

    async def never(consumer: Any, waiting: Any) -> None:
        for _, sending in waiting:
            await sending

    with monkeypatch.context() as broken:
        broken.setattr(DeadLetterPublisher, "publish", fail_after_six)
        broken.setattr(module, "_settle", never)  # killed before any acknowledgement
        with pytest.raises(geminga.Timeout):
            with_redrive(broker, Redrive.run)
    sent = len(values(broker, ORDERS))
    assert sent >= 7
    result = with_redrive(broker, Redrive.run)
    assert (result.found, result.sent.total()) == (sent, 10 - sent)
    assert sorted(values(broker, ORDERS)) == sorted(f"order {n}" for n in range(10))
    fill(broker, 1)  # the record of the interruption is gone: nothing is searched again
    assert (with_redrive(broker, Redrive.run)).found == 0


def test_the_schema_travels(broker):
    order = make_dataclass("Order", [("total", int)])
    schema = JsonSchema(order)
    with broker.client() as client:
        client.create_producer(DEAD, schema=schema).send(order(total=7))
        with_redrive(broker, Redrive.run, to="again")
        reader = client.create_reader("again", geminga.MessageId.earliest, schema=schema)
        assert reader.read_next(60_000).value().total == 7


def test_a_missing_dead_letter_topic_is_named_and_not_created(broker):
    for work in (Redrive.preview, Redrive.run):
        with pytest.raises(geminga.TopicNotFound, match=f"no dead-letter topic {DEAD}"):
            with_redrive(broker, work)
    with geminga.Admin(broker.admin_url) as admin:
        assert admin.topics.list("public/default") == []


def test_two_runs_at_once_are_refused(broker):
    fill(broker, 1)
    with broker.client() as client:
        client.subscribe(DEAD, module.SUBSCRIPTION)
        with pytest.raises(geminga.ConsumerBusy):
            with_redrive(broker, Redrive.run)


def test_the_command_asks_shows_and_sends(broker):
    fill(broker, 3)
    addresses = ["--url", broker.service_url, "--admin-url", broker.admin_url]
    arguments = ["subscriptions", "redrive", "orders", "bank", *addresses]
    looked = CliRunner().invoke(cli, [*arguments, "--dry-run"])
    assert looked.output == f"3 messages to send (3 to {ORDERS}) from {DEAD}\n"
    refused = CliRunner().invoke(cli, arguments, input="n\n")
    assert refused.exit_code == 1
    assert "Send?" in refused.output
    sent = CliRunner().invoke(cli, [*arguments, "--yes", "--json", "--property", "n=1", "--rate", "1000"])
    assert json.loads(sent.output) == {
        "dead_letters": DEAD,
        "sent": {ORDERS: 1},
        "sent_before": 0,
        "left": 2,
        "encrypted": 0,
    }
    assert values(broker, ORDERS) == ["order 1"]


async def fail_to_settle(consumer: Any, waiting: Any) -> None:
    await asyncio.gather(*(sending for _, sending in waiting))
    raise geminga.Timeout("killed")


def interrupt(broker: geminga.EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Send all dead letters, and stop before the first acknowledgement."""
    with monkeypatch.context() as broken:
        broken.setattr(module, "_settle", fail_to_settle)
        with pytest.raises(geminga.Timeout):
            with_redrive(broker, Redrive.run, **options)


@pytest.mark.parametrize("only", [RedriveFilter(key="key 1"), RedriveFilter(contains=b"none")])
def test_a_filter_after_an_interruption_leaves_nothing_to_be_sent_twice(broker, monkeypatch, only):
    fill(broker)
    interrupt(broker, monkeypatch)
    assert (with_redrive(broker, Redrive.run, only=only)).found == 10
    assert (with_redrive(broker, Redrive.run)).sent.total() == 0
    assert len(values(broker, ORDERS)) == 10


def test_another_target_after_interruptions_gets_no_message_again(broker, monkeypatch):
    fill(broker, 3)
    interrupt(broker, monkeypatch, to="other")
    fill(broker, 2)
    interrupt(broker, monkeypatch)
    result = with_redrive(broker, Redrive.run, to="third")
    assert (result.found, result.sent.total()) == (2, 0)  # the interrupted run found the others
    assert [len(values(broker, topic)) for topic in ("other", ORDERS)] == [3, 2]


def test_encrypted_dead_letters_stay_and_are_counted(broker):
    keys = geminga.CryptoKeyReader(str(KEYS / "k1_public.pem"), str(KEYS / "k1_private_pkcs1.pem"))
    fill(broker, 2)
    with (
        broker.client() as client,
        client.create_producer(DEAD, encryption_key="k", crypto_key_reader=keys) as producer,
    ):
        producer.send(b"secret")
    fill(broker, 2)
    for work in (Redrive.preview, Redrive.run):
        result = with_redrive(broker, work)
        assert (result.sent.total(), result.encrypted, result.left) == (4, 1, 0)
    assert (with_redrive(broker, Redrive.run)).encrypted == 1
    assert b"secret" not in [each.encode() for each in values(broker, ORDERS)]


def test_a_dead_letter_with_a_bad_origin_is_named_and_can_be_sent_elsewhere(broker):
    fill(broker, 1, "::bad//")
    with pytest.raises(geminga.InvalidTopicName, match=f"dead letter {DEAD}@.*REAL_TOPIC"):
        with_redrive(broker, Redrive.run)
    assert (with_redrive(broker, Redrive.run, to="elsewhere")).sent.total() == 1


def test_a_broker_that_forgets_acknowledgements_within_batches_gets_no_copy_twice(broker, monkeypatch):
    with (
        broker.client() as client,
        client.create_producer(DEAD, batching_enabled=True, batching_max_publish_delay_ms=1000) as producer,
    ):
        for number in range(4):
            producer.send_async(b"", None, properties={"REAL_TOPIC": ORDERS, "n": str(number)})
        producer.flush()
    subscribe = geminga.asyncio.Client.subscribe
    monkeypatch.setattr(
        geminga.asyncio.Client, "subscribe",
        lambda *given, **options: subscribe(*given, **{**options, "batch_index_ack_enabled": False}),
    )  # fmt: skip
    assert (with_redrive(broker, Redrive.run, only=RedriveFilter(properties={"n": "1"}))).sent.total() == 1
    result = with_redrive(broker, Redrive.run)
    assert (result.found, result.sent.total()) == (1, 3)
    assert len(values(broker, ORDERS)) == 4


def test_runs_of_one_object_look_for_copies_each(broker, monkeypatch):
    async def run_three_times(redrive: Redrive) -> Any:
        with monkeypatch.context() as broken:
            broken.setattr(module, "_settle", fail_to_settle)
            for n in (0, 1):
                await asyncio.to_thread(fill, broker, n + 1)
                with pytest.raises(geminga.Timeout):
                    await redrive.run()
        return await redrive.run()

    result = with_redrive(broker, run_three_times)
    assert (result.found, result.sent.total()) == (2, 0)
    assert len(values(broker, ORDERS)) == 3


def test_a_run_stops_when_its_record_is_deleted_and_the_next_sends_nothing_twice(broker, monkeypatch):
    fill(broker)
    with_redrive(broker, Redrive.run, only=RedriveFilter(count_max=2))  # complete: its start is not recorded
    publish, deleted = DeadLetterPublisher.publish, []

    async def delete_at_five(self: Any, plan: Any, message: Any, policy: Any) -> None:
        await publish(self, plan, message, policy)
        if message.properties()["n"] == "5" and not deleted:
            deleted.append(True)
            async with geminga.asyncio.Admin(broker.admin_url) as admin:
                await admin.subscriptions.delete(DEAD, module.SUBSCRIPTION, force=True)

    monkeypatch.setattr(DeadLetterPublisher, "publish", delete_at_five)
    monkeypatch.setattr(module, "IN_FLIGHT_MAX", 1)
    with pytest.raises(geminga.SubscriptionNotFound, match=r"was deleted during the redrive.*stopped after"):
        with_redrive(broker, Redrive.run)
    assert deleted
    with_redrive(broker, Redrive.run)
    assert sorted(values(broker, ORDERS)) == [f"order {n}" for n in range(10)]
    assert (with_redrive(broker, Redrive.run)).sent.total() == 0


def test_the_record_is_looked_at_once_for_all_messages_that_are_delivered_again():
    """A filter may have left any number of them."""
    ids = [geminga.MessageId(-1, 1, entry, -1) for entry in range(100)]

    class Reconnecting:
        delivered = iter([*ids[:99], *ids[:99], *ids[50:]])

        async def get_last_message_ids(self) -> list[geminga.MessageId]:
            return [ids[-1]]

        async def receive(self, _millis: int) -> Any:
            found = next(self.delivered)
            return SimpleNamespace(message_id=lambda: found)

    looked = []

    async def again() -> None:
        looked.append(True)

    async def read() -> list[geminga.MessageId]:
        return [each.message_id() async for each in module._until_now(Reconnecting(), again)]

    assert asyncio.run(read()) == ids
    assert len(looked) == 2
