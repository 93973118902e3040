"""Apache Pulsar's WebSocket API on the web port: producers, consumers and readers without a client library.

    ws://HOST:8080/ws/v2/producer/persistent/TENANT/NAMESPACE/TOPIC
    ws://HOST:8080/ws/v2/consumer/persistent/TENANT/NAMESPACE/TOPIC/SUBSCRIPTION
    ws://HOST:8080/ws/v2/reader/persistent/TENANT/NAMESPACE/TOPIC

Paths, query parameters and JSON are those of Apache Pulsar. Payloads and message ids are base64. Each
WebSocket has a client of its own, which connects to the broker with the peer's credentials: permissions,
quotas and limits are those of any client. For a peer that does not read, the broker holds `PENDING_BYTES_MAX`
of a producer's messages, or `PREFETCH_MAX` messages of a consumer or reader, besides the socket's buffers.
"""

import asyncio
import base64
import contextlib
import datetime as dt
import json
import logging
import reprlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from aiohttp import WSCloseCode, WSMsgType, web

import geminga
import geminga.asyncio
from geminga import errors
from geminga.broker.admin.auth import Key, RequiredPermission
from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.http import SERVER, topic_of
from geminga.ids import MessageId

log = logging.getLogger("geminga.broker")
T = TypeVar("T")

_TOPIC = "/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"
_ROUTES: Final = {
    f"/ws/v2/producer{_TOPIC}": RequiredPermission.PRODUCE,
    f"/ws/v2/consumer{_TOPIC}/{{subscription}}": RequiredPermission.CONSUME,
    f"/ws/v2/reader{_TOPIC}": RequiredPermission.CONSUME,
}
QUEUE_MAX: Final = 1000
"""Maximum messages sent to a peer and not acknowledged by it, and messages of a peer without a receipt."""
PENDING_BYTES_MAX: Final = 8 << 20
"""Maximum bytes of JSON of a peer's messages without a receipt."""
PREFETCH_MAX: Final = 50
"""Maximum messages that the client of a consumer or reader receives from the broker in advance."""
PING_SECONDS: Final = 30.0
"""Interval of pings; a peer that does not answer one is disconnected."""
REASON_BYTES_MAX: Final = 123
"""Longest reason of a closed WebSocket, by RFC 6455."""
_STATUS: Final[tuple[tuple[type[errors.PulsarException], int], ...]] = (
    (errors.InvalidConfiguration, 400),
    (errors.AuthenticationError, 401),
    (errors.AuthorizationError, 403),
    (errors.TopicNotFound, 404),
    (errors.ProducerBusy, 409),
    (errors.ConsumerBusy, 409),
    (errors.ProducerFenced, 409),
    (errors.IncompatibleSchema, 409),
    (errors.ProducerBlockedQuotaExceededError, 503),
    (errors.TopicTerminated, 503),
    (errors.Timeout, 504),
)
BAD_JSON, BAD_FIELD, FAILED = 3, 7, 8
"""Numbers of Apache Pulsar's errors for a message that is no JSON, has a bad field, or was not stored."""


def attach(application: web.Application) -> Mapping[Key, RequiredPermission]:
    """Add the API to the broker's web application; return the permission that each route requires."""
    permissions = {}
    for (path, needs), handler in zip(_ROUTES.items(), (_produce, _consume, _read), strict=True):
        resource = application.router.add_get(path, handler).resource
        assert resource is not None
        permissions["GET", resource.canonical] = needs
    return permissions


# --- the three kinds --------------------------------------------------------------------------------------


async def _produce(request: web.Request) -> web.StreamResponse:
    """Publish each message that the peer sends; answer with its id, or the error."""
    options = _options(request, _PRODUCER)
    async with _client(request) as client:
        producer = await _opened(client.create_producer(str(topic_of(request)), **{**_UNBATCHED, **options}))
        room = asyncio.Semaphore(QUEUE_MAX)
        async with _accepted(request) as socket, asyncio.TaskGroup() as sending:

            async def send(arguments: Mapping[str, Any], context: object, slots: int) -> None:
                try:
                    message_id = await producer.send(**arguments)
                    found = _answer("ok", context, messageId=_text_of(message_id.serialize()))
                except errors.PulsarException as error:
                    found = _refused(FAILED, str(error), context)
                await _tell(socket, found)
                # Not before: a peer that does not read its receipts is not read either.
                for _ in range(slots):
                    room.release()

            async for text in _texts(socket):
                try:
                    message = json.loads(text)
                    context = message.get("context")
                except (ValueError, AttributeError, RecursionError) as error:
                    await _tell(socket, _refused(BAD_JSON, f"no JSON object: {error}", None))
                    continue
                try:
                    arguments = _arguments(message)
                except ValueError as error:
                    await _tell(socket, _refused(BAD_FIELD, str(error), context))
                    continue
                slots = slots_of(text)
                for _ in range(slots):  # a peer that sends faster than the disk takes is not read meanwhile
                    await room.acquire()
                sending.create_task(send(arguments, context, slots))
    return socket


