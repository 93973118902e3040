"""The console for a broker elsewhere: passed on to a Geminga, derived where it is an Apache Pulsar."""

import base64
import dataclasses
import http.client
import json
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import jwt
import pytest
import web_requests
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm
from web_port import Port

from geminga.broker.admin.masking import NOT_SHOWN, Masks
from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.broker.settings import BrokerSettings
from geminga.client.cluster import Cluster
from geminga.console.remote import Remote, make_application
from geminga.console.site import attach
from geminga.errors import InvalidConfiguration
from geminga.wire.batch import encode_plain_batch

SETTINGS = BrokerSettings(memory=True, port=0, web_port=0)
NOW = 1_800_000_000_000


def elsewhere(url: str, **shown: str) -> web.Application:
    """The console for the broker at an address."""
    return make_application({"there": Remote(Cluster(admin_url=url, **shown))}, SETTINGS)


@pytest.fixture
def open_port():
    ports: list[Port] = []

    def make(application: Callable[[], web.Application]) -> Port:
        ports.append(Port(application))
        return ports[-1]

    yield make
    for each in reversed(ports):
        each.close()


def ask(url: str, path: str, method: str = "GET", **headers: str) -> tuple[int, Any]:
    found = web_requests.ask(url + path, method, **headers)
    is_json = found.status < 400 or found.body.startswith(b"{")
    return found.status, found.document if is_json else found.body


STATS = {
    "msgRateIn": 3.0,
    "backlogQuotaLimitSize": -1,
    "publishers": [],
    "subscriptions": {
        "stuck": {
            "msgBacklog": 7, "backlogSize": 70, "type": "Shared", "unackedMessages": 2, "msgRateOut": 0.0,
            "nonContiguousDeletedMessagesRanges": 1,
            "consumers": [
                {"consumerName": "worker", "address": "/1.2.3.4:5", "availablePermits": 0,
                 "unackedMessages": 2, "lastConsumedTimestamp": 1}
            ],
        },
        "alone": {"msgBacklog": 3, "consumers": [], "unackedMessages": 0},
    },
}  # fmt: skip
INSIDE = {
    "lastConfirmedEntry": "9:4",
    "ledgers": [{"ledgerId": 5, "entries": 5, "size": 50}, {"ledgerId": 9, "entries": 0, "size": 0}],
    "cursors": {
        "stuck": {
            "markDeletePosition": "5:1", "readPosition": "9:2",
            "individuallyDeletedMessages": "[(5:2..5:4],(9:0..9:1]]",
        },
        "alone": {"markDeletePosition": "9:1", "readPosition": "9:2", "individuallyDeletedMessages": "[]"},
    },
}  # fmt: skip


class Apache:
    """As much of an Apache Pulsar's web port as the console asks for."""

    def __init__(self, token: str = "") -> None:
        self.asked: list[str] = []
        self.token = token

    def application(self) -> web.Application:
        @web.middleware
        async def noted(request: web.Request, handler: Any) -> web.StreamResponse:
            self.asked.append(f"{request.method} {request.path}")
            if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
                return web.json_response({"reason": "Authentication required"}, status=401)
            return await handler(request)

        application = web.Application(middlewares=[noted])
        topic = "/admin/v2/persistent/public/default/t"
        answers = {
            "/admin/v2/clusters": ["standalone"],
            "/admin/v2/brokers/standalone": ["localhost:8080"],
            "/admin/v2/brokers/version": "4.0.4",
            "/admin/v2/broker-stats/topics": {
                "public/default": {"0x0_0xf": {"persistent": {"persistent://public/default/t": STATS}}}
            },
            f"{topic}/stats": STATS,
            f"{topic}/internalStats": INSIDE,
            f"{topic}/partitions": {"partitions": 0},
            "/admin/v2/persistent/public/default/parted/partitioned-stats": {
                "msgInCounter": 7,
                "publishers": [_producer(0)],
                "subscriptions": {},
                "partitions": {f"parted-partition-{at}": {"publishers": [_producer(at)]} for at in range(3)},
            },
        }
        for path, found in answers.items():
            application.router.add_get(path, _telling(found))
        application.router.add_get(f"{topic}/ledger/{{ledger}}/entry/{{entry}}", self.entry)
        return application

    async def entry(self, request: web.Request) -> web.Response:
        batch = encode_plain_batch([b"a", b"b"], 0)
        headers = {
            "X-Pulsar-Message-ID": f"{request.match_info['ledger']}:{request.match_info['entry']}",
            "X-Pulsar-producer-name": "p",
            "X-Pulsar-num-batch-message": "2",
            "X-Pulsar-publish-time": "2026-11-22T10:00:00.000+00:00",
        }
        return web.Response(body=batch, headers=headers)


