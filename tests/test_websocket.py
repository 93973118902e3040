"""The WebSocket API on the broker's web port: conversations, permissions, bounds, and ends of either side."""

import asyncio
import base64
import contextlib
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import aiohttp
import pytest
from waiting import eventually_awaited

import geminga
import geminga.asyncio
from geminga.broker.rules.tokens import make_token
from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.broker.settings import BrokerSettings
from geminga.websocket import QUEUE_MAX, attach, slots_of
from tests.programs import websocket as program

SECRET = b"0123456789abcdef0123456789abcdef"
PRODUCER = "producer/persistent/public/default/t"
CONSUMER = "consumer/persistent/public/default/t/s"


@pytest.fixture
def broker():
    with start() as broker:
        yield broker


def start(**settings: Any) -> EmbeddedBroker:
    return EmbeddedBroker(BrokerSettings(memory=True, port=0, web_port=0, **settings), site=attach)


def with_session(
    broker: EmbeddedBroker, work: Callable[[aiohttp.ClientSession], Awaitable[Any]], **options: Any
) -> Any:
    async def run() -> Any:
        async with aiohttp.ClientSession(f"{broker.admin_url}/ws/v2/", **options) as session:
            return await work(session)

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_messages_go_both_ways(broker):
    first, pulled, statuses = program.run(broker.admin_url, "t")
    assert [each["result"] for each in first[:8]] == ["ok"] * 3 + ["send-error:7"] * 3 + ["send-error:3"] * 2
    assert [each["payload"] for each in first[8:11]] == ["aGVsbG8=", "", "aGk="]
    payloads = [base64.b64decode(each["payload"]) for each in pulled if each != "nothing more"]
    assert payloads == [b"0", b"1", b"2"]
    assert statuses == [400, 400, 400, 404]


@pytest.mark.parametrize("in_query", [False, True])
def test_roles_need_credentials_and_permissions(in_query):
    secret = "data:;base64," + base64.b64encode(SECRET).decode()
    with start(token_secret_key=secret, authorization=True, super_user_roles=("root",)) as broker:
        tokens = {role: make_token(role, SECRET, "HS256") for role in ("root", "sender", "reader")}
        with geminga.Admin(broker.admin_url, geminga.AuthenticationToken(tokens["root"])) as admin:
            admin.namespaces.grant("public/default", "sender", ["produce"])
            admin.namespaces.grant("public/default", "reader", ["consume"])

        def status(path: str, token: str) -> int:
            headers = None if in_query or not token else {"Authorization": f"Bearer {token}"}
            query = f"?token={token}" if in_query and token else ""
            return int(
                with_session(broker, lambda session: program.refusal(session, path + query), headers=headers)
            )

        for path, role, expected in (
            (PRODUCER, "sender", 101), (CONSUMER, "sender", 403),
            (PRODUCER, "reader", 403), (CONSUMER, "reader", 101), (PRODUCER, "", 401),
        ):  # fmt: skip
            assert status(path, tokens.get(role, "")) == expected, (path, role)
        assert status(PRODUCER, tokens["sender"][:-2] + "xx") == 401


def test_pages_of_other_sites_are_refused(broker):
    headers = {"Origin": "https://example.com"}
    assert with_session(broker, lambda each: program.refusal(each, PRODUCER), headers=headers) == 403


def test_a_consumer_has_no_more_unacknowledged_messages_than_its_queue(broker):
    async def talk(session: aiohttp.ClientSession) -> list[int]:
        async with (
            session.ws_connect(f"{CONSUMER}?receiverQueueSize=3") as consumer,
            session.ws_connect(PRODUCER) as producer,
        ):
            for _ in range(10):
                await producer.send_json({"payload": ""})
                await producer.receive_json(timeout=60)
            counts = []
            for _ in range(2):
                ids = []
                while True:
                    try:
                        ids.append((await consumer.receive_json(timeout=0.5))["messageId"])
                    except TimeoutError:
                        break
                counts.append(len(ids))
                for each in ids:
                    await consumer.send_json({"messageId": each})
            return counts

    assert with_session(broker, talk) == [3, 3]


@pytest.mark.parametrize(
    "text",
    [
        "{bad",
        "[]",
        "{}",
        '{"messageId": "%%"}',
        '{"messageId": 5}',
        '{"type": "permit", "permitMessages": "x"}',
    ],
)
def test_a_bad_command_closes_the_socket_with_a_reason(broker, text):
    async def talk(session: aiohttp.ClientSession) -> Any:
        async with session.ws_connect(CONSUMER) as consumer:
            await consumer.send_str(text)
            return await consumer.receive(timeout=60)

    closed = with_session(broker, talk)
    assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 4001)
    assert closed.extra