async def _consume(request: web.Request) -> web.StreamResponse:
    """Send each message of the subscription; the peer acknowledges by its id."""
    query = request.query
    options = _options(request, _CONSUMER)
    dead_letters, most = query.get("deadLetterTopic"), query.get("maxRedeliverCount")
    if dead_letters or most:
        options["dead_letter_policy"] = geminga.ConsumerDeadLetterPolicy(
            _number("maxRedeliverCount", most or "16"), dead_letters
        )
    queue = _bound_prefetch(options)
    is_pulled = _flag("pullMode", query.get("pullMode", "false"))
    permits = asyncio.Semaphore(0 if is_pulled else queue)
    async with _client(request) as client:
        consumer = await _opened(
            client.subscribe(str(topic_of(request)), request.match_info["subscription"], **options)
        )
        async with _accepted(request) as socket, _delivering(consumer.receive, permits, socket) as delivering:
            async for text in _texts(socket):
                command = _command(text)
                kind = command.get("type")
                if kind == "permit":
                    for _ in range(_permits(command)):
                        permits.release()
                elif kind == "unsubscribe":
                    delivering.cancel()
                    await consumer.unsubscribe()
                elif kind == "isEndOfTopic":
                    await _tell(socket, {"endOfTopic": consumer.has_reached_end_of_topic()})
                else:
                    message_id = _message_id(command)
                    if kind == "negativeAcknowledge":
                        await consumer.negative_acknowledge(message_id)
                    else:
                        await consumer.acknowledge(message_id)
                    if not is_pulled:
                        permits.release()
    return socket


async def _read(request: web.Request) -> web.StreamResponse:
    """Send each message from a position on; an answer of the peer asks for one more than its queue holds."""
    start = request.query.get("messageId") or "latest"
    position = {"earliest": MessageId.earliest, "latest": MessageId.latest}.get(start)
    if position is None:
        try:
            position = _message_id({"messageId": start})
        except _BadCommandError as error:
            raise AdminRefusal(400, f"Invalid query params: {error}") from None
    options = _options(request, _READER)
    permits = asyncio.Semaphore(_bound_prefetch(options))
    async with _client(request) as client:
        reader = await _opened(client.create_reader(str(topic_of(request)), position, **options))
        async with _accepted(request) as socket, _delivering(reader.read_next, permits, socket):
            async for text in _texts(socket):
                if _command(text).get("type") == "isEndOfTopic":
                    await _tell(socket, {"endOfTopic": reader.consumer.has_reached_end_of_topic()})
                else:
                    permits.release()
    return socket


# --- the socket -------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _client(request: web.Request) -> AsyncIterator[geminga.asyncio.Client]:
    """Connect to the broker with the peer's credentials. Raises `AdminRefusal` 400 if the request opens no
    WebSocket: pages of other sites can send such requests, which must not create topics."""
    if not web.WebSocketResponse().can_prepare(request):
        raise AdminRefusal(400, "this address answers WebSockets only: the request has no Upgrade: websocket")
    addresses = request.app[SERVER].settings.own_addresses()
    async with geminga.asyncio.Client(
        addresses.pulsar or addresses.pulsar_tls or "",
        authentication=_credentials(request),
        tls_allow_insecure_connection=True,  # this process itself
        tls_validate_hostname=False,
        operation_timeout_seconds=10,
    ) as client:
        yield client


def _credentials(request: web.Request) -> geminga.Authentication | None:
    """Return the credentials that the request was admitted with; None if it has none."""
    scheme, _, given = request.headers.get("Authorization", "").strip().partition(" ")
    if scheme.lower() == "basic":
        user, _, password = base64.b64decode(given.strip()).decode().partition(":")
        return geminga.AuthenticationBasic(user, password)
    token = given.strip() or request.query.get("token")
    return geminga.AuthenticationToken(token) if token else None


async def _opened(opening: Awaitable[T]) -> T:
    """Return what was opened. Raises `AdminRefusal` with Apache Pulsar's status."""
    try:
        return await opening
    except errors.PulsarException as error:
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
        raise AdminRefusal(status, f"{error}") from None


