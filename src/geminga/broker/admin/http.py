"""Base of the resources: names from paths, bodies, answers, errors, and waiting for the disk."""

import asyncio
import contextlib
import inspect
import json
import logging
import math
import socket
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from functools import partial, wraps
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from geminga.broker.admin.auth import AuthorizationMiddleware, Key, RequiredPermission
from geminga.broker.admin.errors import AdminRefusal, admin_error
from geminga.broker.admin.in_flight_requests import InFlightRequests
from geminga.broker.admin.origins import WebHosts
from geminga.broker.admin.redacted_log import peer_text
from geminga.broker.admin.routes import Handler, Route, declared
from geminga.broker.admin.topic_actions import TopicActions
from geminga.broker.core import Broker
from geminga.broker.delivery.subscription import COMPACTION
from geminga.broker.rules.policies import RuleViolation
from geminga.broker.runtime.cooperative import STEP_SECONDS, Steps
from geminga.broker.runtime.rate_limited_logger import AuditedRequest
from geminga.broker.runtime.refusal import Refused
from geminga.broker.settings import BrokerSettings
from geminga.broker.topics import prefetch
from geminga.broker.topics.topic_names import TopicNames
from geminga.broker.topics.topic_registry import TOPIC_NAME_MAX
from geminga.errors import InvalidConfiguration, InvalidTopicName, LedgerNotFound, StoreBusy, StoreError
from geminga.ids import MessageId, TopicName
from geminga.ledger.api import Done, EntryStore

log = logging.getLogger(__name__)

T = TypeVar("T")
Answer = TypeVar("Answer", bound=web.StreamResponse)
DONE_SECONDS_MAX = 60.0
"""Longest wait of a request for the store before it answers 504 (the change may still be made)."""
LOOKING_SECONDS_MAX = 25.0
"""Longest time that a call is retried while the entries it needs are being read, in seconds."""
_LOOK_AGAIN_SECONDS = 0.05
_BEHIND_SECONDS = 0.05
"""Interval of checks whether the store is still behind."""
_PIECE_BYTES = 64 * 1024
"""Longer answers are sent in pieces while they are made."""
_MEMBERS_MAX = 100
_AT_A_TIME = 256
"""Topics or subscriptions that one request changes concurrently, sharing syncs."""
_steps_end: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()
"""End of the last step that is planned for a long answer, by event loop."""
SERVER: web.AppKey[Any] = web.AppKey("server", object)
DOORKEEPER: web.AppKey[AuthorizationMiddleware] = web.AppKey("doorkeeper", AuthorizationMiddleware)
WEB_HOSTS: web.AppKey[WebHosts] = web.AppKey("web_hosts", WebHosts)

_NO_BODY = object()
BODY_BYTES_MAX = 1024 * 1024
"""Largest body of a request: it is parsed in one piece, while other requests wait."""
LONG_BODY_BYTES_MAX = 5 * 1024 * 1024
"""Largest body of a request with a schema."""
BODY_SECONDS = 60.0
"""Longest time to receive a body; a slow sender occupies a connection."""
_REASON_MAX = 2_000
"""Longest reason of a refusal in characters; it may quote the request."""
Site = Callable[[web.Application], Mapping[Key, RequiredPermission]]
"""Adds pages to the web port and returns the permissions of their routes."""


class TlsPortInfo(Protocol):
    """A port that speaks TLS; ``len`` is the number of handshakes in progress."""

    def __len__(self) -> int: ...

    def close(self) -> None: ...


class TlsInfo(Protocol):
    """Certificates of the ports that speak TLS."""

    @property
    def expires_at(self) -> float:
        """Return when the certificate expires, in seconds since 1970."""


class Server(Protocol):
    """Interface that the resources need of their server."""

    settings: BrokerSettings
    broker: Broker
    store: EntryStore
    connections_created: int
    connections_refused: int
    started_at_ms: int
    unanswered: InFlightRequests

    def tls_port(
        self, listener: socket.socket, make: Callable[[], asyncio.Protocol], admits: Callable[[Any], bool]
    ) -> TlsPortInfo:
        """Speak TLS on a listening socket; ``admits(address)`` returns whether to accept a connection."""

    @property
    def tls(self) -> TlsInfo | None:
        """Return the certificates in use; None without TLS."""

    @property
    def connections(self) -> Collection[object]:
        """Return the peers of the binary protocol."""

    def call(self, function: Callable[[], T]) -> T:
        """Run an administrative call on the core."""


