"""The console for a broker elsewhere: passed on to a Geminga, derived where it is an Apache Pulsar."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import web_requests
from aiohttp import web

from geminga.broker.settings import BrokerSettings
from geminga.client.cluster import Cluster
from geminga.console.remote import Remote, make_application
from geminga.errors import InvalidConfiguration
from geminga.wire.batch import encode_plain_batch

SETTINGS = BrokerSettings(memory=True, port=0, web_port=0)
NOW = 1_800_000_000_000


def elsewhere(url: str, **shown: str) -> web.Application:
    """The console for the broker at an address."""
    return make_application(Remote(Cluster(admin_url=url, **shown)), SETTINGS)


class Port:
    """A web application on a thread of its own."""

    def __init__(self, make: Callable[[], web.Application]) -> None:
        self._loop = asyncio.new_event_loop()
        self._started, self._stop = threading.Event(), asyncio.Event()
        self._make = make
        self.url = ""
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))
        self._thread.start()
        assert self._started.wait(60)

    async def _serve(self) -> None:
        runner = web.AppRunner(self._make(), access_log=None, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._started.set()
        await self._stop.wait()
        await runner.cleanup()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        self._loop.close()


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


def _telling(found: Any) -> Any:
    async def tell(_request: web.Request) -> web.Response:
        return web.json_response(found)

    return tell


@pytest.fixture
def console(open_port):
    apache = open_port(Apache().application)
    return open_port(lambda: elsewhere(apache.url)).url


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


def test_tokens_are_forwarded_and_cached_rows_are_kept_apart(open_port):
    apache = open_port(Apache("secret").application)
    plain = open_port(lambda: elsewhere(apache.url)).url
    board = "/admin/v2/geminga/subscriptions"
    assert ask(plain, board)[0] == 401
    assert ask(plain, board, Authorization="Bearer secret")[0] == 200
    assert ask(plain, board)[0] == 401
    assert ask(plain, board, Authorization="Bearer other")[0] == 401
    given = open_port(
        lambda: make_application(
            Remote(Cluster(admin_url=apache.url, auth_plugin="token", auth_params="token:secret")), SETTINGS
        )
    ).url
    assert ask(given, board)[0] == 200


def test_requests_with_a_foreign_host_or_origin_are_refused(console):
    assert ask(console, "/admin/v2/clusters", Host="attacker.example.com")[0] == 421
    assert ask(console, "/admin/v2/clusters", Origin="http://attacker.example.com")[0] == 403


def test_an_unreachable_broker_is_reported(open_port):
    url = open_port(lambda: elsewhere("http://127.0.0.1:9")).url
    status, found = ask(url, "/admin/v2/geminga/subscriptions")
    assert status == 502
    assert "does not answer" in found["reason"]


def test_reports_of_a_geminga_broker_are_forwarded(open_port):
    import geminga

    with geminga.embedded() as running, running.client() as client:
        client.subscribe("t", "s").close()
        url = open_port(lambda: elsewhere(running.admin_url + "/")).url
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


def test_cookies_of_the_broker_are_not_sent_with_other_requests(open_port):
    """A cookie, as gateways before a Pulsar give one to who brought a token."""
    brought: list[str] = []

    async def tenants(request: web.Request) -> web.Response:
        brought.append(request.headers.get("Cookie", ""))
        answer = web.json_response([])
        answer.set_cookie("session", "of the first")
        return answer

    application = web.Application()
    application.router.add_get("/admin/v2/tenants", tenants)
    port = open_port(lambda: application)
    console = open_port(lambda: elsewhere(port.url.replace("127.0.0.1", "localhost"))).url
    assert ask(console, "/admin/v2/tenants", Authorization="Bearer first")[0] == 200
    assert ask(console, "/admin/v2/tenants")[0] == 200
    assert brought == ["", ""]


def test_a_long_answer_is_forwarded_whole(open_port):
    async def long(_request: web.Request) -> web.Response:
        return web.json_response(list(range(1_000_000)))

    application = web.Application()
    application.router.add_get("/admin/v2/broker-stats/topics", long)
    port = open_port(lambda: application)
    console = open_port(lambda: elsewhere(port.url)).url
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
def test_redirects_to_another_broker_keep_method_body_and_credentials(open_port, method, status):
    """To another host's name: with method, body and the credentials of who asks."""
    cluster = TwoBrokers(open_port, status)
    console = open_port(lambda: elsewhere(cluster.first.url)).url
    body = b"[]" if method in ("POST", "PUT") else None
    answer = web_requests.ask(console + PERMISSIONS, method, body, Authorization="Bearer secret")
    assert answer.document == {"from": "the second"}
    ((told, path, token, kind, sent),) = cluster.told
    assert (told, path, token) == (method, PERMISSIONS, "Bearer secret")
    assert sent == (body or b"")
    assert kind == "application/json"


def test_redirects_keep_the_consoles_credentials(open_port):
    cluster = TwoBrokers(open_port, 307)
    shown = {"auth_plugin": "token", "auth_params": "token:own"}
    console = open_port(lambda: elsewhere(cluster.first.url, **shown)).url
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
        (307, "GET", {"location": "http://localhost:1{path}"}, "does not answer"),
    ],
)
def test_redirects_out_of_the_cluster_are_refused(open_port, status, method, led, why):
    cluster = TwoBrokers(open_port, status, **led)
    console = open_port(lambda: elsewhere(cluster.first.url)).url
    refused, found = ask(console, PERMISSIONS, method, Authorization="Bearer secret")
    assert refused == 502
    assert why in found["reason"]
    assert cluster.told == []


def test_a_302_within_the_host_is_followed_for_get(open_port):
    cluster = TwoBrokers(open_port, 302, name="127.0.0.1")
    console = open_port(lambda: elsewhere(cluster.first.url)).url
    assert ask(console, PERMISSIONS)[0] == 200
    assert len(cluster.told) == 1