def _producer(partition: int) -> dict[str, Any]:
    return {"producerName": f"standalone-2-{partition}", "address": "/10.0.0.1:4242", "msgRateIn": 1.0}


def _telling(found: Any) -> Any:
    async def tell(_request: web.Request) -> web.Response:
        return web.json_response(found)

    return tell


@pytest.fixture
def open_console(open_port):
    """A function that opens the console for the broker at an address and returns its URL."""
    return lambda url, **shown: open_port(lambda: elsewhere(url, **shown)).url


@pytest.fixture
def console(open_port, open_console):
    return open_console(open_port(Apache().application).url)


@pytest.fixture
def answering(open_port):
    """A function that serves one path by a handler and returns the URL."""

    def serve(path: str, handler: Any) -> str:
        application = web.Application()
        application.router.add_get(path, handler)
        return str(open_port(lambda: application).url)

    return serve


def test_the_overview_is_computed_from_apache_pulsars_stats(console):
    status, found = ask(console, "/admin/v2/geminga/subscriptions")
    assert status == 200
    assert [(row["subscription"], row["trouble"]) for row in found["rows"]] == [("stuck", 5), ("alone", 5)]
    assert "takes no more" in found["rows"][0]["sentence"]
    assert found["totals"]["subscriptions"] == 2
    assert ask(console, "/admin/v2/geminga/subscriptions?search=alone")[1]["matching"] == 1
    assert ask(console, "/admin/v2/geminga/subscriptions?sort=luck")[0] == 412
    assert ask(console, "/admin/v2/geminga/overview")[1]["version"] == "Apache Pulsar 4.0.4"
    assert ask(console, "/admin/v2/geminga/happenings") == (200, [])


def test_topics_are_listed_from_apache_pulsars_stats(console):
    status, found = ask(console, "/admin/v2/geminga/topics?search=DEFAULT/T")
    (row,) = found["rows"]
    assert status == 200
    assert (row["topic"], row["subscriptions"]) == ("persistent://public/default/t", 2)
    assert row["trouble"] == 5
    assert ask(console, "/admin/v2/geminga/topics?search=another")[1]["matching"] == 0


def test_a_producer_on_several_partitions_of_apache_pulsar_is_listed_once(console):
    found = ask(console, "/admin/v2/persistent/public/default/parted/partitioned-stats")[1]
    (producer,) = found["publishers"]
    assert (producer["producerName"], producer["partitions"], producer["msgRateIn"]) == (
        "standalone-2-0",
        3,
        3.0,
    )
    assert (found["msgInCounter"], len(found["partitions"])) == (7, 3)


def test_messages_are_browsed_entry_by_entry(console):
    base = "/admin/v2/persistent/public/default/t"
    found = ask(console, f"{base}/messages?from=earliest")[1]
    assert len(found["messages"]) == 20, "ten batches of two"
    assert [each["batchIndex"] for each in found["messages"][:2]] == [0, 1]
    assert found["left"] == 0
    newest = ask(console, f"{base}/messages?from=latest&older=true&text=a")[1]["messages"]
    assert len(newest) == 10
    place = newest[0]["id"]
    older = ask(console, f"{base}/messages?older=true&after={place}&text=a")[1]["messages"]
    assert [each["id"] for each in older] == [each["id"] for each in newest[1:]]
    assert ask(console, f"{base}/message/{place}?batch=1")[1]["payload"] == "Yg=="
    assert ask(console, f"{base}/message/{place}?batch=7")[0] == 404