@contextlib.asynccontextmanager
async def _accepted(request: web.Request) -> AsyncIterator[web.WebSocketResponse]:
    """Accept the WebSocket. An error closes it: an answer of HTTP would no longer be understood."""
    largest = request.app[SERVER].settings.max_message_size
    socket = web.WebSocketResponse(heartbeat=PING_SECONDS, max_msg_size=largest * 4 // 3 + 65_536)
    await socket.prepare(request)
    try:
        yield socket
    except _BadCommandError as error:
        await _close(socket, 4001, error)
    except errors.PulsarException as error:
        await _close(socket, WSCloseCode.INTERNAL_ERROR, error)
    except Exception as error:
        log.exception("%s failed", request.path)
        await _close(socket, WSCloseCode.INTERNAL_ERROR, error)


async def _close(socket: web.WebSocketResponse, code: int, reason: object) -> None:
    await socket.close(code=code, message=str(reason).encode()[:REASON_BYTES_MAX])


async def _texts(socket: web.WebSocketResponse) -> AsyncIterator[str]:
    """Yield the peer's texts until it leaves."""
    async for frame in socket:
        if frame.type is WSMsgType.TEXT:
            yield frame.data


async def _tell(socket: web.WebSocketResponse, message: Mapping[str, Any]) -> None:
    with contextlib.suppress(ConnectionError):  # the peer has left, which ends the reading
        await socket.send_str(json.dumps(message))


@contextlib.asynccontextmanager
async def _delivering(
    receive: Callable[[], Awaitable[Any]], permits: asyncio.Semaphore, socket: web.WebSocketResponse
) -> AsyncIterator[asyncio.Task[None]]:
    """Send a message for each permit, while the peer's commands are read; an error closes the socket."""

    async def run() -> None:
        try:
            while True:
                await permits.acquire()
                await _tell(socket, _described(await receive()))
        except errors.PulsarException as error:
            await _close(socket, WSCloseCode.INTERNAL_ERROR, error)
        except Exception as error:
            log.exception("delivery to a WebSocket failed")
            await _close(socket, WSCloseCode.INTERNAL_ERROR, error)

    task = asyncio.create_task(run())
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


# --- JSON -------------------------------------------------------------------------------------------------


class _BadCommandError(ValueError):
    """A peer's text that is not a command of a consumer or reader."""


def _command(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _BadCommandError(f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise _BadCommandError("a command is a JSON object")
    return found


def _permits(command: Mapping[str, Any]) -> int:
    count = command.get("permitMessages")
    if not isinstance(count, int) or count < 0:
        raise _BadCommandError(f"permitMessages={count!r} is not a whole number")
    return min(count, QUEUE_MAX)


def _message_id(command: Mapping[str, Any]) -> MessageId:
    try:
        return MessageId.deserialize(base64.b64decode(command["messageId"], validate=True))
    except (KeyError, TypeError, ValueError, errors.PulsarException) as error:
        raise _BadCommandError(f"messageId is no id of a message: {error!r}") from None


def _arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `send` for a message. Raises `ValueError` naming a field."""
    payload = message.get("payload")
    if not isinstance(payload, str):
        raise ValueError("payload is missing: give base64")
    found: dict[str, Any] = {"content": base64.b64decode(payload, validate=True)}
    for name, (argument, parse) in _FIELDS.items():
        value = message.get(name)
        if value or (name == "key" and value is not None):
            try:
                found[argument] = parse(value)
            except (ValueError, TypeError, OverflowError) as error:
                raise ValueError(f"{name}={reprlib.repr(value)}: {error}") from None
    return found


def _property_texts(properties: Any) -> dict[str, str]:
    """Return the properties with text values; other values become JSON text, as in Apache Pulsar."""
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in dict(properties).items()
    }


def _described(message: Any) -> dict[str, Any]:
    found = {
        "messageId": _text_of(message.message_id().serialize()),
        "payload": _text_of(message.data()),
        "properties": message.properties(),
        "publishTime": _time_text(message.publish_timestamp()),
        "redeliveryCount": message.redelivery_count(),
    }
    if message.event_timestamp():
        found["eventTime"] = _time_text(message.event_timestamp())
    if message.has_partition_key():
        found["key"] = message.partition_key()
    return found


def _refused(number: int, reason: str, context: object) -> dict[str, Any]:
    return _answer(f"send-error:{number}", context, errorMsg=reason)


def _answer(result: str, context: object, **fields: object) -> dict[str, Any]:
    with_context = {} if context is None else {"context": context}
    return {"result": result, **fields, **with_context, "errorCode": 0, "schemaVersion": 0}


def _text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _time_text(milliseconds: int) -> str:
    # Event times may be beyond the year 9999, datetime's last: the calendar repeats every 400 years.
    repeats, seconds = divmod(milliseconds // 1000, _SECONDS_OF_400_YEARS)
    moment = dt.datetime.fromtimestamp(seconds, dt.UTC)
    year = moment.year + 400 * repeats
    return f"{'+' if year > 9999 else ''}{year}-{moment:%m-%dT%H:%M:%S}.{milliseconds % 1000:03}Z"


_SECONDS_OF_400_YEARS: Final = 146_097 * 86_400


def _milliseconds(text: str) -> int:
    moment = dt.datetime.fromisoformat(text)
    return round(moment.timestamp() * 1000)


_FIELDS: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "properties": ("properties", _property_texts),
    "key": ("partition_key", lambda key: key),
    "replicationClusters": ("replication_clusters", list),
    "eventTime": ("event_timestamp", _milliseconds),
    "deliverAt": ("deliver_at", int),
    "deliverAfterMs": ("deliver_after", lambda value: dt.timedelta(milliseconds=int(value))),
}
"""Fields of a producer's message besides the payload: arguments of `send`, and their parsers."""


# --- query parameters -------------------------------------------------------------------------------------


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise AdminRefusal(400, f"Invalid query params: {name}={text!r} is not a whole number")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise AdminRefusal(400, f"Invalid query params: {name}={text!r} is not true or false")
    return text.lower() == "true"


def _queue(name: str, text: str) -> int:
    return min(_number(name, text), QUEUE_MAX)


def _text(_name: str, text: str) -> str:
    return text


def _choice(members: Mapping[str, T]) -> Callable[[str, str], T]:
    def parse(name: str, text: str) -> T:
        if text not in members:
            allowed = ", ".join(members)
            raise AdminRefusal(400, f"Invalid query params: {name}={text!r}; allowed: {allowed}")
        return members[text]

    return parse


_Parameters = Mapping[str, tuple[str, Callable[[str, str], Any]]]
_UNBATCHED: Final = {
    "batching_enabled": False,
    "message_routing_mode": geminga.PartitionsRoutingMode.UseSinglePartition,
}
_ROUTING: Final = {
    "SinglePartition": geminga.PartitionsRoutingMode.UseSinglePartition,
    "RoundRobinPartition": geminga.PartitionsRoutingMode.RoundRobinDistribution,
}
_COMPRESSIONS: Final = {each.name.upper(): each for each in geminga.CompressionType}
_HASHINGS: Final = {name: geminga.HashingScheme[name] for name in ("JavaStringHash", "Murmur3_32Hash")}
_TYPES: Final = {each.name.replace("KeyShared", "Key_Shared"): each for each in geminga.ConsumerType}
_POSITIONS: Final = {each.name: each for each in geminga.InitialPosition}
_PRODUCER: Final[_Parameters] = {
    "producerName": ("producer_name", _text),
    "initialSequenceId": ("initial_sequence_id", _number),
    "sendTimeoutMillis": ("send_timeout_millis", _number),
    "batchingEnabled": ("batching_enabled", _flag),
    "batchingMaxMessages": ("batching_max_messages", _number),
    "batchingMaxPublishDelay": ("batching_max_publish_delay_ms", _number),
    "maxPendingMessages": ("max_pending_messages", _number),
    "messageRoutingMode": ("message_routing_mode", _choice(_ROUTING)),
    "compressionType": ("compression_type", _choice(_COMPRESSIONS)),
    "hashingScheme": ("hashing_scheme", _choice(_HASHINGS)),
}
_CONSUMER: Final[_Parameters] = {
    "ackTimeoutMillis": ("unacked_messages_timeout_ms", _number),
    "subscriptionType": ("consumer_type", _choice(_TYPES)),
    "subscriptionInitialPosition": ("initial_position", _choice(_POSITIONS)),
    "receiverQueueSize": ("receiver_queue_size", _queue),
    "consumerName": ("consumer_name", _text),
    "priorityLevel": ("priority_level", _number),
    "negativeAckRedeliveryDelay": ("negative_ack_redelivery_delay_ms", _number),
}
_READER: Final[_Parameters] = {
    "readerName": ("reader_name", _text),
    "receiverQueueSize": ("receiver_queue_size", _queue),
}


def slots_of(text: str) -> int:
    """Return how many of a producer's `QUEUE_MAX` slots a message takes."""
    return min(1 + len(text) * QUEUE_MAX // PENDING_BYTES_MAX, QUEUE_MAX)


def _bound_prefetch(options: dict[str, Any]) -> int:
    """Return the peer's queue size; bound the client's, whose messages are in the broker's memory."""
    queue = options.get("receiver_queue_size", QUEUE_MAX) or 1
    options["receiver_queue_size"] = min(queue, PREFETCH_MAX)
    return int(queue)


def _options(request: web.Request, known: _Parameters) -> dict[str, Any]:
    """Return the arguments that the query gives; unknown names are ignored. Raises `AdminRefusal` 400."""
    given = request.query
    return {argument: parse(name, given[name]) for name, (argument, parse) in known.items() if name in given}
