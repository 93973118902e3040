"""``/admin/v2/geminga``: data of the console that Apache Pulsar's admin API does not have.

The overview of all subscriptions, the broker at a glance, and, for one subscription or topic, the map of its
ack holes, previews of actions, open and newest messages. Only ``redeliver`` changes anything.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import time
from collections.abc import Callable, Mapping
from functools import partial
from heapq import nlargest
from itertools import islice
from typing import Any, TypeVar

from aiohttp import web

from geminga._version import __version__
from geminga.broker.admin import metrics
from geminga.broker.admin.brokers import disk_figures
from geminga.broker.admin.browsing import Browser, bounds, tail, whole_message
from geminga.broker.admin.damage import described
from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.history import History
from geminga.broker.admin.hole_map import CELLS_MAX, hole_map
from geminga.broker.admin.http import DOORKEEPER, Server, finish, object_body, query_flag, whole_number
from geminga.broker.admin.masking import Masks
from geminga.broker.admin.payload_values import Undecodable
from geminga.broker.admin.previews import Preview, preview
from geminga.broker.admin.publishing import UNCONFIRMED, publish
from geminga.broker.admin.routes import CONSUME, CREDENTIALS, LOOK, PRODUCE, SUPER_USER, route
from geminga.broker.admin.stats import RANGES_MAX, cursor_page
from geminga.broker.admin.subscription_overview import (
    ROWS_MAX,
    SORTS,
    WAIT_SECONDS,
    SubscriptionOverview,
    Visibility,
)
from geminga.broker.admin.tailing import ANSWER_SECONDS_MAX, MESSAGES_MAX, MessageFilter, first_messages
from geminga.broker.admin.topic_overview import TOPIC_SORTS, TopicOverview
from geminga.broker.admin.topics import PATH, TopicResourceBase
from geminga.broker.commands.session import Session
from geminga.broker.delivery.subscription import PersistentSubscription
from geminga.broker.rules.policies import properties_map
from geminga.broker.rules.schemas import version_bytes
from geminga.broker.topics.persistent import PersistentTopic
from geminga.errors import StoreDamaged
from geminga.ids import TopicName
from geminga.schema_info import SchemaInfo
from geminga.wire.hashing import partition_of
from geminga.wire.proto import pulsar_wire_pb2 as pb

T = TypeVar("T")
BASE = "/admin/v2/geminga"
_SUBSCRIPTION = PATH + "/subscription/{subscription}"
HAPPENINGS_SHOWN_MAX = 200
PEERS_SHOWN_MAX = 100
PEERS_EXAMINED_MAX = 2_000
"""Connections whose rates are read for one answer."""
PEER_NAMES_MAX = 5
DAMAGE_SHOWN_MAX = 100
OPEN_SHOWN_MAX = 50
_TEXT_SCHEMAS = frozenset((pb.Schema.String, pb.Schema.Json))
BROWSING_SECONDS_MAX = 0.4
"""Longest search for one answer, which is requested again for the rest."""
_ENTRY_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of entries read for one answer; the entry that reaches this limit is the last."""