def test_a_subscription_is_explained_from_apache_pulsars_stats(console):
    base = "/admin/v2/persistent/public/default/t"
    (found,) = ask(console, f"{base}/subscription/stuck/explain")[1]
    assert found["findings"][0]["kind"] == "paused"
    assert found["facts"]["oldestOpenMessage"] == "5:2"
    found = ask(console, f"{base}/subscription/stuck/holes")[1]
    states = "".join(each["state"][0] for each in found["entries"])
    assert states == "aaoaaoaooo", "open: 5:2, 9:0 and from 9:2 on"
    assert (found["mark"], found["read"], found["end"]) == (2, 7, 10)
    assert (
        "consumers reconnect"
        in ask(console, f"{base}/subscription/stuck/preview/reset?message=5:0")[1]["text"]
    )
    for action, command in (
        ("skip-all", "clear {} stuck"), ("skip?count=2", "skip {} stuck --entries 2"),
        ("reset?message=-1:-1", "reset {} stuck earliest"), ("reset?message=5:0", "reset {} stuck 5:0"),
    ):  # fmt: skip
        found = ask(console, f"{base}/subscription/stuck/preview/{action}")[1]
        assert found["command"] == f"geminga subscriptions {command.format('persistent://public/default/t')}"
    assert ask(console, f"{base}/subscription/stuck/preview/redeliver")[0] == 501
    assert ask(console, f"{base}/subscription/none/explain")[0] == 404
    found = ask(console, f"{base}/tail?count=1")[1]
    assert [(each["id"], each["batchIndex"]) for each in found["messages"]] == [("9:4", 0), ("9:4", 1)]
    assert found["messages"][0]["publishTime"] == 1_795_341_600_000
    assert ask(console, f"{base}/tail?from={found['next']}")[1]["messages"] == []


def test_other_requests_are_forwarded(console):
    assert ask(console, "/admin/v2/brokers/version") == (200, "4.0.4")
    assert ask(console, "/admin/v2/nothing/here")[0] == 404
    assert ask(console, "/metrics")[0] == 404, "admin REST alone"
    assert ask(console, "/console/api/advice?rate=0&fill=1")[1]["verdict"] == "quiet"


def test_tokens_are_forwarded_and_cached_rows_are_kept_apart(open_port, open_console):
    apache = open_port(Apache("secret").application)
    plain = open_console(apache.url)
    board = "/admin/v2/geminga/subscriptions"
    assert ask(plain, board)[0] == 401
    assert ask(plain, board, Authorization="Bearer secret")[0] == 200
    assert ask(plain, board)[0] == 401
    assert ask(plain, board, Authorization="Bearer other")[0] == 401
    assert ask(open_console(apache.url, auth_plugin="token", auth_params="token:secret"), board)[0] == 200


def test_requests_with_a_foreign_host_or_origin_are_refused(console):
    assert ask(console, "/admin/v2/clusters", Host="attacker.example.com")[0] == 421
    assert ask(console, "/admin/v2/clusters", Origin="http://attacker.example.com")[0] == 403


def test_an_unreachable_broker_is_reported(open_console):
    status, found = ask(open_console("http://127.0.0.1:9"), "/admin/v2/geminga/subscriptions")
    assert status == 502
    assert "no answer from http://127.0.0.1:9" in found["reason"]


def test_reports_of_a_geminga_broker_are_forwarded(open_console):
    import geminga

    with geminga.embedded() as running, running.client() as client:
        client.subscribe("t", "s").close()
        url = open_console(running.admin_url + "/")
        while not (found := ask(url, "/admin/v2/geminga/subscriptions")[1])["complete"]:
            pass
        assert [row["subscription"] for row in found["rows"]] == ["s"]
        assert ask(url, "/admin/v2/geminga/overview")[1]["version"].startswith("Geminga")
        path = "/admin/v2/persistent/public/default/t/subscription/s"
        assert ask(url, f"{path}/holes")[1]["entries"] == []
        assert ask(url, f"{path}/skip_all", "POST")[0] == 204


@pytest.mark.parametrize(
    "url", ["localhost:8080", "ftp://x", "http://", "http://x?y", "http://a,b", "http://a:b"]
)
def test_an_invalid_address_is_refused(url):
    with pytest.raises(InvalidConfiguration, match="admin_url="):
        Remote(Cluster(admin_url=url))


