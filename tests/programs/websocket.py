"""Conversations over the WebSocket API, the same on both brokers; ids, times and texts of errors left out."""

import asyncio
import base64
from typing import Any

import aiohttp

RECEIVE_SECONDS = 20.0
Transcript = list[Any]
MESSAGES: tuple[Any, ...] = (
    {"payload": "aGVsbG8=", "properties": {"a": "b"}, "context": "1", "key": "k"},
    {"payload": "", "properties": {"n": 5}},
    {"payload": "aGk=", "eventTime": "2026-11-28T20:15:38.106Z", "context": "2"},
    {"payload": "%%", "context": "3"},
    {"context": "4"},
    {"payload": "aGk=", "eventTime": "nope", "context": "5"},
    ["no object"],
)
REFUSED = (
    "consumer/persistent/public/default/t/s?subscriptionType=Nope",
    "producer/persistent/public/default/t?compressionType=nope",
    "producer/persistent/public/default/t?messageRoutingMode=nope",
    "producer/persistent/public/missing/t",
)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def conversations(admin_url: str, topic: str) -> Transcript:
    """Run all conversations on new topics named after ``topic``."""
    async with aiohttp.ClientSession(f"{admin_url}/ws/v2/") as session:
        path = f"persistent/public/default/{topic}"
        return [
            await publish_and_receive(session, path),
            await pull(session, f"{path}-pull"),
            [await refusal(session, each) for each in REFUSED],
        ]


async def publish_and_receive(session: aiohttp.ClientSession, path: str) -> Transcript:
    found: Transcript = []
    async with (
        session.ws_connect(f"consumer/{path}/s?subscriptionType=Shared&receiverQueueSize=2") as consumer,
        session.ws_connect(f"producer/{path}") as producer,
    ):
        for message in MESSAGES:
            await producer.send_json(message)
            found.append(plain(await producer.receive_json(timeout=RECEIVE_SECONDS)))
        await producer.send_str("{bad")
        found.append(plain(await producer.receive_json(timeout=RECEIVE_SECONDS)))
        for number in range(3):
            message = await consumer.receive_json(timeout=RECEIVE_SECONDS)
            found.append(plain(message))
            kind = {"type": "negativeAcknowledge"} if number == 2 else {}
            await consumer.send_json({**kind, "messageId": message["messageId"]})
        await consumer.send_json({"type": "isEndOfTopic"})
        found.append(await consumer.receive_json(timeout=RECEIVE_SECONDS))
    async with session.ws_connect(f"reader/{path}?messageId=earliest") as reader:
        found += [plain(await reader.receive_json(timeout=RECEIVE_SECONDS)) for _ in range(3)]
        message_id = message["messageId"]
    async with session.ws_connect(f"reader/{path}", params={"messageId": message_id}) as reader:
        await reader.send_json({"type": "isEndOfTopic"})
        found.append(await reader.receive_json(timeout=RECEIVE_SECONDS))
    return found


async def pull(session: aiohttp.ClientSession, path: str) -> Transcript:
    """A consumer in pull mode gets what it asks for."""
    found: Transcript = []
    async with (
        session.ws_connect(f"consumer/{path}/s?pullMode=true") as consumer,
        session.ws_connect(f"producer/{path}?batchingEnabled=true&compressionType=LZ4") as producer,
    ):
        for number in range(3):
            await producer.send_json({"payload": encoded(str(number))})
            await producer.receive_json(timeout=RECEIVE_SECONDS)
        for permits in (2, 1):
            await consumer.send_json({"type": "permit", "permitMessages": permits})
            for _ in range(permits):
                found.append(plain(await consumer.receive_json(timeout=RECEIVE_SECONDS)))
            try:
                found.append(await consumer.receive_json(timeout=0.3))
            except TimeoutError:
                found.append("nothing more")
    return found


async def refusal(session: aiohttp.ClientSession, path: str) -> int:
    try:
        async with session.ws_connect(path):
            return 101
    except aiohttp.WSServerHandshakeError as error:
        return error.status


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without what differs from run to run; each such field only by its name."""
    changing = {"messageId", "publishTime", "errorMsg"}
    return {name: "..." if name in changing else value for name, value in message.items()}


def run(admin_url: str, topic: str) -> Transcript:
    return asyncio.run(conversations(admin_url, topic))