def test_what_a_peer_opened_is_closed_when_it_leaves(broker):
    async def talk(session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(CONSUMER), session.ws_connect(PRODUCER):
            pass
        async with geminga.asyncio.Admin(broker.admin_url) as admin:
            await eventually_awaited(lambda: has_ended(admin))

    async def has_ended(admin: geminga.asyncio.Admin) -> bool:
        stats = await admin.topics.stats("t")
        return not stats.publishers and not stats.subscriptions["s"].consumers

    with_session(broker, talk)


def test_unsubscribing_deletes_the_subscription(broker):
    async def talk(session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(CONSUMER) as consumer, geminga.asyncio.Admin(broker.admin_url) as admin:
            await consumer.send_json({"type": "unsubscribe"})
            await eventually_awaited(lambda: has_none(admin))

    async def has_none(admin: geminga.asyncio.Admin) -> bool:
        return not await admin.subscriptions.list("t")

    with_session(broker, talk)


def test_a_broker_that_stops_closes_its_sockets(broker):
    async def talk(session: aiohttp.ClientSession) -> Any:
        async with session.ws_connect(CONSUMER) as consumer:
            await asyncio.to_thread(broker.close)
            return (await consumer.receive(timeout=60)).type

    assert with_session(broker, talk) in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)


def test_a_producer_that_does_not_read_its_receipts_is_not_read(broker):
    async def talk(session: aiohttp.ClientSession) -> int:
        async with session.ws_connect(PRODUCER) as producer:
            message = {"payload": "", "context": "x" * 100_000}
            count = 0
            with contextlib.suppress(TimeoutError):
                while count < 1000:  # 100 MB
                    await asyncio.wait_for(producer.send_json(message), 2)
                    count += 1
            producer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            return count

    assert with_session(broker, talk) < 1000


def test_a_peer_that_breaks_its_connection_is_no_error_of_the_broker(broker, caplog):
    test_a_producer_that_does_not_read_its_receipts_is_not_read(broker)
    broker.close()
    assert not [each for each in caplog.records if each.exc_info]


def test_large_messages_take_several_places_of_the_queue():
    assert [slots_of("x" * size) for size in (0, 1000, 1 << 20, 1 << 30)] == [1, 1, 126, QUEUE_MAX]


@pytest.mark.parametrize(
    "field",
    [
        {"deliverAfterMs": 10**30},
        {"deliverAt": float("inf")},
        {"eventTime": "0001-01-01"},
        {"eventTime": 5},
        {"properties": 5},
    ],
)
def test_a_bad_field_is_named_and_the_socket_stays_open(broker, field):
    async def talk(session: aiohttp.ClientSession) -> list[Any]:
        async with session.ws_connect(PRODUCER) as producer:
            answers = []
            for message in ({"payload": "", **field}, {"payload": ""}):
                await producer.send_json(message)
                answers.append(await producer.receive_json(timeout=60))
            return answers

    refused, stored = with_session(broker, talk)
    assert refused["result"] == "send-error:7"
    assert refused["errorMsg"].startswith(next(iter(field)))
    assert stored["result"] == "ok"


def test_an_event_time_beyond_the_year_9999_is_delivered(broker):
    with broker.client() as client, client.create_producer("t") as producer:
        producer.send(b"", event_timestamp=2**62)
        producer.send(None)

    async def talk(session: aiohttp.ClientSession) -> list[Any]:
        async with session.ws_connect("reader/persistent/public/default/t?messageId=earliest") as reader:
            return [await reader.receive_json(timeout=60) for _ in range(2)]

    late, null = with_session(broker, talk)
    assert late["eventTime"] == "+146140482-04-24T15:36:27.904Z"
    assert null["payload"] == ""


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_request_that_opens_no_websocket_creates_no_topic(broker, method):
    async def talk(session: aiohttp.ClientSession) -> tuple[list[int], list[str]]:
        statuses = []
        for path in (PRODUCER, CONSUMER):
            async with session.request(method, path) as response:
                statuses.append(response.status)
        async with geminga.asyncio.Admin(broker.admin_url) as admin:
            return statuses, await admin.topics.list("public/default")

    assert with_session(broker, talk) == ([400, 400], [])


def test_basic_credentials_open_a_websocket(tmp_path):
    passwords = tmp_path / "passwords"
    passwords.write_text("anna:$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/\n")  # openssl passwd -apr1: "secret"
    headers = {"Authorization": "Basic " + base64.b64encode(b"anna:secret").decode()}
    with start(basic_auth=str(passwords), super_user_roles=("anna",)) as broker:
        for path in (PRODUCER, CONSUMER):
            assert with_session(broker, partial(program.refusal, path=path), headers=headers) == 101