def test_cookies_of_the_broker_are_not_sent_with_other_requests(answering, open_console):
    """A cookie, as gateways before a Pulsar give one to who brought a token."""
    brought: list[str] = []

    async def tenants(request: web.Request) -> web.Response:
        brought.append(request.headers.get("Cookie", ""))
        answer = web.json_response([])
        answer.set_cookie("session", "of the first")
        return answer

    console = open_console(answering("/admin/v2/tenants", tenants).replace("127.0.0.1", "localhost"))
    assert ask(console, "/admin/v2/tenants", Authorization="Bearer first")[0] == 200
    assert ask(console, "/admin/v2/tenants")[0] == 200
    assert brought == ["", ""]


def test_a_long_answer_is_forwarded_whole(answering, open_console):
    async def long(_request: web.Request) -> web.Response:
        return web.json_response(list(range(1_000_000)))

    console = open_console(answering("/admin/v2/broker-stats/topics", long))
    assert ask(console, "/admin/v2/broker-stats/topics") == (200, list(range(1_000_000)))


class TwoBrokers:
    """Two brokers of a cluster: the first one leads to ``there`` with ``status``."""

    def __init__(
        self, open_port: Callable[..., Port], status: int, name: str = "localhost", **led: str
    ) -> None:
        self.told: list[tuple[str, str, str, str, bytes]] = []
        self._status, self._led = status, led
        self.second = open_port(lambda: self._application(self._note))
        self.there = self.second.url.replace("127.0.0.1", name)
        self.first = open_port(lambda: self._application(self._lead))

    def _application(self, handler: Any) -> web.Application:
        application = web.Application()
        application.router.add_route("*", "/{rest:.*}", handler)
        return application

    async def _note(self, request: web.Request) -> web.Response:
        headers = request.headers
        self.told.append(
            (request.method, request.raw_path, headers.get("Authorization", ""),
             headers.get("Content-Type", ""), await request.read())
        )  # fmt: skip
        return web.json_response({"from": "the second"})

    async def _lead(self, request: web.Request) -> web.Response:
        location = self._led.get("location", "{there}{path}")
        where = location.format(there=self.there, path=request.raw_path)
        return web.Response(status=self._status, headers={"Location": where})


PERMISSIONS = "/admin/v2/persistent/public/default/t/permissions/role?x=%2F"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize("status", [307, 308])
def test_redirects_to_another_broker_keep_method_body_and_credentials(
    open_port, open_console, method, status
):
    """To another host's name: with method, body and the credentials of who asks."""
    cluster = TwoBrokers(open_port, status)
    console = open_console(cluster.first.url)
    body = b"[]" if method in ("POST", "PUT") else None
    special = "application/vnd.partitioned-topic-metadata+json"  # selects one of two calls of the same path
    headers = {"Authorization": "Bearer secret", "Content-Type": special}
    answer = web_requests.ask(console + PERMISSIONS, method, body, **headers)
    assert answer.document == {"from": "the second"}
    ((told, path, token, kind, sent),) = cluster.told
    assert (told, path, token) == (method, PERMISSIONS, "Bearer secret")
    assert sent == (body or b"")
    assert kind == special or body is None


def test_credentials_that_no_header_holds_are_refused(open_port, open_console):
    cluster = TwoBrokers(open_port, 307)
    status, found = ask(open_console(cluster.first.url), PERMISSIONS, Authorization="Bearer \xff\xfe")
    assert status == 502
    assert "the credentials hold a character that HTTP headers do not allow" in found["reason"]


def test_redirects_keep_the_consoles_credentials(open_port, open_console):
    cluster = TwoBrokers(open_port, 307)
    console = open_console(cluster.first.url, auth_plugin="token", auth_params="token:own")
    assert ask(console, PERMISSIONS)[0] == 200
    assert [token for _, _, token, _, _ in cluster.told] == ["Bearer own"]


