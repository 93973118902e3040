"""Route × role × tenant: every route of the web port, without credentials and with those of each role."""

import http.client
import json
import re
from functools import cache
from typing import Any
from unittest.mock import MagicMock

import pytest
from aiohttp import web

import geminga
from geminga.broker.admin.auth import RequiredPermission
from geminga.broker.admin.routes import Route, add_routes
from geminga.broker.admin.web import all_routes
from geminga.broker.rules.tokens import make_token
from geminga.broker.runtime import rate_limited_logger
from geminga.broker.serving.embedded import embedded
from tests.broker.conftest import KEY, SECRET, said

ROLES = ("admin", "producer", "consumer", "other-admin", "metrics", "nobody")
TOPIC = "persistent://mine/ns/t"


@cache
def token(role: str) -> str:
    return make_token(role, KEY, "HS256")


_connections: dict[str, http.client.HTTPConnection] = {}
"""One for each address: thousands of requests are made here."""


def call(
    base: str, method: str, path: str, role: str | None, body: Any = None, **headers: str
) -> tuple[int, bytes]:
    sent = {"Content-Type": "application/json", **headers}
    if role is not None:
        sent["Authorization"] = f"Bearer {token(role)}"
    data = None if body is None else json.dumps(body).encode()
    address, _, root = base.removeprefix("http://").partition("/")
    if address not in _connections:
        _connections[address] = http.client.HTTPConnection(address, timeout=60)
    connection = _connections[address]
    connection.request(method, f"/{root}{path}" if root else path, data, sent)
    answer = connection.getresponse()
    return answer.status, answer.read()


@pytest.fixture(scope="module")
def broker():
    with (
        pytest.MonkeyPatch.context() as patch,
        embedded(token_secret_key=SECRET, super_user_roles=("super",), metrics_roles=("metrics",)) as running,
    ):
        patch.setattr(rate_limited_logger, "LINES_MAX", 10_000)  # these tests are refused very often
        admin = f"{running.admin_url}/admin/v2"
        for tenant, role in (("mine", "admin"), ("others", "other-admin")):
            info = {"adminRoles": [role], "allowedClusters": ["standalone"]}
            assert call(admin, "PUT", f"/tenants/{tenant}", "super", info)[0] == 204
            assert call(admin, "PUT", f"/namespaces/{tenant}/ns", role)[0] == 204
        for role, actions in (("producer", ["produce"]), ("consumer", ["consume"])):
            assert call(admin, "POST", f"/namespaces/mine/ns/permissions/{role}", "admin", actions)[0] == 204
        assert call(admin, "PUT", "/persistent/mine/ns/t", "admin")[0] == 204
        yield running


PERMISSIONS = {route.key: route.needs for route in all_routes(MagicMock())}


def test_only_the_health_checks_need_nothing():
    nothing = {key for key, needs in PERMISSIONS.items() if needs is RequiredPermission.NOTHING}
    assert nothing == {("GET", "/status.html"), ("GET", "/livez"), ("GET", "/readyz")}


def test_fixed_parts_of_a_path_come_before_variable_ones():
    async def handler(request: web.Request) -> web.Response:
        return web.Response()

    router = web.UrlDispatcher()
    paths = ("/a/{x}", "/a/{y:[0-9]+}", "/a/b")
    add_routes(router, [Route("GET", path, RequiredPermission.NOTHING, handler) for path in paths])
    assert [each.canonical for each in router.resources()] == ["/a/b", "/a/{y}", "/a/{x}"]


ROUTES = sorted(PERMISSIONS)
VALUES = {
    "domain": "persistent", "namespace": "ns", "topic": "t", "subscription": "sub", "cluster": "standalone",
    "bundle": "0x00000000_0x40000000",
}  # fmt: skip


def path_of(canonical: str, tenant: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda m: {**VALUES, "tenant": tenant}.get(m[1], "1"), canonical)


def test_every_route_asks_for_credentials(broker):
    forged = f"Bearer {make_token('super', b'k' * 32, 'HS256')}"
    for method, canonical in ROUTES:
        path = path_of(canonical, "mine")
        if PERMISSIONS[method, canonical] is RequiredPermission.NOTHING:
            assert call(broker.admin_url, method, path, None)[0] == 200
            continue
        for header in (None, "Bearer", "Bearer x.y.z", forged, "Basic eA=="):
            headers = {} if header is None else {"Authorization": header}
            status, body = call(broker.admin_url, method, path, None, **headers)
            assert status == 401, (method, path, header)
            assert set(json.loads(body)) == {"reason"}


MAY = {
    RequiredPermission.CREDENTIALS: set(ROLES),
    RequiredPermission.SUPER_USER: set(),
    RequiredPermission.METRICS: {"metrics"},
    RequiredPermission.ADMINISTRATOR: {"admin"},
    RequiredPermission.LIST: {"admin", "consumer"},
    RequiredPermission.SUBSCRIPTIONS: {"admin", "consumer"},
    RequiredPermission.LOOK: {"admin", "producer", "consumer"},
    RequiredPermission.PRODUCE: {"admin", "producer"},
    RequiredPermission.CONSUME: {"admin", "consumer"},
}


def test_each_route_is_allowed_only_to_its_roles_and_tenants(broker):
    """Refusals are tried on all routes; what is allowed only where the call changes nothing."""
    for method, canonical in ROUTES:
        needs = PERMISSIONS[method, canonical]
        if needs is RequiredPermission.NOTHING:
            continue
        for role in ROLES:
            for tenant in ("mine", "others") if "{tenant}" in canonical else ("mine",):
                allowed = MAY[needs]
                if tenant == "others" and needs is not RequiredPermission.SUPER_USER:
                    allowed = {"other-admin"}
                if role in allowed and method != "GET":
                    continue
                path = path_of(canonical, tenant)
                status, body = call(broker.admin_url, method, path, role)
                assert (status == 403) == (role not in allowed), (method, path, role, status, body)
        if method == "GET":
            assert call(broker.admin_url, method, path_of(canonical, "mine"), "super")[0] not in (401, 403)


