"""Web application of ``geminga console``: the console for an Apache Pulsar or another Geminga broker.

Admin REST requests are forwarded unchanged, with the browser's token. Reports that Apache Pulsar does not
offer are computed from its stats (`geminga.console.derived`); the first request finds out the broker's kind.
Host and Origin are checked as at a broker's web port, since requests without a token use the credentials of
the command line.

Redirects within the cluster are followed with method, body and credentials, as by the admin client; other
redirects are refused (`geminga.connection.redirects`).
"""

import asyncio
import dataclasses
import functools
import json
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware
from multidict import CIMultiDict

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.hole_map import CELLS_MAX
from geminga.broker.admin.http import answer, whole_number
from geminga.broker.admin.masking import Masks
from geminga.broker.admin.origins import WebHosts
from geminga.broker.admin.partitioned import MergedStats
from geminga.broker.admin.stats import IS_NAME_GENERATED
from geminga.broker.admin.subscription_overview import base_of
from geminga.broker.admin.tailing import MESSAGES_MAX, MessageFilter, payload_messages
from geminga.broker.settings import BrokerSettings
from geminga.client.admin.exchange import AdminSettings, Request
from geminga.client.admin.transport import AsyncAdminSender, Headers
from geminga.client.cluster import Cluster
from geminga.client.io.tls import make_context
from geminga.client.options.settings import security_of
from geminga.connection.http_lookup import ANSWER_BYTES_MAX, reason_of
from geminga.console import derived
from geminga.console.site import attach
from geminga.diagnosis.commands import iso_time, shell_command
from geminga.diagnosis.conclude import explanation
from geminga.diagnosis.pulsar import facts_from_stats
from geminga.errors import InvalidConfiguration, PulsarException
from geminga.schema_info import SchemaInfo, SchemaType

Json = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

ANSWER_SECONDS_MAX: Final = 60.0
BODY_BYTES_MAX: Final = 16 * 1024 * 1024
STATS_SECONDS_MIN: Final = 3.0
STATS_SHARE: Final = 0.05
"""Largest share of the time that requests for the stats of all topics may take."""
TAIL_ENTRIES_MAX: Final = 20
PEEK_MAX: Final = 20
BROKERS_MAX: Final = 100
TOKENS_MAX: Final = 4
"""Number of tokens whose stats of all topics are cached."""
_PATH: Final = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"
_SUBSCRIPTION: Final = _PATH + "/subscription/{subscription}"
_ENDS: Final = {"-1": "earliest", str((1 << 63) - 1): "latest"}
"""Ledger ids by which Apache Pulsar names the two ends of a topic."""
_TOPIC_PARTS: Final = 7
"""Number of segments of a REST path up to and including the topic's name."""
_RAW: Final = ("position", "entry", "examinemessage")
"""Beginnings of the path segments of Pulsar's REST that return entries."""
_SHOWN: Final = ("messages", "message", "tail", "open")
"""Path segments of Geminga's that return messages, which have routes here."""
_IN_PATH: Final = re.compile(r"(?!\.+\Z)[-.\w]+\Z", re.ASCII)
NO_MASKS: Final = Masks(())
_NO_SUCH_THING: Final = "Apache Pulsar has no such command; unloading the topic redelivers what is held"


class _Seen(NamedTuple):
    """Cached stats of all topics as rows of subscriptions and of topics, with the time of the request and its
    duration in seconds."""

    rows: list[Json]
    topics: list[Json]
    at: float
    took: float