class Resource:
    """Base of the resources: each declares its routes and works on one server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.topics = server.broker.topics
        self.namespaces = server.broker.namespaces
        self.actions = TopicActions(server.broker)

    def routes(self) -> Iterator[Route]:
        """Yield the routes of the resource."""
        return (each._replace(handler=answering(each.handler)) for each in declared(self))

    async def durable(self, call: Callable[[Callable[[Exception | None], None]], Any]) -> Any:
        """Run ``call(done)`` on the core and wait until its change is durable.

        While the store is behind, the call is delayed; 503 after a timeout.
        """
        deadline = time.monotonic() + DONE_SECONDS_MAX
        while self.server.store.is_behind:
            if time.monotonic() >= deadline:
                raise AdminRefusal(503, "the store cannot save as fast as it is changed: try again later")
            self.server.unanswered.check()
            await asyncio.sleep(_BEHIND_SECONDS)
        finished, done = _completion()
        result = await self.looking(lambda: call(done))
        await finish(
            self.server, finished, 504, "the store did not confirm the change in time; it may still be made"
        )
        return result

    async def in_force(self, call: Callable[[Callable[[Exception | None], None]], Any]) -> None:
        """Like `durable` for a change of policies; afterwards the topics in memory use them."""
        await self.durable(call)
        await when_done(self.server, self.topics.policy_updates.when_applied)

    async def change_each(
        self, subscriptions: Iterable[tuple[TopicName, str]], change: Callable[[TopicName, str, Done], None]
    ) -> None:
        """Make a change of many subscriptions durable, except of compaction's and of those that were
        deleted meanwhile."""

        async def one(subscription: tuple[TopicName, str]) -> None:
            with passing_over_missing():
                await self.durable(partial(change, *subscription))

        found = (each for each in subscriptions if each[1] != COMPACTION)
        await for_each(stepwise(found), one)

    async def walk_names(self, *walks: TopicNames) -> AsyncIterator[str]:
        """Yield the names of ``walks`` in turn; others are served in between. 503 if the disk hangs."""
        for walk in walks:
            while not walk.is_over:
                await when_done(self.server, partial(self.topics.bring, walk.wanted))
                async for name in stepwise(self.now(walk.page)):
                    yield name

    async def resting_read(self, seconds_max: float) -> None:
        """Have the figures of topics that are not in memory read; wait at most ``seconds_max`` for them."""
        done = asyncio.Event()
        self.server.call(lambda: self.topics.resting.begin(done.set))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), seconds_max)

    async def looking(self, call: Callable[[], T]) -> T:
        """Run ``call()`` on the core and retry it while entries that it needs are being read.

        The entries already seen are cached, so that a search resumes at its last position.
        """
        deadline = time.monotonic() + LOOKING_SECONDS_MAX
        while True:
            try:
                return self.server.call(call)
            except StoreBusy:
                if time.monotonic() >= deadline:
                    raise
            self.server.unanswered.check()
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    def now(self, call: Callable[[], Any]) -> Any:
        """Run ``call()`` on the core, for changes that need no wait."""
        return self.server.call(call)

    async def in_steps(self, steps: Steps[T]) -> T:
        """Run ``steps`` on the core with pauses, as `stepwise` does, and return their result."""

        def run() -> list[T]:
            began = time.monotonic()
            while time.monotonic() - began < STEP_SECONDS:
                try:
                    next(steps)
                except StopIteration as end:
                    return [end.value]
            return []

        while not (result := self.server.call(run)):
            await _pause()
        return result[0]


def answering(handler: Callable[..., Awaitable[object]]) -> Handler:
    """Return a handler as aiohttp calls it. ``handler`` takes the request, if it has that parameter, and the
    parts of the path that it names, ``int`` as whole numbers. It returns a response, a document to be sent
    as JSON, or None for 204."""
    parameters = inspect.signature(handler).parameters.values()

    @wraps(handler)
    async def answered(request: web.Request) -> web.StreamResponse:
        given: dict[str, Any] = {"request": request, **request.match_info}
        for each in parameters:
            if each.annotation in (int, "int"):
                given[each.name] = whole_number(given[each.name], each.name)
        found = await handler(**{each.name: given[each.name] for each in parameters if each.name in given})
        if isinstance(found, web.StreamResponse):
            return found
        return done_answer() if found is None else answer(found)

    return answered


@contextlib.contextmanager
def passing_over_missing() -> Iterator[None]:
    """Suppress the 404 of a topic or subscription that was deleted meanwhile."""
    try:
        yield
    except AdminRefusal as error:
        if error.status != 404:
            raise


async def for_each(items: AsyncIterator[T], act: Callable[[T], Coroutine[Any, Any, None]]) -> None:
    """Await ``act(item)`` of each item, several at a time; the first error ends the others."""
    try:
        async with asyncio.TaskGroup() as tasks:
            free = asyncio.Semaphore(_AT_A_TIME)
            async for item in items:
                await free.acquire()
                tasks.create_task(act(item)).add_done_callback(lambda _: free.release())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None  # the task group has cancelled the others; this is the cause


async def _pause() -> None:
    """Sleep until a long answer may take its next step of `STEP_SECONDS`. The steps of all long answers of an
    event loop are planned one after the other, with as much time for other work before each of them."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    _steps_end[loop] = max(now, _steps_end.get(loop, now)) + 2 * STEP_SECONDS
    await asyncio.sleep(_steps_end[loop] - STEP_SECONDS - now)