class OverviewResource(TopicResourceBase):
    """Resources of the console."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._history = History(server.broker)
        self._boards = SubscriptionOverview(server.broker)
        self._topics = TopicOverview(server.broker)
        self._masks = Masks(server.settings.masked_fields)
        self._turn = asyncio.Lock()

    # --- all subscriptions ---
    @route("GET", BASE + "/subscriptions", needs=CREDENTIALS)
    async def subscriptions(self, request: web.Request) -> object:
        """A page of all subscriptions, sorted by trouble."""
        found = await self._page(request, self._boards, SORTS)
        for row in found["rows"]:
            row["history"] = self._history.of(row.pop("parts"), row["subscription"])["backlog"]
        return found

    @route("GET", BASE + "/topics", needs=CREDENTIALS)
    async def all_topics(self, request: web.Request) -> object:
        """A page of all topics, sorted by name, those without subscriptions included."""
        return await self._page(request, self._topics, TOPIC_SORTS)

    async def _page(
        self, request: web.Request, boards: SubscriptionOverview, sorts: tuple[str, ...]
    ) -> dict[str, Any]:
        query = request.query
        sort = query.get("sort", sorts[0])
        if sort not in sorts:
            raise AdminRefusal(412, f"sort={sort!r} is not allowed; allowed: {', '.join(sorts)}")
        authorization_middleware = request.app.get(DOORKEEPER)
        limited = None
        if authorization_middleware is not None:
            limited = await authorization_middleware.sight(request, self.server.broker.scheduler.now_ms)
        limit = whole_number(query.get("limit", "50"), "limit", 1)
        await self.resting_read(WAIT_SECONDS)
        return await boards.page(
            search=query.get("search", "")[:256],
            sort=sort,
            reverse=query_flag(request, "reverse"),
            level=whole_number(query["level"], "level") if query.get("level") else None,
            offset=whole_number(query.get("offset", "0"), "offset"),
            limit=min(limit, ROWS_MAX),
            sight=None if limited is None else Visibility(*limited),
        )

    # --- the broker ---
    @route("GET", BASE + "/overview", needs=SUPER_USER)
    async def overview(self) -> object:
        """The broker at a glance; counters start at the broker's start."""
        server = self.server
        broker = server.broker
        stats = server.store.stats()
        pending, received = broker.backpressure.pending_bytes, broker.backpressure.received_bytes
        return {
            "version": f"Geminga {__version__}",
            "cluster": server.settings.cluster,
            "now": broker.scheduler.now_ms,
            "startedAt": server.started_at_ms,
            "memoryOnly": server.settings.memory,
            "sync": server.settings.sync,
            "serviceUrl": server.settings.service_url,
            "store": {
                "failure": str(server.store.failure) if server.store.failure else None,
                **{name: getattr(stats, name) for name in type(stats).__slots__},
            },
            "disk": disk_figures(broker),
            "process": {
                "residentBytes": metrics.resident_bytes(),
                "cpuSeconds": time.process_time(),
                "longestTurnSeconds": broker.slices.longest_seconds,
            },
            "memory": {
                "pendingBytes": pending, "pendingBytesMax": broker.backpressure.pending_bytes_max,
                "receivedBytes": received, "receivedBytesMax": broker.backpressure.received_bytes_max,
            },
            "topicsLoaded": self.topics.loaded_count,
            "connections": len(server.connections),
            "connectionsRefused": server.connections_refused,
            "peers": self._peers(),
            "failures": broker.scheduler.failures,
            "damage": [
                described(server.store, each) for each in server.store.damage.found[:DAMAGE_SHOWN_MAX]
            ],
            "damageCount": len(server.store.damage.found),
        }  # fmt: skip

    def _peers(self) -> list[dict[str, Any]]:
        """Return connected clients with their rates, those with the most bytes per second first."""
        now = self.server.broker.scheduler.now
        found = []
        for connection in islice(self.server.connections, PEERS_EXAMINED_MAX):
            session = getattr(connection, "session", None)
            if not isinstance(session, Session):
                continue
            published = [
                each.rates.read(now, each.messages_in, each.bytes_in) for each in session.producers.values()
            ]
            delivered = [each.rates_now(now) for each in session.consumers.values()]
            names = [each.name for each in session.producers.values()]
            names += [each.name for each in session.consumers.values()]
            found.append(
                {
                    "address": session.address,
                    "clientVersion": session.client_version,
                    "role": session.log_fields.get("role", ""),
                    "names": [*dict.fromkeys(filter(None, names))][:PEER_NAMES_MAX],
                    "producers": len(session.producers),
                    "consumers": len(session.consumers),
                    "rateIn": sum(each[0] for each in published),
                    "bytesIn": sum(each[1] for each in published),
                    "rateOut": sum(each[0] for each in delivered),
                    "bytesOut": sum(each[1] for each in delivered),
                    "pendingBytes": session.pending_bytes,
                    "unsentBytes": getattr(connection, "unsent_bytes", 0),
                    "read": getattr(connection, "is_reading", True),
                }
            )
        return nlargest(PEERS_SHOWN_MAX, found, key=lambda each: each["bytesIn"] + each["bytesOut"])

    @route("GET", BASE + "/happenings", needs=SUPER_USER)
    async def event_log(self) -> object:
        """Automatic actions of the broker, changes with who made them, and connections, newest first."""
        found = self.server.broker.scheduler.event_log.newest(HAPPENINGS_SHOWN_MAX)
        return [dataclasses.asdict(each) for each in found]

    # --- one subscription ---
    def _one(self, request: web.Request) -> tuple[PersistentTopic, PersistentSubscription]:
        name = self.stored(request)
        return self.actions.cursors.found(name, request.match_info["subscription"])

    @route("GET", _SUBSCRIPTION + "/holes", needs=CONSUME)
    async def holes(self, request: web.Request) -> object:
        """The map of acknowledged entries, or a range of it."""
        topic, subscription = self._one(request)
        query = request.query
        places = [whole_number(query[name], name) if query.get(name) else None for name in ("from", "to")]
        cells = whole_number(query.get("cells", "512"), "cells", 1)
        return hole_map(topic, subscription, places[0], places[1], min(cells, CELLS_MAX))

    @route("GET", _SUBSCRIPTION + "/cursor", needs=CONSUME)
    async def cursor(self, request: web.Request) -> object:
        """The acknowledged ranges of the subscription, a page at a time."""
        query = request.query
        after = whole_number(query["after"], "after") if query.get("after") else None
        limit = whole_number(query.get("limit", str(RANGES_MAX)), "limit", 1)
        return cursor_page(self._one(request)[1], after, min(limit, RANGES_MAX))

    @route("GET", _SUBSCRIPTION + "/preview/{action}", needs=CONSUME)
    async def preview(self, request: web.Request, action: str) -> object:
        """Return what an action on a subscription would change; change nothing."""
        topic, subscription = self._one(request)
        query = request.query

        def number(name: str) -> int:
            return whole_number(query.get(name, ""), name)

        message = _message(query["message"]) if query.get("message") else None
        consumer = query.get("consumer", "")
        found = Preview(topic, subscription)
        return await self.looking(partial(preview, found, action, number, message, consumer))

    @route("GET", _SUBSCRIPTION + "/open", needs=CONSUME)
    async def open_messages(self, request: web.Request) -> object:
        """The next unacknowledged messages with their content."""
        topic, subscription = self._one(request)
        count = min(whole_number(request.query.get("count", "10"), "count", 1), OPEN_SHOWN_MAX)
        wanted = self._filter(topic, {})
        return await self._in_turn(partial(_open_messages, topic, subscription, count, wanted))

    @route("POST", _SUBSCRIPTION + "/redeliver", needs=CONSUME)
    async def redeliver(self, request: web.Request) -> object:
        """Redeliver the unacknowledged messages of all consumers, or of ``consumer``."""
        _, subscription = self._one(request)
        name = request.query.get("consumer", "")
        if name and all(each.name != name for each in subscription.consumers):
            raise AdminRefusal(404, f"no consumer {name!r} is connected to {subscription.name}")
        return {"messages": self.now(partial(subscription.redeliver_unacknowledged, name))}

    @route("GET", _SUBSCRIPTION + "/history", needs=CONSUME)
    async def history(self, request: web.Request, subscription: str) -> object:
        """Messages in and out per second and the backlog of each minute of the last hour."""
        names = [str(each) for each in self.parts(request)]
        return self._history.of(names, subscription)

    # --- one topic ---
    async def _in_turn(self, call: Callable[[], T]) -> T:
        """Run a call of some milliseconds like `looking`; the event loop does other work between two such
        calls, also of different requests."""
        async with self._turn:
            await asyncio.sleep(0)
        return await self.looking(call)

    def _filter(self, topic: PersistentTopic, query: Mapping[str, str]) -> MessageFilter:
        def schema_of(version: int) -> SchemaInfo | None:
            try:
                found = self.server.broker.schemas.get(topic.name, version)
            except StoreDamaged as error:
                raise Undecodable(str(error)) from None
            return None if found is None else SchemaInfo(type=found.type, data=found.schema_data)

        return MessageFilter.of(query, self._masks.of(topic.text), schema_of)

    @route("GET", PATH + "/history", needs=LOOK)
    async def topic_history(self, request: web.Request) -> object:
        """Messages in and out per second of each minute of the last hour."""
        return self._history.of([str(each) for each in self.parts(request)], "")

    @route("GET", PATH + "/messages", needs=CONSUME)
    async def messages(self, request: web.Request) -> object:
        """Stored messages from ``?from=`` (``earliest``, ``latest``, a time in ms, or LEDGER:ENTRY), with
        ``?older=true`` backward; ``?after=`` continues; ``?until=`` (ms), ``?key=`` and ``?text=`` filter."""
        topic = self.actions.topic(self.stored(request))
        query = request.query
        older = query_flag(request, "older")
        position = query.get("from") or "latest"
        if position not in ("earliest", "latest"):
            if ":" in position:
                _message(position)
            else:
                whole_number(position, "from")
        after = _message(query["after"]) if query.get("after") else None
        until = whole_number(query["until"], "until") if query.get("until") else None
        count = min(whole_number(query.get("count", "50"), "count", 1), MESSAGES_MAX)
        wanted = self._filter(topic, query)
        first, stop = await self.looking(partial(bounds, topic, position, after, until, older))
        browser = Browser(topic, wanted, count, older=older, start=first, stop=stop)
        until_time = time.monotonic() + BROWSING_SECONDS_MAX
        while not browser.is_done and time.monotonic() < until_time:
            await self._in_turn(browser.step)
        return browser.answer()

    @route("GET", PATH + "/message/{id}", needs=CONSUME)
    async def message(self, request: web.Request, id: str) -> object:
        """One message, LEDGER:ENTRY with ``?batch=`` in a batch, with its whole payload."""
        topic = self.actions.topic(self.stored(request))
        ids = _message(id)
        batch = whole_number(request.query["batch"], "batch") if request.query.get("batch") else -1
        wanted = self._filter(topic, {})
        found = await self._in_turn(partial(whole_message, topic, *ids, batch, wanted))
        if found is None:
            raise AdminRefusal(404, f"there is no message {ids[0]}:{ids[1]} on topic {topic.text}")
        return found

    @route("GET", PATH + "/tail", needs=CONSUME)
    async def tail(self, request: web.Request) -> object:
        """Messages after the entry ``?from=`` that match a filter; without ``from`` the newest ones."""
        name = self.stored(request)
        topic = self.actions.topic(name)
        query = request.query
        behind = _message(query["from"]) if query.get("from") else None
        count = min(whole_number(query.get("count", "20"), "count", 1), MESSAGES_MAX)
        wanted = self._filter(topic, query)
        return await self._in_turn(partial(tail, topic, behind, count, wanted))

    @route("POST", PATH + "/message", needs=PRODUCE)
    async def publish(self, request: web.Request) -> object:
        """Publish one message. Body: ``payload`` as text (or ``base64``), ``key`` and ``properties``."""
        names = self.parts(request)
        wanted = await object_body(request)
        known = {"payload", "base64", "key", "properties"}
        if unknown := sorted(set(wanted) - known):
            raise AdminRefusal(
                412, f"{unknown[0]!r} is no field of a message; allowed: {', '.join(sorted(known))}"
            )
        key = wanted.get("key")
        if key is not None and not isinstance(key, str):
            raise AdminRefusal(412, f"key={key!r} is not allowed: give a text")
        _utf8("key", key or "")
        index = (
            0
            if len(names) == 1
            else partition_of(key or str(time.monotonic_ns()), len(names), "JavaStringHash")
        )
        topic = self.actions.topic(names[index])
        properties = properties_map("properties", wanted.get("properties") or {})
        _utf8("properties", "".join(name + value for name, value in properties.items()))
        metadata = pb.MessageMetadata(partition_key=key, schema_version=self._schema_version(names[index]))
        for name, value in properties.items():
            metadata.properties.add(key=name, value=value)
        payload, backpressure = _payload(wanted), self.server.broker.backpressure
        stored = self.now(partial(publish, topic, metadata, payload, backpressure))
        self.now(lambda: None)
        await finish(self.server, stored, 504, UNCONFIRMED)
        ledger_id, entry_id = stored.result()
        partition = None if len(names) == 1 else index
        return {"id": f"{ledger_id}:{entry_id}", "partition": partition}

    def _schema_version(self, name: TopicName) -> bytes | None:
        """Return the schema version for a payload given as text; refuse schemas of other types."""
        found = self.server.broker.schemas.latest(name.base)
        if found is None:
            return None
        if found[1].type not in _TEXT_SCHEMAS:
            form = pb.Schema.Type.Name(found[1].type).upper()
            raise AdminRefusal(
                409, f"the schema of {name.base} is {form}: publish with a client that encodes it"
            )
        return version_bytes(found[0])