@pytest.mark.parametrize(
    ("status", "method", "led", "why"),
    [
        (302, "GET", {}, "credentials are not sent there"),
        (301, "GET", {"location": "{there}/oauth2/authorize"}, "credentials are not sent there"),
        (307, "GET", {"location": "{there}/oauth2/authorize"}, "credentials are not sent there"),
        (307, "POST", {"location": "ftp://localhost{path}"}, "not an HTTP address"),
        (303, "POST", {"location": "{path}"}, "answers POST with 303"),
        (307, "GET", {"location": "{path}"}, "too often"),
        (307, "GET", {"location": "http://localhost:1{path}"}, "no answer from http://localhost:1"),
    ],
)
def test_redirects_out_of_the_cluster_are_refused(open_port, open_console, status, method, led, why):
    cluster = TwoBrokers(open_port, status, **led)
    console = open_console(cluster.first.url)
    refused, found = ask(console, PERMISSIONS, method, Authorization="Bearer secret")
    assert refused == 502
    assert why in found["reason"]
    assert cluster.told == []


def test_a_302_within_the_host_is_followed_for_get(open_port, open_console):
    cluster = TwoBrokers(open_port, 302, name="127.0.0.1")
    console = open_console(cluster.first.url)
    assert ask(console, PERMISSIONS)[0] == 200
    assert len(cluster.told) == 1


# --- several clusters ---
class NotingBroker:
    """A broker that notes who asks what, and answers with a page."""

    def __init__(self, open_port: Callable[..., Port]) -> None:
        self.asked: list[tuple[str, str]] = []
        application = web.Application()
        application.router.add_route("*", "/{rest:.*}", self._answer)
        self.url = open_port(lambda: application).url

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.raw_path, request.headers.get("Authorization", "")))
        return web.Response(text="<script>alert(1)</script>", content_type="text/html")


@pytest.fixture
def three(open_port):
    """A console of three clusters, and their brokers."""
    brokers = {name: NotingBroker(open_port) for name in ("prod", "test", "eu_2.x-y")}
    own = {"prod": {"auth_plugin": "token", "auth_params": "token:of-prod"}}

    def make() -> web.Application:
        clusters = {name: Cluster(admin_url=each.url, **own.get(name, {})) for name, each in brokers.items()}
        return make_application({name: Remote(each) for name, each in clusters.items()}, SETTINGS)

    return open_port(make).url, brokers


def test_clusters_to_choose_from_are_named_without_addresses_and_tokens(three, console):
    url, _ = three
    status, found = ask(url, "/console/api/clusters")
    assert (status, [each["name"] for each in found]) == (200, ["prod", "test", "eu_2.x-y"])
    assert found[:2] == [{"name": "prod", "path": "/"}, {"name": "test", "path": "/cluster/test/"}]
    for each in found:
        page = web_requests.ask(url + each["path"])
        assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert ask(url, each["path"] + "console/api/clusters")[1] == found
    assert ask(console, "/console/api/clusters") == (200, []), "one cluster is no choice"


@pytest.mark.parametrize("name", ["a/b", "..", "", "a%2Fb", "a?b", "café", "a\n"])
def test_a_name_that_cannot_be_part_of_an_address_is_refused(name):
    one = Remote(Cluster(admin_url="http://127.0.0.1:9"))
    with pytest.raises(InvalidConfiguration, match="cluster="):
        make_application({"first": one, name: one}, SETTINGS)


def test_a_request_goes_to_the_cluster_of_its_path_alone(three):
    url, brokers = three
    paths = {each["name"]: each["path"] for each in ask(url, "/console/api/clusters")[1]}
    for name, path in paths.items():
        web_requests.ask(f"{url}{path}admin/v2/x%2Fy?a=%20b")
        assert brokers[name].asked.pop() == ("/admin/v2/x%2Fy?a=%20b", "Bearer of-prod" * (name == "prod"))
        web_requests.ask(f"{url}{path}admin/v2/x", Authorization="Bearer mine")
        assert brokers[name].asked.pop() == ("/admin/v2/x", "Bearer mine")
        assert not any(each.asked for each in brokers.values())
    assert web_requests.ask(f"{url}/cluster/none/admin/v2/x").status == 404
    assert not any(each.asked for each in brokers.values())