async def stepwise(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items; half of the time is for others.

    Without pauses of the event loop the store's threads wait for the interpreter: the loop releases it at
    each step, and has it again before they wake up.
    """
    began = time.monotonic()
    for item in items:
        yield item
        if time.monotonic() - began >= STEP_SECONDS:
            await _pause()
            began = time.monotonic()


# --- requests ---


def topic_of(request: web.Request, *, domain: str | None = None) -> TopicName:
    """Return the topic that the path names; 412 if the name is not valid."""
    names = request.match_info
    text = f"{domain or names['domain']}://{names['tenant']}/{names['namespace']}/{names['topic']}"
    if len(text) > TOPIC_NAME_MAX:
        raise AdminRefusal(
            412, f"the topic's name has {len(text)} characters; at most {TOPIC_NAME_MAX} are allowed"
        )
    try:
        return TopicName.parse(text)
    except InvalidTopicName as error:
        raise AdminRefusal(412, str(error)) from None


def query_flag(request: web.Request, name: str, default: bool = False) -> bool:
    value = request.query.get(name)
    if value is None or value == "":
        return default
    if value.lower() not in ("true", "false"):
        raise AdminRefusal(400, f"{name}={value!r} is not allowed; allowed: true, false")
    return value.lower() == "true"


def whole_number(text: object, what: str, minimum: int = 0) -> int:
    """Parse a whole number from the path, the query or a body; 412 names what is wrong."""
    try:
        if isinstance(text, bool) or not isinstance(text, (str, int)):
            raise ValueError
        number = int(text)
    except ValueError:
        raise AdminRefusal(412, f"{what}={text!r} is not a whole number") from None
    if number < minimum:
        raise AdminRefusal(412, f"{what}={number} is not allowed; allowed: {minimum} or more")
    return number


async def sent(request: web.Request) -> bytes:
    """Return the body. 408 if it is not received completely, 400 if it cannot be read; it is never quoted."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise AdminRefusal(408, f"the body did not come within {BODY_SECONDS:g} s") from None
    except RequestPayloadError:
        raise AdminRefusal(400, "the body cannot be read: it is not encoded as its headers say") from None


async def body(request: web.Request, default: Any = _NO_BODY, *, bytes_max: int = BODY_BYTES_MAX) -> Any:
    """Return the JSON body; ``default`` if it is empty. 400 if it is not JSON, or empty without a default."""
    raw = await sent(request)
    if len(raw) > bytes_max:
        raise AdminRefusal(413, f"the body has {len(raw)} bytes; at most {bytes_max} are allowed")
    if not raw.strip():
        if default is _NO_BODY:
            raise AdminRefusal(400, f"{request.method} {request.path} needs a JSON body")
        return default
    try:
        return json.loads(raw, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise AdminRefusal(400, f"the body is not JSON: {error}") from None


def _finite(text: str) -> float:
    """Parse a number. Python's decoder also takes NaN and Infinity, which no answer could contain."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


async def object_body(
    request: web.Request, *, optional: bool = False, bytes_max: int = BODY_BYTES_MAX
) -> dict[str, Any]:
    """Return a body that must be a JSON object."""
    found = await body(request, {} if optional else _NO_BODY, bytes_max=bytes_max)
    if found is None and optional:
        return {}
    if not isinstance(found, dict):
        raise AdminRefusal(400, f"the body must be a JSON object, not {type(found).__name__}")
    return found


def message_id_of(document: Any) -> MessageId:
    """Parse a message id in the admin API's JSON form."""
    if not isinstance(document, dict):
        raise AdminRefusal(400, "a message id is a JSON object with ledgerId and entryId")
    found: list[int] = []
    for name, default, bits in (
        ("partitionIndex", -1, 31), ("ledgerId", None, 63), ("entryId", None, 63), ("batchIndex", -1, 31),
    ):  # fmt: skip
        value = document.get(name, default)
        if not isinstance(value, int) or not -1 <= value < 1 << bits:
            raise AdminRefusal(400, f"a message id needs a whole number from -1 on as {name}: {document}")
        found.append(value)
    return MessageId(*found)


def message_id_json(position: MessageId) -> dict[str, int]:
    return {
        "ledgerId": position.ledger_id,
        "entryId": position.entry_id,
        "partitionIndex": position.partition,
        "batchIndex": position.batch_index,
        "batchSize": position.batch_size,
    }


# --- answers ---


def answer(document: Any, status: int = 200) -> web.Response:
    """Return a JSON answer."""
    return web.Response(
        status=status,
        body=json.dumps(document, separators=(",", ":")).encode(),
        content_type="application/json",
    )


async def answer_pieces(
    request: web.Request, pieces: AsyncIterator[str], content_type: str = "application/json"
) -> web.StreamResponse:
    """Stream a long answer while it is made, so that it is never in memory as a whole.

    If making it fails after the first pieces, the connection ends, because the status has been sent.
    """
    headers = {"Content-Type": content_type}
    response: web.StreamResponse | None = None
    waiting: list[str] = []
    size = 0
    try:
        async for piece in pieces:
            waiting.append(piece)
            size += len(piece)
            if size >= _PIECE_BYTES:
                if response is None:
                    response = _zipped(request, web.StreamResponse(headers=headers))
                    await response.prepare(request)
                await response.write("".join(waiting).encode())
                waiting, size = [], 0
        if response is None:
            return _zipped(request, web.Response(body="".join(waiting).encode(), headers=headers))
        await response.write_eof("".join(waiting).encode())
    except Exception as error:
        if response is None:
            raise
        if not isinstance(error, ConnectionError):  # a disconnected peer is no error
            log.exception("%s %s failed half-way", request.method, request.path)
        if request.transport is not None:
            request.transport.abort()
    return response


def _zipped(request: web.Request, response: Answer) -> Answer:
    """Compress an answer for a client that accepts gzip; other threads do that."""
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        response.enable_compression(web.ContentCoding.gzip)
    return response


def json_pieces(document: Any) -> Iterator[str]:
    """Yield the JSON text of ``document``; of a container with very many members, a member at a time."""
    if not _is_long(document):
        yield json.dumps(document, separators=(",", ":"))
    elif isinstance(document, dict):
        separator = "{"
        for key, value in document.items():
            yield f"{separator}{json.dumps(key)}:"
            yield from json_pieces(value)
            separator = ","
        yield "}"
    else:
        separator = "["
        for value in document:
            yield separator
            yield from json_pieces(value)
            separator = ","
        yield "]"


def _is_long(document: Any) -> bool:
    """Whether a container has, or one within it, more than `_MEMBERS_MAX` members."""
    if not isinstance(document, (dict, list)):
        return False
    members = document.values() if isinstance(document, dict) else document
    return len(members) > _MEMBERS_MAX or any(map(_is_long, members))


async def answer_long(request: web.Request, document: Any) -> web.StreamResponse:
    """Return a JSON answer that may be long; others are served while its text is made."""
    return await answer_pieces(request, stepwise(json_pieces(document)))


async def answer_names(request: web.Request, names: AsyncIterator[str]) -> web.StreamResponse:
    """Stream a JSON list of names."""

    async def pieces() -> AsyncIterator[str]:
        comma = "["
        async for name in names:
            yield f"{comma}{json.dumps(name)}"
            comma = ","
        yield "[]" if comma == "[" else "]"

    return await answer_pieces(request, pieces())


def answer_or_empty(document: Any) -> web.Response:
    """Return JSON, or 200 without a body for None, which is Pulsar's "not set"."""
    if document is None:
        return web.Response(status=200, content_type="application/json")
    return answer(document)


def bare_text(text: str) -> web.Response:
    """Return unquoted text that Pulsar labels as JSON. Half a surrogate pair, which JSON may have, is ?."""
    return web.Response(status=200, body=text.encode(errors="replace"), content_type="application/json")


def done_answer(status: int = 204) -> web.Response:
    return web.Response(status=status)


async def _have_at_hand(request: web.Request) -> None:
    """Wait until the topic of the path is in memory, if it is stored, and its partitions are read."""
    server: Server = request.app[SERVER]
    topics = server.broker.topics
    name = topic_of(request, domain=request.match_info.get("domain", "persistent"))
    if topics.in_memory(name) is None and name.persistent:
        await when_done(server, lambda done: topics.loader.prepare(name, done))
    else:
        await when_done(server, lambda done: topics.bring(prefetch.existence_of(name), done))
    for index in range(topics.partitioned.count(name) if name.partition < 0 else 0):
        partition = prefetch.topic_of(name.partition_name(index))
        await when_done(server, lambda done, partition=partition: topics.bring(partition, done))  # type: ignore[misc]


async def when_done(server: Server, begin: Callable[[Done], None]) -> None:
    """Wait for ``begin(done)`` to finish and raise its error; 503 if the disk does not respond."""
    finished, done = _completion()
    server.call(lambda: begin(done))
    await finish(server, finished, 503, "the disk of the store does not answer: try again")


def _completion() -> tuple[asyncio.Future[None], Callable[[Exception | None], None]]:
    """Return a future, and the callback that completes it with or without an error."""
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None) -> None:
        if finished.done():
            return
        if error is None:
            finished.set_result(None)
        else:
            finished.set_exception(error)

    return finished, done


async def finish(server: Server, finished: asyncio.Future[Any], status: int, reason: str) -> None:
    """Wait for a future and raise its error; `AdminRefusal` after `DONE_SECONDS_MAX`."""
    try:
        async with asyncio.timeout(DONE_SECONDS_MAX):
            await server.unanswered.wait(finished)
    except TimeoutError:
        raise AdminRefusal(status, reason) from None


def _refusal(status: int, reason: str) -> web.Response:
    if len(reason) > _REASON_MAX:
        reason = f"{reason[:_REASON_MAX]}..."
    return answer({"reason": reason}, status)


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every refusal with a status and ``{"reason": ...}``; log changes and refusals."""
    roles: list[str] = []
    response = await _answered(request, handler, roles.append)
    refused = response.status in (401, 403)
    if refused or request.method not in ("GET", "HEAD", "OPTIONS"):
        server: Server = request.app[SERVER]
        path, status = request.rel_url.raw_path, str(response.status)
        found = AuditedRequest("".join(roles), address_of(request), request.method, path, status)
        server.call(lambda: server.broker.audit.add(found, refused=refused))
    return response


async def _answered(
    request: web.Request, handler: Handler, note: Callable[[str], None]
) -> web.StreamResponse:
    """Return the answer, also for errors; ``note`` is called with the role."""
    server: Server = request.app[SERVER]
    authorization_middleware = request.app.get(DOORKEEPER)
    try:
        # Not request.host, which may query a name server if the header is missing.
        request.app[WEB_HOSTS].check(request.headers, request.path)
        # An idle broker's clock is that of the last entry into the core.
        server.call(lambda: None)
        if authorization_middleware is not None:
            await authorization_middleware.admit(request, server.broker.scheduler.now_ms, note)
        if "topic" in request.match_info:
            await _have_at_hand(request)
        return await handler(request)
    except AdminRefusal as error:
        refusal = _refusal(error.status, error.reason)
        if error.status == 401 and "Authorization" in request.headers:
            audit, log_limited = server.broker.audit, server.broker.rate_limited_log.log
            audit.failures["web"] += 1
            values = address_of(request), error.reason
            server.call(lambda: log_limited("web port: login from %s failed: %s", *values))
        if error.status == 401 and authorization_middleware is not None:
            refusal.headers["WWW-Authenticate"] = authorization_middleware.schemes
        return refusal
    except (Refused, RuleViolation) as error:
        refused = admin_error(error)
        return _refusal(refused.status, refused.reason)
    except (InvalidTopicName, InvalidConfiguration) as error:
        return _refusal(412, str(error))
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return _refusal(error.status, _http_reason(request, error))
    except LedgerNotFound as error:
        return _refusal(404, str(error))
    except StoreError as error:
        return _refusal(503, f"the store refused: {error}")
    except asyncio.CancelledError:
        raise
    except ConnectionResetError as error:
        return _refusal(400, f"{error}")  # the client has disconnected and does not read this
    except Exception as error:
        log.exception("%s %s failed", request.method, request.path)
        return _refusal(500, f"{type(error).__name__}: {error}")


def address_of(request: web.Request) -> str:
    return "-" if request.transport is None else peer_text(request.transport)


def _http_reason(request: web.Request, error: web.HTTPException) -> str:
    if error.status == 404:
        return f"no such path: {request.method} {request.path}"
    if isinstance(error, web.HTTPMethodNotAllowed):
        possible = ", ".join(sorted(error.allowed_methods))
        return f"{request.method} is not possible for {request.path}; possible: {possible}"
    return error.text or error.reason