class Remote:
    """Client of a remote broker's admin REST; the cluster's credentials serve requests without a token."""

    def __init__(self, cluster: Cluster, masks: Masks = NO_MASKS) -> None:
        """Find the broker's address. ``masks``: fields of messages that are not shown.

        Raises `InvalidConfiguration` for a malformed address or unusable files, and errors of
        `Cluster.find_admin_url`.
        """
        admin_url = cluster.find_admin_url()
        address = urlsplit(admin_url)
        try:
            form = address.scheme in ("http", "https") and address.hostname and "," not in address.netloc
            form = form and address.port != 0
        except ValueError:  # of the port
            form = False
        if not form or address.query or address.fragment:
            raise InvalidConfiguration(f"admin_url={admin_url!r} is not allowed: give http(s)://host:port")
        self.url = admin_url.rstrip("/")
        self.masks = masks
        self.cluster = dataclasses.replace(cluster, admin_url=admin_url)
        self._prefix = address.path.rstrip("/")
        given = self.cluster.admin_arguments()
        security = security_of(given, given["authentication"], given["tls_trust_certs_file_path"])
        if address.scheme == "https":
            make_context(security["tls"])
        origin = f"{address.scheme}://{address.netloc}"
        self._sender = AsyncAdminSender(
            AdminSettings(admin_url=origin, operation_timeout_seconds=ANSWER_SECONDS_MAX, **security)
        )
        self._is_geminga: bool | None = None
        self._seen: OrderedDict[str, _Seen] = OrderedDict()
        self._lock = asyncio.Lock()

    def close(self) -> None:
        self._sender.close()

    # --- requests ---
    async def ask(
        self, request: web.Request, method: str, path: str, body: bytes | None = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request, follow redirects, and return status, headers and body. Raises `AdminRefusal` 502 if
        a broker does not answer or redirects outside the cluster, and for credentials that fail."""
        brought = request.headers.get("Authorization")
        headers: Headers | None = None if brought is None else (("Authorization", brought),)
        kind = request.headers.get("Content-Type", "application/json")
        try:
            answer = await self._sender.follow(
                Request(method, path, body, kind), headers, prefix=self._prefix
            )
        except PulsarException as error:
            raise AdminRefusal(502, str(error)) from None
        return answer.status, CIMultiDict(answer.headers), answer.body

    async def get(self, request: web.Request, path: str) -> Any:
        """Return the response's JSON; raises `AdminRefusal` with the broker's status and reason."""
        status, _, data = await self.ask(request, "GET", path)
        if status >= 400:
            raise AdminRefusal(status, reason_of(data))
        try:
            return json.loads(data) if data.strip() else None
        except ValueError:
            return data.decode(errors="replace")

    async def pass_on(self, request: web.Request, base: str) -> web.StreamResponse:
        """Forward the request unchanged, without the beginning ``base`` of its path.

        Raises `AdminRefusal` 400 for a path with ``.`` or ``..``: Apache Pulsar, or a proxy before it, would
        resolve it to another one than was checked here.
        """
        if any(each.partition(";")[0] in (".", "..") for each in request.path.split("/")):
            raise AdminRefusal(400, f"path={request.path} is not allowed: it has a segment . or ..")
        target = request.rel_url.raw_path_qs.removeprefix(base)
        body = await request.read() if request.can_read_body else None
        status, headers, data = await self.ask(request, request.method, target, body)
        kept = {
            name: headers[name]
            for name in headers
            if name.startswith("x-pulsar-") or name == "www-authenticate"
        }
        kind = headers.get("Content-Type", "application/json")
        return web.Response(status=status, body=data, headers={**kept, "Content-Type": kind})

    async def is_geminga(self, request: web.Request) -> bool:
        """Return whether the broker is a Geminga; raises `AdminRefusal` 401 if it requires a token."""
        if self._is_geminga is None:
            status, _, data = await self.ask(request, "GET", "/admin/v2/geminga/subscriptions?limit=1")
            if status == 401:
                raise AdminRefusal(401, reason_of(data))
            if status >= 500:
                raise AdminRefusal(502, reason_of(data))
            self._is_geminga = status in (200, 403)
        return self._is_geminga

    # --- Apache Pulsar: all subscriptions ---
    async def board(self, request: web.Request) -> web.Response:
        return await self._page(request, (await self._all(request)).rows, derived.board)

    async def topics(self, request: web.Request) -> web.Response:
        return await self._page(request, (await self._all(request)).topics, derived.topics)

    async def _page(
        self,
        request: web.Request,
        rows: list[Json],
        page: Callable[[list[Json], Mapping[str, str], int], Json],
    ) -> web.Response:
        try:
            return answer(page(rows, request.query, _now_ms()))
        except ValueError as error:
            raise AdminRefusal(412, str(error)) from None

    async def _all(self, request: web.Request) -> _Seen:
        """Return the rows of all brokers. Concurrent requests wait for the one that queries the brokers.

        Rows are cached per token, and are returned only for requests with that token.
        """
        who = request.headers.get("Authorization", "")
        async with self._lock:
            seen = self._seen.get(who)
            if seen is not None and time.monotonic() - seen.at < max(
                STATS_SECONDS_MIN, seen.took / STATS_SHARE
            ):
                return seen
            began = time.monotonic()
            clusters = await self.get(request, "/admin/v2/clusters")
            brokers: list[str] = []
            for cluster in clusters[:BROKERS_MAX]:
                brokers += await self.get(request, f"/admin/v2/brokers/{quote(cluster, safe='')}")
            stats: Json = {}
            for broker in dict.fromkeys(brokers[:BROKERS_MAX]) if len(brokers) > 1 else [""]:
                stats |= await self._stats_of(request, broker)
            loop = asyncio.get_running_loop()
            rows = await loop.run_in_executor(
                None, lambda: derived.grouped(derived.rows_of(stats, _now_ms()))
            )
            topics = await loop.run_in_executor(None, lambda: derived.topic_rows(stats, rows))
            found = self._seen[who] = _Seen(rows, topics, time.monotonic(), time.monotonic() - began)
            self._seen.move_to_end(who)
            if len(self._seen) > TOKENS_MAX:
                self._seen.popitem(last=False)
            return found

    async def _stats_of(self, request: web.Request, broker: str) -> Json:
        """Return the stats of all topics of ``broker``; if empty, of the broker at the configured address."""
        if not broker:
            found: Json = await self.get(request, "/admin/v2/broker-stats/topics")
            return found
        address = f"{urlsplit(self.url).scheme}://{broker}"
        other = Remote(dataclasses.replace(self.cluster, admin_url=address))
        try:
            return await other._stats_of(request, "")
        finally:
            other.close()

    async def overview(self, request: web.Request) -> web.Response:
        version = await self.get(request, "/admin/v2/brokers/version")
        clusters = await self.get(request, "/admin/v2/clusters")
        rows = (await self._all(request)).rows
        return answer(
            {
                "version": f"Apache Pulsar {version}", "cluster": ", ".join(clusters), "now": _now_ms(),
                "serviceUrl": self.url, "peers": [], "connections": sum(row["consumers"] for row in rows),
                "topicsLoaded": len({row["topic"] for row in rows}), "damage": [], "damageCount": 0,
            }
        )  # fmt: skip

    # --- Apache Pulsar: one subscription ---
    async def explain(self, request: web.Request) -> web.Response:
        path, name = _topic_path(request), request.match_info["subscription"]
        topic = _topic(request)
        partitions = (await self.get(request, f"{path}/partitions") or {}).get("partitions", 0)
        found = []
        for index in range(partitions) if partitions else (-1,):
            suffix = "" if index < 0 else f"-partition-{index}"
            stats = await self.get(request, f"{path}{suffix}/stats?getEarliestTimeInBacklog=true")
            if name not in stats["subscriptions"]:
                continue
            inside = await self.get(request, f"{path}{suffix}/internalStats")
            found.append(explanation(facts_from_stats(topic + suffix, name, stats, inside, _now_ms())))
        if not found:
            raise AdminRefusal(404, f"Subscription {name} not found on topic {topic}")
        return answer(found)

    async def holes(self, request: web.Request) -> web.Response:
        query = request.query
        inside = await self.get(request, f"{_topic_path(request)}/internalStats")
        places = [whole_number(query[name], name) if query.get(name) else None for name in ("from", "to")]
        cells = min(whole_number(query.get("cells", "512"), "cells", 1), CELLS_MAX)
        name = request.match_info["subscription"]
        if name not in inside.get("cursors", {}):
            raise AdminRefusal(404, f"Subscription {name} not found on topic {_topic(request)}")
        found = derived.hole_map(inside, name, places[0], places[1], cells)
        return answer(found | {"topic": _topic(request), "subscription": name})

    async def preview(self, request: web.Request) -> web.Response:
        action, query, path = request.match_info["action"], request.query, _topic_path(request)
        if action == "redeliver":
            raise AdminRefusal(501, _NO_SUCH_THING)
        stats = await self.get(request, f"{path}/stats")
        inside = await self.get(request, f"{path}/internalStats")
        name = request.match_info["subscription"]
        if name not in stats["subscriptions"]:
            raise AdminRefusal(404, f"Subscription {name} not found on topic {_topic(request)}")
        found = derived.hole_map(inside, name, None, None, 1)
        places, backlog = derived.Places(inside), stats["subscriptions"][name].get("msgBacklog", 0)

        def previewed(text: str, verb: str, *names: str, options: str = "") -> web.Response:
            command = shell_command(f"subscriptions {verb}", _topic(request), name, *names, options=options)
            return answer({"text": text, "command": command, "messages": -1, "messagesAgain": -1})

        if action == "skip-all":
            text = f"all {backlog:,} entries are skipped for good by this subscription"
            return previewed(text, "clear")
        if action == "skip":
            count = min(backlog, whole_number(query.get("count", ""), "count"))
            text = f"{count:,} of {backlog:,} entries are skipped; Apache Pulsar skips batches as a whole"
            return previewed(text, "skip", options=f"--entries {count}")
        if action not in ("expire", "reset"):
            raise AdminRefusal(404, f"no action {action!r}")
        moment, age = query.get("message", ""), ""
        if moment:
            ledger, _, entry = moment.partition(":")
            offset = places.offset(int(ledger), int(entry)) if ledger != "-1" else 0
            moment, when = _ENDS.get(ledger, moment), ""
        else:
            age = query.get("seconds", "") if action == "expire" else ""
            time_ms = (
                _now_ms() - whole_number(age, "seconds") * 1000
                if age
                else whole_number(query.get("timestamp", ""), "timestamp")
            )
            id_ = await self.get(request, f"{path}/messageid/{time_ms}")
            offset, when = places.offset(id_["ledgerId"], id_["entryId"]), f" of {iso_time(time_ms)}"
            moment = str(time_ms)
        mark = found["mark"]
        if action == "expire":
            text = f"about {max(0, offset - mark):,} entries before those{when} are skipped for good"
            return previewed(text, "expire", options=f"--older-than {age}s")
        if offset >= mark:
            text = f"starts at offset {offset:,}{when}: about {offset - mark:,} entries are skipped"
        else:
            text = f"starts earlier{when}: about {mark - offset:,} acknowledged entries are redelivered"
        return previewed(f"{text}; its consumers reconnect", "reset", moment)

    async def redeliver(self, _request: web.Request) -> web.Response:
        raise AdminRefusal(501, _NO_SUCH_THING)

    async def open_messages(self, request: web.Request) -> web.Response:
        count = min(whole_number(request.query.get("count", "10"), "count", 1), PEEK_MAX)
        name = quote(request.match_info["subscription"], safe="")
        wanted = await _filter(self, request, {})
        messages: list[Json] = []
        for nth in range(1, count + 1):
            path = f"{_topic_path(request)}/subscription/{name}/position/{nth}"
            status, headers, data = await self.ask(request, "GET", path)
            if status != 200:
                if nth == 1 and status not in (404, 412):
                    raise AdminRefusal(status, reason_of(data))
                break
            messages += payload_messages(headers, data, wanted)
            if len(messages) >= count:
                break
        return answer(messages[:count])

    async def tail(self, request: web.Request) -> web.Response:
        path, query = _topic_path(request), request.query
        inside = await self.get(request, f"{path}/internalStats")
        places = derived.Places(inside)
        wanted = await _filter(self, request, query)
        most = min(TAIL_ENTRIES_MAX, whole_number(query.get("count", "20"), "count", 1))
        offset, skipped = max(0, places.end - most), 0
        if query.get("from"):
            ledger, _, entry = query["from"].partition(":")
            known = places.offset(int(ledger), int(entry) + 1)
            skipped, offset = max(0, offset - known), max(offset, known)
        messages: list[Json] = []
        for at in range(offset, places.end):
            messages += await self._entry(request, places, at, wanted)
        last = places.position(places.end - 1) if places.end else (-1, -1)
        return answer(
            {"messages": messages[-MESSAGES_MAX:], "notShown": max(0, len(messages) - MESSAGES_MAX),
             "next": f"{last[0]}:{last[1]}",
             "examined": places.end - offset, "skipped": skipped, "behind": 0}
        )  # fmt: skip

    async def messages(self, request: web.Request) -> web.Response:
        """Read up to `TAIL_ENTRIES_MAX` entries from a position, as a Geminga's ``/messages`` does."""
        path, query = _topic_path(request), request.query
        places = derived.Places(await self.get(request, f"{path}/internalStats"))
        older = query.get("older") == "true"
        start, stop = await self._bounds(request, places, older)
        wanted = await _filter(self, request, query)
        found: list[Json] = []
        examined = 0
        while start < stop and examined < TAIL_ENTRIES_MAX:
            examined += 1
            stop, start, at = (stop - 1, start, stop - 1) if older else (stop, start + 1, start)
            messages = await self._entry(request, places, at, wanted)
            found += reversed(messages) if older else messages
        behind = places.position(stop) if older else places.position(max(0, start - 1))
        return answer(
            {"messages": found, "next": f"{behind[0]}:{behind[1]}", "examined": examined,
             "left": stop - start}
        )  # fmt: skip

    async def _entry(
        self, request: web.Request, places: derived.Places, offset: int, wanted: MessageFilter
    ) -> list[Json]:
        """Return the messages of an entry that match; none of one that is gone."""
        ledger_id, entry_id = places.position(offset)
        path = f"{_topic_path(request)}/ledger/{ledger_id}/entry/{entry_id}"
        status, headers, data = await self.ask(request, "GET", path)
        return list(payload_messages(headers, data, wanted)) if status == 200 else []

    async def _bounds(self, request: web.Request, places: derived.Places, older: bool) -> tuple[int, int]:
        """Return the offsets between which ``messages`` reads."""
        query, first, end = request.query, 0, places.end

        async def offset(position: str) -> int:
            if ":" not in position:
                moment = whole_number(position, "from")
                found = await self.get(request, f"{_topic_path(request)}/messageid/{moment}")
                return places.offset(found["ledgerId"], found["entryId"])
            ledger, _, entry = position.partition(":")
            return places.offset(whole_number(ledger, "ledger"), whole_number(entry, "entry"))

        if query.get("until"):
            end = await offset(str(whole_number(query["until"], "until") + 1))
        position = query.get("from") or "latest"
        if query.get("after"):
            known = await offset(query["after"]) + (0 if older else 1)
        elif position in ("latest", "earliest"):
            known = places.end if position == "latest" else 0
        else:
            known = await offset(position)
        return (first, min(end, known)) if older else (known, end)

    async def message(self, request: web.Request) -> web.Response:
        """Return one message; Apache Pulsar's answer has the whole payload of its entry."""
        path, id_ = _topic_path(request), request.match_info["id"]
        ledger, _, entry = id_.partition(":")
        numbers = whole_number(ledger, "ledger"), whole_number(entry, "entry")
        status, headers, data = await self.ask(
            request, "GET", f"{path}/ledger/{numbers[0]}/entry/{numbers[1]}"
        )
        if status >= 400:
            raise AdminRefusal(status, reason_of(data))
        batch = int(request.query.get("batch") or -1)
        wanted = await _filter(self, request, {})
        for each in payload_messages(headers, data, wanted, shown_bytes=ANSWER_BYTES_MAX):
            if each.get("batchIndex", -1) == batch:
                return answer(each)
        raise AdminRefusal(404, f"there is no message {id_} on topic {_topic(request)}")


def _now_ms() -> int:
    return int(time.time() * 1000)


def _topic(request: web.Request) -> str:
    names = request.match_info
    return f"{names['domain']}://{names['tenant']}/{names['namespace']}/{names['topic']}"


async def _filter(of: Remote, request: web.Request, query: Mapping[str, str]) -> MessageFilter:
    """Return the filter of a request, with the topic's schema if fields are masked.

    The broker does not name the version of a message's schema: only the first one, if there never was
    another, is certain.
    """
    masked, schema = of.masks.of(_topic(request)), None
    if masked:
        names = request.match_info
        parts = (names["tenant"], names["namespace"], base_of(names["topic"]))
        path = "/admin/v2/schemas/" + "/".join(quote(each, safe="") for each in parts)
        status, _, data = await of.ask(request, "GET", f"{path}/schemas")
        found = json.loads(data)["getSchemaResponses"] if status == 200 and data.strip() else []
        if [each["version"] for each in found] == [0]:
            kind = SchemaType.__members__.get(found[0]["type"], SchemaType.NONE)
            schema = SchemaInfo(type=kind, data=found[0]["data"].encode())
    return MessageFilter.of(query, masked, lambda _: schema)


_GENERATED_NAME: Final = re.compile(r"-\d+-\d+\Z")
"""End of the names that Apache Pulsar gives to producers without one."""


async def _partitioned_stats(request: web.Request, *, of: Remote) -> web.Response:
    """Stats of a partitioned topic, with each producer and consumer once."""
    found = await of.get(request, f"{_topic_path(request)}/partitioned-stats?perPartition=true")
    merged = MergedStats()
    for part in found["partitions"].values():
        for producer in part.get("publishers", ()):
            # Apache Pulsar does not say it.
            producer.setdefault(IS_NAME_GENERATED, bool(_GENERATED_NAME.search(producer["producerName"])))
        merged.add(part)
    whole = merged.finish()
    return answer(found | {name: whole[name] for name in ("publishers", "subscriptions")})


def _topic_path(request: web.Request) -> str:
    names = request.match_info
    parts = (names["domain"], names["tenant"], names["namespace"], names["topic"])
    return "/admin/v2/" + "/".join(quote(each, safe="") for each in parts)


def make_application(remotes: Mapping[str, Remote], hosts: BrokerSettings) -> web.Application:
    """Return the application: pages, forwarding to the brokers, and reports computed for Apache Pulsar.

    ``remotes``: clusters by name. The first is served at ``/``, each other one below `cluster_path`. A page
    sends requests to the cluster of its address only, and so the token that it was given.
    """
    paths = {name: cluster_path(name) if at else "/" for at, name in enumerate(remotes)}
    clusters = [{"name": name, "path": path} for name, path in paths.items()] if len(paths) > 1 else []
    first, *others = paths.items()
    application = _application(remotes[first[0]], "", clusters, hosts)
    for name, path in others:
        application.add_subapp(path, _application(remotes[name], path.removesuffix("/"), clusters, hosts))
    application.middlewares.append(_checking(WebHosts(hosts)))

    async def protect(_request: web.Request, response: web.StreamResponse) -> None:
        # An answer of one broker, opened as a page, must not act on the others.
        response.headers.setdefault("Content-Security-Policy", "default-src 'none'; sandbox")
        response.headers["X-Content-Type-Options"] = "nosniff"

    application.on_response_prepare.append(protect)
    return application


def cluster_path(name: str) -> str:
    """Return the path below which the console of a further cluster is served. Raises `InvalidConfiguration`
    for a name that browsers would encode or resolve."""
    if not _IN_PATH.match(name):
        raise InvalidConfiguration(f"cluster={name!r} is not allowed; allowed: ASCII letters, digits and -_.")
    return f"/cluster/{name}/"


def _checking(allowed: WebHosts) -> Middleware:
    """Return the middleware that refuses foreign hosts and pages, and answers errors as JSON."""

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            allowed.check(request.headers, request.path)
            return await handler(request)
        except AdminRefusal as error:
            refusal = answer({"reason": error.reason}, error.status)
        except InvalidConfiguration as error:
            refusal = answer({"reason": str(error)}, 412)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            refusal = answer({"reason": f"no such path: {request.method} {request.path}"}, error.status)
        return refusal

    return checked


def _application(
    remote: Remote, base: str, clusters: Sequence[Json], settings: BrokerSettings
) -> web.Application:
    """Return the application of one cluster; its paths begin with ``base``."""
    pass_on = functools.partial(remote.pass_on, base=base)

    def own(handler: Handler, *, shows_messages: bool = False) -> Handler:
        async def either(request: web.Request) -> web.StreamResponse:
            masked = shows_messages and remote.masks.of(_topic(request))
            return await (pass_on if not masked and await remote.is_geminga(request) else handler)(request)

        return either

    async def other(request: web.Request) -> web.StreamResponse:
        parts = request.path.removeprefix(base).split("/")[_TOPIC_PARTS:]
        if remote.masks and any(each in _SHOWN or each.startswith(_RAW) for each in parts):
            raise AdminRefusal(403, "this console masks fields: it does not pass whole messages on")
        return await pass_on(request)

    async def nothing(_request: web.Request) -> web.Response:
        return answer([])

    application = web.Application(client_max_size=BODY_BYTES_MAX)
    of = remote.cluster

    def arguments() -> tuple[Json, Json]:
        return of.client_arguments(), of.admin_arguments()

    attach(application, arguments, clusters, remote.masks, settings)
    router = application.router
    router.add_get("/admin/v2/geminga/subscriptions", own(remote.board))
    router.add_get("/admin/v2/geminga/topics", own(remote.topics))
    router.add_get("/admin/v2/geminga/overview", own(remote.overview))
    router.add_get("/admin/v2/geminga/happenings", own(nothing))
    router.add_get(f"{_SUBSCRIPTION}/explain", own(remote.explain))
    router.add_get(f"{_SUBSCRIPTION}/holes", own(remote.holes))
    router.add_get(f"{_SUBSCRIPTION}/preview/{{action}}", own(remote.preview))
    router.add_get(f"{_SUBSCRIPTION}/open", own(remote.open_messages, shows_messages=True))
    router.add_post(f"{_SUBSCRIPTION}/redeliver", own(remote.redeliver))
    router.add_get(f"{_PATH}/partitioned-stats", own(functools.partial(_partitioned_stats, of=remote)))
    router.add_get(f"{_PATH}/tail", own(remote.tail, shows_messages=True))
    router.add_get(f"{_PATH}/messages", own(remote.messages, shows_messages=True))
    router.add_get(f"{_PATH}/message/{{id}}", own(remote.message, shows_messages=True))
    router.add_route("*", "/admin/v2/{rest:.*}", other)
    router.add_get("/lookup/v2/{rest:.*}", pass_on)  # for commands that name the console's address

    async def close(_application: web.Application) -> None:
        remote.close()

    application.on_cleanup.append(close)
    return application