def test_a_page_of_a_broker_cannot_act_on_another(three):
    """It has the origin of the console, whose credentials serve the others."""
    url, _ = three
    for path in ("/admin/v2/x", "/cluster/test/admin/v2/x"):
        answer = web_requests.ask(url + path)
        assert answer.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    for path in ("/admin/v2/x", "/cluster/test/admin/v2/x", "/cluster/test/", "/console/api/clusters"):
        assert ask(url, path, Origin="http://attacker.example.com")[0] == 403
        assert ask(url, path, Sec_Fetch_Site="cross-site")[0] == 403
        assert ask(url, path, Host="attacker.example.com")[0] == 421


# --- masked fields ---
def test_masked_fields_do_not_reach_the_browser(open_port):
    import geminga

    with geminga.embedded() as running, running.client() as client:
        client.subscribe("t", "s").close()
        producer = client.create_producer("t", batching_enabled=False)
        producer.send(b'{"id": 1, "card": "4111"}', properties={"card": "4111"}, partition_key="4111")
        remote = Remote(Cluster(admin_url=running.admin_url), Masks(["public/default/*=card,key"]))
        url = open_port(lambda: make_application({"there": remote}, SETTINGS)).url
        base = "/admin/v2/persistent/public/default/t"
        (first,) = ask(url, f"{base}/messages?from=earliest")[1]["messages"]
        assert first["masked"]
        assert (first["key"], first["properties"]) == ("•••", {"card": "•••"})
        for path in (
            f"{base}/messages?from=earliest", f"{base}/tail", f"{base}/subscription/s/open",
            f"{base}/message/{first['id']}",
        ):  # fmt: skip
            answer = ask(url, path)
            assert (answer[0], _payloads(answer[1])) == (200, ['{"id": 1, "card": "•••"}']), path
        assert ask(url, f"{base}/messages?from=earliest&text=4111")[1]["messages"] == []
        ledger, _, entry = first["id"].partition(":")
        for path in (
            f"{base}/ledger/{ledger}/entry/{entry}", f"{base}/ledger/{ledger}/%65ntry/{entry}",
            f"{base}/subscription/s/position/1", f"{base}/examinemessage?initialPosition=earliest",
        ):  # fmt: skip
            assert (ask(running.admin_url, path)[0], ask(url, path)[0]) == (200, 403), path
        assert _payloads(ask(url, f"{base}/%6Dessages?from=earliest")[1]) == ['{"id": 1, "card": "•••"}']
        for path in (f"{base}//tail", f"{base}/message/0:0/"):
            assert ask(url, path)[0] == 403, path
        for body in ({"contains": "4111"}, {"key": "4111"}):
            sent = {"topic": "t", "subscription": "s", "preview": True, **body}
            assert web_requests.ask(f"{url}/console/api/redrive", "POST", sent).status == 403
        sent = {"topic": "t", "subscription": "s", "preview": True}
        assert web_requests.ask(f"{url}/console/api/redrive", "POST", sent).status == 404  # no dead letters
        client.subscribe("empty", "s").close()
        empty = ask(url, "/admin/v2/persistent/public/default/empty/messages?older=true")
        assert empty == (200, {"messages": [], "next": "-1:-1", "examined": 0, "left": 0})
        assert ask(url, f"{base}/stats")[0] == 200
        assert ask(url, f"{base}/messageTTL")[0] == 200


def test_masked_avro_is_shown_while_its_schema_is_certain(open_port):
    """REST does not name the version of a message's schema."""
    import geminga

    fields = [{"name": name, "type": "string"} for name in ("card", "city")]
    first, second = (
        geminga.schema.AvroSchema(None, {"type": "record", "name": "Order", "fields": fields + more})
        for more in ([], [{"name": "note", "type": "string", "default": ""}])
    )
    with geminga.embedded() as running, running.client() as client:
        client.create_producer("t", schema=first).send({"card": "4111", "city": "Bern"})
        remote = Remote(Cluster(admin_url=running.admin_url), Masks(["public/default/*=card"]))
        url = open_port(lambda: make_application({"there": remote}, SETTINGS)).url
        path = "/admin/v2/persistent/public/default/t/messages?from=earliest"
        assert _payloads(ask(url, path)[1]) == ['{"card": "•••", "city": "Bern"}']
        client.create_producer("t", schema=second).close()
        (message,) = ask(url, path)[1]["messages"]
        assert (message["payload"], message["problem"]) == ("", NOT_SHOWN)


