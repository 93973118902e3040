"""``/admin/v2/geminga``: data of the console that Apache Pulsar's admin API does not have.

The overview of all subscriptions, the broker at a glance, and, for one subscription or topic, the map of its
ack holes, previews of actions, open and newest messages. Only ``redeliver`` changes anything.
"""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from typing import Any

from aiohttp import web

from geminga._version import __version__
from geminga.broker.admin import metrics
from geminga.broker.admin.brokers import disk_figures
from geminga.broker.admin.cursor_pages import RANGES_MAX, cursor_page
from geminga.broker.admin.damage import described
from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.hole_map import CELLS_MAX, hole_map
from geminga.broker.admin.http import DOORKEEPER, Server, answer, part, query_flag, whole_number
from geminga.broker.admin.previews import Preview, preview
from geminga.broker.admin.routes import CONSUME, CREDENTIALS, SUPER_USER, route
from geminga.broker.admin.subscription_overview import ROWS_MAX, SORTS, SubscriptionOverview, Visibility
from geminga.broker.admin.tailing import ANSWER_SECONDS_MAX, MESSAGES_MAX, MessageFilter, first_messages, tail
from geminga.broker.admin.topics import PATH, TopicResourceBase
from geminga.broker.commands.session import Session
from geminga.broker.delivery.subscription import PersistentSubscription
from geminga.broker.topics.persistent import PersistentTopic