def test_a_refusal_does_not_reveal_existing_topics(broker):
    for role, status in (("nobody", 403), (None, 401)):
        told = set()
        for place in ("mine/ns/t", "mine/ns/no", "mine/no/no", "no/no/no"):
            found, body = call(broker.admin_url, "GET", f"/admin/v2/persistent/{place}/stats", role)
            assert found == status
            told.add(body.decode().replace(place, "PLACE"))
        assert len(told) == 1
    assert call(broker.admin_url, "GET", "/admin/v2/no/such/path", None)[0] == 401
    assert call(broker.admin_url, "GET", "/admin/v2/no/such/path", "nobody")[0] == 404


@pytest.mark.parametrize(
    "place",
    ["mine%2Fns/x/t", "mine/ns%2F..%2F..%2Fothers/t", "mine/..%2Fothers/t", "mi%6ee/ns/t", "mine/ns/%00"],
)
def test_names_cannot_leave_their_tenant(broker, place):
    for role in ("other-admin", "nobody"):
        status, _ = call(broker.admin_url, "GET", f"/admin/v2/persistent/{place}/stats", role)
        assert status in (403, 404, 412)
        assert call(broker.admin_url, "DELETE", f"/admin/v2/persistent/{place}", role)[0] in (403, 404, 412)


def test_roles_cannot_act_for_other_roles(broker):
    headers = {"X-Original-Principal": "super"}
    assert call(broker.admin_url, "GET", "/admin/v2/tenants", "admin", **headers)[0] == 403
    assert call(broker.admin_url, "GET", "/admin/v2/tenants", "super", **headers)[0] == 200


def test_secrets_are_not_in_the_configuration(broker):
    status, body = call(broker.admin_url, "GET", "/admin/v2/brokers/configuration/runtime", "super")
    assert status == 200
    assert b"AAECAwQF" not in body
    assert "AAECAwQF" not in repr(broker.settings)
    shown = json.loads(body)
    assert shown["authenticationEnabled"] == "true"
    assert shown["superUserRoles"] == "super"


def test_grants_and_revocations_count_at_once(broker):
    topic = "/admin/v2/persistent/mine/ns/t/permissions"
    assert call(broker.admin_url, "POST", f"{topic}/temp", "admin", ["produce"])[0] == 204
    authentication = geminga.AuthenticationToken(token("temp"))
    with geminga.Client(broker.service_url, authentication, operation_timeout_seconds=5) as client:
        client.create_producer(TOPIC).send(b"1")
        with pytest.raises(geminga.exceptions.AuthorizationError):
            client.subscribe(TOPIC, "s")
        with pytest.raises(geminga.exceptions.AuthorizationError):
            client.create_producer("persistent://mine/ns/other")
        assert call(broker.admin_url, "DELETE", f"{topic}/temp", "admin")[0] == 204
        with pytest.raises(geminga.exceptions.AuthorizationError):
            client.create_producer(TOPIC)
    malformed = call(broker.admin_url, "POST", f"{topic}/temp", "admin", ["everything"])
    assert malformed[0] == 412
    assert b"produce" in malformed[1]


def test_changes_and_refusals_are_audited(broker, caplog):
    caplog.set_level("INFO", "geminga.audit")
    base = f"{broker.admin_url}/admin/v2"

    def failed_logins() -> int:
        metrics = call(broker.admin_url, "GET", "/metrics", "super")[1].decode()
        found = re.search(r'geminga_logins_failed_total\{.*port="web"\} (\d+)', metrics)
        assert found
        return int(found[1])

    before = failed_logins()
    for method, path, role in (
        ("PUT", "/persistent/mine/ns/audited", "admin"),
        ("GET", "/persistent/mine/ns", "admin"),
        ("DELETE", "/persistent/mine/ns/audited", "producer"),
        ("DELETE", "/persistent/mine/ns/audited", "admin"),
        ("DELETE", "/persistent/mine/ns/audited", "admin"),
        ("POST", "/brokers/configuration/ttlDurationDefaultInSeconds/7", "super"),
        ("DELETE", "/brokers/configuration/ttlDurationDefaultInSeconds", "super"),
        ("GET", "/tenants", None),
    ):
        call(base, method, path, role)
    call(base, "POST", "/namespaces/mine/ns/permissions/somebody", "admin", ["produce"])
    call(base, "GET", "/tenants", None, Authorization="Bearer canary")
    found = said(caplog, "geminga.audit")
    configuration = "/admin/v2/brokers/configuration/ttlDurationDefaultInSeconds"
    assert found == [
        f"{line} from 127.0.0.1"
        for line in (
            "204 PUT /admin/v2/persistent/mine/ns/audited by admin",
            "403 DELETE /admin/v2/persistent/mine/ns/audited by producer",
            "204 DELETE /admin/v2/persistent/mine/ns/audited by admin",
            "404 DELETE /admin/v2/persistent/mine/ns/audited by admin",
            f"204 POST {configuration}/7 by super",
            f"204 DELETE {configuration} by super",
            "401 GET /admin/v2/tenants by -",
            "204 POST /admin/v2/namespaces/mine/ns/permissions/somebody by admin",
            "401 GET /admin/v2/tenants by -",
        )
    ]
    assert "web port: login from 127.0.0.1 failed: Authentication required" in caplog.text
    assert "canary" not in caplog.text
    assert failed_logins() == before + 1