def _utf8(field: str, text: str) -> bytes:
    """Encode a text of a request body; refuse unpaired surrogates, which JSON allows and UTF-8 does not."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise AdminRefusal(412, f"{field} is not allowed: it contains half a surrogate pair") from None


def _payload(wanted: dict[str, Any]) -> bytes:
    text, encoded = wanted.get("payload"), wanted.get("base64")
    if isinstance(text, str) and encoded is None:
        return _utf8("payload", text)
    try:
        if text is None and isinstance(encoded, str):
            return base64.b64decode(encoded, validate=True)
    except ValueError:
        pass
    raise AdminRefusal(412, "a message needs payload, a text, or base64, a payload in base64")


def _open_messages(
    topic: PersistentTopic, subscription: PersistentSubscription, count: int, wanted: MessageFilter
) -> list[dict[str, Any]]:
    cursor, ledger = subscription.cursor, topic.ledger

    def entries() -> Any:
        offset, size = subscription.wanted_from, 0
        until = time.monotonic() + ANSWER_SECONDS_MAX
        for number in range(count):
            offset = cursor.next_open(ledger.skip_gap(offset))
            if offset >= ledger.confirmed or size > _ENTRY_BYTES_MAX:
                return
            if number and time.monotonic() >= until:
                return  # a small entry may be a large one that is compressed
            entry = ledger.read_one(offset)
            if entry is not None:
                size += len(entry)
                bits = cursor.batches.get(offset)
                is_open = None if bits is None else lambda index, bits=bits: bool(bits >> index & 1)
                yield (*ledger.position(offset), bytes(entry), is_open)
            offset += 1

    return first_messages(entries(), count, wanted)


def _message(text: str) -> tuple[int, int]:
    ledger, mark, entry = text.partition(":")
    try:
        if not mark:
            raise ValueError
        return int(ledger), int(entry)
    except ValueError:
        raise AdminRefusal(412, f"{text!r} is no message: give LEDGER:ENTRY") from None