@pytest.mark.parametrize("up", ["..", "%2e%2e", "..;", ".%2E;x"])
def test_a_path_that_a_broker_would_resolve_to_another_is_not_forwarded(open_port, up):
    asked: list[str] = []

    async def anything(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({})

    broker = web.Application()
    broker.router.add_route("*", "/{rest:.*}", anything)
    remote = Remote(Cluster(admin_url=open_port(lambda: broker).url), Masks(["public/default/*=card"]))
    url = open_port(lambda: make_application({"there": remote}, SETTINGS)).url
    entry = "admin/v2/persistent/public/default/t/ledger/1/entry/2"
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.request("GET", f"/lookup/v2/{up}/{up}/{entry}")  # other clients resolve it themselves
    assert connection.getresponse().status == 400
    connection.close()
    assert asked == []
    assert ask(url, "/lookup/v2/topic/persistent/public/default/t..x")[0] == 200


def _payloads(found: Any) -> list[str]:
    """The payloads of an answer."""
    messages = found if isinstance(found, list) else found.get("messages", [found])
    return [base64.b64decode(each["payload"]).decode() for each in messages]


# --- company accounts ---
def test_a_proxy_signs_people_in_with_identity_tokens(open_port, tmp_path):
    """As docs/security.md describes: the proxy adds the token, the broker verifies it."""
    issuer = rsa.generate_private_key(65537, 2048)
    published = json.loads(RSAAlgorithm.to_jwk(issuer.public_key()))
    key = jwt.PyJWK({**published, "use": "sig", "kid": "1", "alg": "RS256"}).key
    pem = tmp_path / "issuer.pem"
    pem.write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    settings = dataclasses.replace(
        SETTINGS, token_public_key=str(pem), token_role_claim="email", token_audience="console",
        super_user_roles=("ada@example.com",), web_hosts=("console.example.com",),
    )  # fmt: skip
    broker = EmbeddedBroker(settings, site=attach)

    def proxy(email: str, audience: str = "console") -> str:
        claims = {"sub": "4f2a", "email": email, "aud": audience, "exp": time.time() + 60}
        token = jwt.encode(claims, issuer, algorithm="RS256")
        return open_port(lambda: _proxy_to(broker.admin_url, token)).url

    page = {"Host": "console.example.com", "Origin": "https://console.example.com"}
    body = {"topic": "t", "payload": "x"}
    try:
        assert web_requests.ask(broker.admin_url + "/admin/v2/tenants").status == 401
        ada, bob = proxy("ada@example.com"), proxy("bob@example.com")
        assert web_requests.ask(f"{ada}/", **page).status == 200
        assert web_requests.ask(f"{ada}/admin/v2/tenants", **page).document == ["public", "pulsar"]
        assert web_requests.ask(f"{ada}/console/api/publish", "POST", body, **page).status == 200
        assert web_requests.ask(f"{bob}/admin/v2/geminga/subscriptions", **page).status == 200
        assert web_requests.ask(f"{bob}/admin/v2/tenants", **page).status == 403
        assert web_requests.ask(f"{bob}/console/api/publish", "POST", body, **page).status == 409
        stranger = proxy("ada@example.com", "another application")
        assert web_requests.ask(f"{stranger}/admin/v2/tenants", **page).status == 401
        assert web_requests.ask(f"{ada}/admin/v2/tenants", Host="attacker.example.com").status == 421
    finally:
        broker.close()


def _proxy_to(url: str, token: str) -> web.Application:
    """A proxy that passes requests on with the token of the person who has signed in."""

    async def pass_on(request: web.Request) -> web.Response:
        headers = {name: value for name, value in request.headers.items() if name != "Content-Length"}
        headers |= {"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"}
        async with (
            aiohttp.ClientSession() as session,
            session.request(request.method, url + request.path_qs, headers=headers, data=await request.read())
            as found,
        ):  # fmt: skip
            return web.Response(status=found.status, body=await found.read())

    application = web.Application()
    application.router.add_route("*", "/{rest:.*}", pass_on)
    return application