BASE = "/admin/v2/geminga"
_SUBSCRIPTION = PATH + "/subscription/{subscription}"
HAPPENINGS_SHOWN_MAX = 200
PEERS_SHOWN_MAX = 100
DAMAGE_SHOWN_MAX = 100
OPEN_SHOWN_MAX = 50
_ENTRY_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of entries read for one answer; the entry that reaches this limit is the last."""


class OverviewResource(TopicResourceBase):
    """Resources of the console."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._boards = SubscriptionOverview(server.broker)

    # --- all subscriptions ---
    @route("GET", BASE + "/subscriptions", needs=CREDENTIALS)
    async def subscriptions(self, request: web.Request) -> web.Response:
        """A page of all subscriptions, sorted by trouble."""
        query = request.query
        sort = query.get("sort", SORTS[0])
        if sort not in SORTS:
            raise AdminRefusal(412, f"sort={sort!r} is not allowed; allowed: {', '.join(SORTS)}")
        authorization_middleware = request.app.get(DOORKEEPER)
        limited = None
        if authorization_middleware is not None:
            limited = await authorization_middleware.sight(request, self.server.broker.scheduler.now_ms)
        limit = whole_number(query.get("limit", "50"), "limit", 1)
        return answer(
            await self._boards.page(
                search=query.get("search", "")[:256],
                sort=sort,
                reverse=query_flag(request, "reverse"),
                level=whole_number(query["level"], "level") if query.get("level") else None,
                offset=whole_number(query.get("offset", "0"), "offset"),
                limit=min(limit, ROWS_MAX),
                sight=None if limited is None else Visibility(*limited),
            )
        )

    # --- the broker ---
    @route("GET", BASE + "/overview", needs=SUPER_USER)
    async def overview(self, _request: web.Request) -> web.Response:
        """The broker at a glance; counters start at the broker's start."""
        server = self.server
        broker = server.broker
        stats = server.store.stats()
        pending, received = broker.bytes.pending_bytes, broker.bytes.received_bytes
        return answer(
            {
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
                    "pendingBytes": pending, "pendingBytesMax": broker.bytes.pending_bytes_max,
                    "receivedBytes": received, "receivedBytesMax": broker.bytes.received_bytes_max,
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
            }
        )  # fmt: skip

    def _peers(self) -> list[dict[str, Any]]:
        """Return some of the connected clients."""
        found = []
        for connection in self.server.connections:
            session = getattr(connection, "session", None)
            if not isinstance(session, Session):
                continue
            found.append(
                {
                    "address": session.address,
                    "clientVersion": session.client_version,
                    "producers": len(session.producers),
                    "consumers": len(session.consumers),
                    "pendingBytes": session.pending_bytes,
                    "unsentBytes": getattr(connection, "unsent_bytes", 0),
                    "read": getattr(connection, "is_reading", True),
                }
            )
            if len(found) >= PEERS_SHOWN_MAX:
                break
        return found

    @route("GET", BASE + "/happenings", needs=SUPER_USER)
    async def event_log(self, _request: web.Request) -> web.Response:
        """Automatic actions of the broker, newest first."""
        found = self.server.broker.scheduler.event_log.newest(HAPPENINGS_SHOWN_MAX)
        return answer([dataclasses.asdict(each) for each in found])

    # --- one subscription ---
    def _one(self, request: web.Request) -> tuple[PersistentTopic, PersistentSubscription]:
        name = self.stored(request)
        return self.actions.found(name, part(request, "subscription"))

    @route("GET", _SUBSCRIPTION + "/holes", needs=CONSUME)
    async def holes(self, request: web.Request) -> web.Response:
        """The map of acknowledged entries, or a range of it."""
        topic, subscription = self._one(request)
        query = request.query
        places = [whole_number(query[name], name) if query.get(name) else None for name in ("from", "to")]
        cells = whole_number(query.get("cells", "512"), "cells", 1)
        return answer(hole_map(topic, subscription, places[0], places[1], min(cells, CELLS_MAX)))

    @route("GET", _SUBSCRIPTION + "/cursor", needs=CONSUME)
    async def cursor(self, request: web.Request) -> web.Response:
        """Everything that is acknowledged, a page at a time."""
        topic, subscription = self._one(request)
        query = request.query
        after = whole_number(query["after"], "after") if query.get("after") else None
        limit = whole_number(query.get("limit", str(RANGES_MAX)), "limit", 1)
        return answer(cursor_page(topic, subscription, after, min(limit, RANGES_MAX)))

    @route("GET", _SUBSCRIPTION + "/preview/{action}", needs=CONSUME)
    async def preview(self, request: web.Request) -> web.Response:
        """Effect of an action."""
        topic, subscription = self._one(request)
        query = request.query

        def number(name: str) -> int:
            return whole_number(query.get(name, ""), name)

        message = _message(query["message"]) if query.get("message") else None
        action = part(request, "action")
        consumer = query.get("consumer", "")
        found = Preview(topic, subscription, time.monotonic)
        return answer(await self.looking(partial(preview, found, action, number, message, consumer)))

    @route("GET", _SUBSCRIPTION + "/open", needs=CONSUME)
    async def open_messages(self, request: web.Request) -> web.Response:
        """The next messages that are not acknowledged, opened."""
        topic, subscription = self._one(request)
        count = min(whole_number(request.query.get("count", "10"), "count", 1), OPEN_SHOWN_MAX)
        return answer(await self.looking(partial(_open_messages, topic, subscription, count)))

    @route("POST", _SUBSCRIPTION + "/redeliver", needs=CONSUME)
    async def redeliver(self, request: web.Request) -> web.Response:
        """Redeliver the unacknowledged messages of all consumers, or of ``consumer``."""
        _, subscription = self._one(request)
        name = request.query.get("consumer", "")
        if name and all(each.name != name for each in subscription.consumers):
            raise AdminRefusal(404, f"no consumer {name!r} is connected to {subscription.name}")
        return answer({"messages": self.now(partial(subscription.redeliver_unacknowledged, name))})

    # --- one topic ---
    @route("GET", PATH + "/tail", needs=CONSUME)
    async def tail(self, request: web.Request) -> web.Response:
        """Messages behind an entry that match a filter; first the newest."""
        name = self.stored(request)
        topic = self.actions.topic(name)
        query = request.query
        behind = _message(query["from"]) if query.get("from") else None
        count = min(whole_number(query.get("count", "20"), "count", 1), MESSAGES_MAX)
        wanted = MessageFilter(query.get("text", ""), query.get("key", ""), query.get("producer", ""))
        return answer(self.now(partial(tail, topic, behind, count, wanted)))


def _open_messages(
    topic: PersistentTopic, subscription: PersistentSubscription, count: int
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

    return first_messages(entries(), count)


def _message(text: str) -> tuple[int, int]:
    ledger, mark, entry = text.partition(":")
    try:
        if not mark:
            raise ValueError
        return int(ledger), int(entry)
    except ValueError:
        raise AdminRefusal(412, f"{text!r} is no message: give LEDGER:ENTRY") from None
