"""Sign-in with a company account at an issuer of OpenID Connect, by broker and ``geminga console``."""

import base64
import hashlib
import http.client
import re
import time
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from playwright.sync_api import Page, expect
from web_port import Port
from yarl import URL

from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.broker.settings import BrokerSettings
from geminga.client.cluster import Cluster
from geminga.console.remote import Remote, make_application
from geminga.console.site import attach
from geminga.errors import InvalidConfiguration

SECRET = "a secret/of the console"


class Issuer:
    """An issuer that knows one person; ``claims`` and ``discovery`` change its answers."""

    def __init__(self) -> None:
        self.key, self.kid = rsa.generate_private_key(65537, 2048), "first"
        self.claims: dict[str, Any] = {}
        self.discovery: dict[str, Any] = {}
        self.refusal: dict[str, str] = {}
        self.answer: dict[str, str] = {}
        self.methods: list[str] = []
        self.tokens: list[str] = []
        self.prompts: list[str] = []
        self.has_session: bool | None = True  # None: shows an error of its own instead of a silent answer
        self.has_form = False  # asks the person on a page of its own
        self._asked: dict[str, str] = {}
        # Another host name than the broker's: to a browser another site.
        self.url = remote_port(self._application).url.replace("127.0.0.1", "localhost")

    def _application(self) -> web.Application:
        application = web.Application()
        application.router.add_get("/.well-known/openid-configuration", self._discover)
        application.router.add_get("/authorize", self._authorize)
        application.router.add_post("/token", self._token)
        application.router.add_get("/keys", self._keys)
        return application

    async def _discover(self, _request: web.Request) -> web.Response:
        endpoints = {"authorization_endpoint": "/authorize?kept=1", "token_endpoint": "/token"}
        found = {name: self.url + path for name, path in endpoints.items()}
        found["jwks_uri"] = self.url + "/keys"
        return web.json_response({"issuer": self.url, **found, **self.discovery})

    async def _keys(self, _request: web.Request) -> web.Response:
        key = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return web.json_response({"keys": [{**key, "kid": self.kid, "use": "sig", "alg": "RS256"}]})

    async def _authorize(self, request: web.Request) -> web.Response:
        self._asked = dict(request.query)
        assert (request.query["response_type"], request.query["kept"]) == ("code", "1")
        self.prompts.append(request.query.get("prompt", ""))
        given = self.refusal or {"code": "one"}
        if self.prompts[-1] == "none" and self.has_session is None:
            return web.Response(text="unknown prompt")
        if self.prompts[-1] == "none" and not self.has_session:
            given = {"error": "login_required"}
        back = URL(request.query["redirect_uri"]).with_query({**given, "state": request.query["state"]})
        if self.has_form and self.prompts[-1] != "none":
            return web.Response(text=f"<a href='{back}'>Continue</a>", content_type="text/html")
        raise web.HTTPFound(back)

    async def _token(self, request: web.Request) -> web.Response:
        form, asked = await request.post(), self._asked
        digest = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
        assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == asked["code_challenge"]
        assert (form["code"], form["redirect_uri"]) == ("one", asked["redirect_uri"])
        if "Authorization" in request.headers:
            self.methods.append("basic")
            pair = base64.b64decode(request.headers["Authorization"].removeprefix("Basic ")).decode()
            assert pair == "console:a+secret%2Fof+the+console"
        else:
            self.methods.append("post" if "client_secret" in form else "none")
            assert form.get("client_secret", SECRET) == SECRET
        claims = {
            "iss": self.url, "sub": "4f2a", "email": "ada@example.com", "aud": "console",
            "nonce": asked["nonce"], "exp": time.time() + 3600, **self.claims,
        }  # fmt: skip
        self.tokens.append(jwt.encode(claims, self.key, algorithm="RS256", headers={"kid": self.kid}))
        found = {"access_token": "x", "token_type": "Bearer", "id_token": self.tokens[-1]}
        return web.json_response(self.answer or found)


_opened: list[Any] = []


def remote_port(make: Any) -> Any:
    _opened.append(Port(make))
    return _opened[-1]


@pytest.fixture(autouse=True)
def ports():
    yield
    while _opened:
        _opened.pop().close()


@pytest.fixture
def issuer():
    return Issuer()


@pytest.fixture
def settings(issuer, tmp_path):
    """Those of a broker that accepts the issuer's tokens and has a secret there."""
    (tmp_path / "issuer.pem").write_bytes(
        issuer.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    (tmp_path / "secret").write_text(SECRET + "\n")
    return {
        "memory": True, "port": 0, "web_port": 0, "token_public_key": str(tmp_path / "issuer.pem"),
        "token_role_claim": "email", "token_audience": "console", "super_user_roles": ("ada@example.com",),
        "sign_in_issuer": issuer.url, "sign_in_client_id": "console",
        "sign_in_client_secret": tmp_path / "secret",
    }  # fmt: skip


@pytest.fixture
def broker(settings):
    with EmbeddedBroker(BrokerSettings(**settings), site=attach) as running:
        yield running


def sign_in(page: Page) -> None:
    page.get_by_role("button", name="Sign in with your company account").click()


def test_a_person_signs_in_and_returns_to_the_page(broker, issuer, page):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{broker.admin_url}/#/namespaces")
    sign_in(page)
    expect(page.get_by_role("row").get_by_text("public", exact=True)).to_be_visible()
    assert page.url == f"{broker.admin_url}/#/namespaces"
    (token,) = issuer.tokens
    assert not any(token in each for each in asked)
    assert token not in page.content()
    stored = page.evaluate("[{...localStorage}, {...sessionStorage}]")
    assert stored == [{}, {"shown": "#/namespaces", "signed-in": ""}]
    assert page.context.cookies() == []
    assert issuer.methods == ["basic"]


def test_back_from_the_issuer_leads_to_the_console(broker, issuer, page):
    issuer.has_form = True
    row, link = page.get_by_role("row").get_by_text("public", exact=True), page.get_by_text("Continue")
    page.goto("about:blank")
    page.goto(f"{broker.admin_url}/#/namespaces")
    sign_in(page)
    expect(link).to_be_visible()
    page.go_back()
    assert page.url == f"{broker.admin_url}/#/namespaces"
    sign_in(page)
    link.click()
    expect(row).to_be_visible()
    page.go_back()
    expect(link).to_be_visible()
    page.go_back()
    expect(row).to_be_visible()
    assert (page.url, issuer.prompts[-1]) == (f"{broker.admin_url}/#/namespaces", "none")
    page.go_back()
    assert page.url == "about:blank"


def test_after_a_reload_the_person_is_signed_in_silently_while_the_issuer_knows_them(broker, issuer, page):
    offer, facts = page.get_by_role("button", name="Sign in with"), page.locator(".facts").first
    page.goto(f"{broker.admin_url}/#/broker")
    sign_in(page)
    expect(facts).to_be_visible()
    page.reload()
    expect(facts).to_be_visible()
    assert (page.url, issuer.prompts) == (f"{broker.admin_url}/#/broker", ["", "none"])
    issuer.has_session = False
    for _ in range(2):
        page.reload()
        expect(offer).to_be_visible()
        expect(page.locator("dialog").get_by_role("alert")).to_have_count(0)
    assert issuer.prompts == ["", "none", "none"], "tried once"
    sign_in(page)
    expect(facts).to_be_visible()
    issuer.has_session = None
    page.reload()
    expect(page.get_by_text("unknown prompt")).to_be_visible()
    page.goto(broker.admin_url)
    expect(offer).to_be_visible()


def test_the_broker_uses_the_keys_that_the_issuer_publishes(issuer, settings, page):
    settings["token_public_key"] = issuer.url
    with EmbeddedBroker(BrokerSettings(**settings), site=attach) as broker:
        page.goto(f"{broker.admin_url}/#/namespaces")
        sign_in(page)
        expect(page.get_by_role("row").get_by_text("public", exact=True)).to_be_visible()


def test_a_token_that_the_broker_refuses_leads_back_to_the_sign_in(broker, issuer, page):
    issuer.claims = {"exp": time.time() - 60}
    page.goto(f"{broker.admin_url}/#/namespaces")
    sign_in(page)
    expect(page.get_by_role("alert").filter(has_text="expired")).to_be_visible()
    issuer.claims = {}
    sign_in(page)
    expect(page.get_by_role("row").get_by_text("public", exact=True)).to_be_visible()


def test_a_refusal_of_the_issuer_is_shown_as_text(broker, issuer, page):
    issuer.refusal = {"error": "access_denied", "error_description": '<b>"not you"</b>'}
    page.goto(broker.admin_url)
    sign_in(page)
    alert = page.locator("dialog").get_by_role("alert")
    expect(alert).to_have_text('The sign-in failed: access_denied: <b>"not you"</b>')


def test_a_console_of_several_clusters_keeps_their_sign_ins_apart(broker, issuer, settings, page):
    shown = {name: settings[name] for name in settings if name.startswith("sign_in")}
    remotes = {name: Remote(Cluster(admin_url=broker.admin_url)) for name in ("prod", "test")}
    hosts = BrokerSettings(memory=True, port=0, web_port=0, **shown)
    url = remote_port(lambda: make_application(remotes, hosts)).url
    page.goto(f"{url}/cluster/test/#/namespaces")
    sign_in(page)
    expect(page.get_by_role("row").get_by_text("public", exact=True)).to_be_visible()
    assert page.url == f"{url}/cluster/test/#/namespaces"
    page.get_by_label("Cluster").select_option("prod")
    expect(page.get_by_role("button", name="Sign in with your company account")).to_be_visible()


# --- requests without a browser ---
def get(url: str, **headers: str) -> tuple[int, dict[str, str], str]:
    """Send a request without following redirects."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    connection.request("GET", f"{parts.path}?{parts.query}", headers=headers)
    answer = connection.getresponse()
    found = {name.lower(): value for name, value in answer.getheaders()}
    text = answer.read().decode()
    connection.close()
    return answer.status, found, text


def begun(broker: EmbeddedBroker, **headers: str) -> tuple[dict[str, str], str]:
    """Begin a sign-in; return the parameters of the request to the issuer, and the cookie."""
    status, found, _ = get(f"{broker.admin_url}/console/login", **headers)
    assert (status, found["cache-control"]) == (302, "no-store")
    query = parse_qs(urlsplit(found["location"]).query)
    return {name: value for name, (value,) in query.items()}, found["set-cookie"]


def ended(broker: EmbeddedBroker, query: str, cookie: str) -> tuple[dict[str, str], dict[str, str]]:
    """Call back as a browser does; return the page's data and the headers."""
    status, headers, text = get(
        f"{broker.admin_url}/console/callback?{query}", Cookie=cookie.partition("; HttpOnly")[0],
        **{"Sec-Fetch-Site": "cross-site"},
    )  # fmt: skip
    assert (status, headers["cache-control"]) == (200, "no-store")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    root = re.search(r"<html([^>]*)>", text)
    return dict(re.findall(r'data-(\w+)="([^"]*)"', root[1])), headers


def test_a_sign_in_is_bound_to_the_browser_that_began_it(broker, issuer):
    asked, cookie = begun(broker)
    assert "; Path=/console/callback; SameSite=Lax" in cookie
    assert ("HttpOnly" in cookie, "Max-Age=600" in cookie, "Secure" in cookie) == (True, True, False)
    _, other = begun(broker)
    for query, shown in (
        ("code=one", cookie), (f"code=one&state={asked['state']}", other), ("code=one&state=%ff", cookie),
        (f"code=one&state={asked['state']}", ""), ("error=x&error_description=y", cookie),
    ):  # fmt: skip
        data, _ = ended(broker, query, shown)
        problem = "The sign-in failed: it was not begun in this browser, or too long ago"
        assert data == {"token": "", "problem": problem}
    assert issuer.tokens == []


def test_two_tabs_may_sign_in_at_once(broker, issuer):
    (first, one), (second, other) = begun(broker), begun(broker)
    cookies = "; ".join(each.partition(";")[0] for each in (one, other))
    for asked in (first, second):
        get(f"{issuer.url}/authorize?{urlencode(asked)}")
        data, _ = ended(broker, f"code=one&state={asked['state']}", cookies)
        assert data == {"token": issuer.tokens[-1]}


def test_an_error_that_is_no_valid_text_is_shown(broker, issuer):
    issuer.answer = {"error": "\ud800 refused"}
    asked, cookie = begun(broker)
    get(f"{issuer.url}/authorize?{urlencode(asked)}")
    data, _ = ended(broker, f"code=one&state={asked['state']}", cookie)
    assert data["problem"] == "The sign-in failed: ? refused"


@pytest.mark.parametrize(
    "claims", [{"iss": "https://other"}, {"aud": ["other"]}, {"nonce": "other"}, {"nonce": None}]
)
def test_tokens_for_another_issuer_application_or_sign_in_are_refused(broker, issuer, claims):
    issuer.claims = claims
    asked, cookie = begun(broker)
    get(f"{issuer.url}/authorize?{urlencode(asked)}")
    data, headers = ended(broker, f"code=one&state={asked['state']}", cookie)
    assert data["token"] == ""
    assert data["problem"].endswith("for another issuer, application or sign-in")
    assert f'geminga-sign-in-{asked["state"]}=""' in headers["set-cookie"]


@pytest.mark.parametrize(
    ("discovery", "problem"),
    [
        ({"issuer": "https://other"}, "names another issuer"),
        ({"authorization_endpoint": "http://other.example.com/"}, "names no authorization_endpoint with"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "names no authorization_endpoint with https"),
        ({"authorization_endpoint": "https://host:99999/"}, "Port out of range"),
    ],
)
def test_an_issuer_of_another_form_is_refused(broker, issuer, discovery, problem):
    issuer.discovery = discovery
    status, headers, text = get(f"{broker.admin_url}/console/login")
    assert (status, "set-cookie" in headers, problem in text) == (200, False, True)


@pytest.mark.parametrize(("supported", "method"), [(["client_secret_post"], "post"), (None, "none")])
def test_the_client_authenticates_as_the_issuer_supports(issuer, settings, supported, method):
    if supported is None:
        settings["sign_in_client_secret"] = None
    else:
        issuer.discovery = {"token_endpoint_auth_methods_supported": supported}
    with EmbeddedBroker(BrokerSettings(**settings), site=attach) as broker:
        asked, cookie = begun(broker)
        get(f"{issuer.url}/authorize?{urlencode(asked)}")
        data, _ = ended(broker, f"code=one&state={asked['state']}", cookie)
        assert (data, issuer.methods) == ({"token": issuer.tokens[0]}, [method])


def test_a_client_secret_that_cannot_be_read_is_named(issuer, settings):
    settings["sign_in_client_secret"].unlink()
    with EmbeddedBroker(BrokerSettings(**settings), site=attach) as broker:
        asked, cookie = begun(broker)
        data, _ = ended(broker, f"code=one&state={asked['state']}", cookie)
        assert data["problem"].endswith("sign_in_client_secret cannot be read (FileNotFoundError)")


def test_behind_a_proxy_with_tls_the_callback_and_the_cookie_are_secure(broker):
    asked, cookie = begun(broker, **{"X-Forwarded-Proto": "https"})
    host = urlsplit(broker.admin_url).netloc
    assert asked["redirect_uri"] == f"https://{host}/console/callback"
    assert "; Secure" in cookie
    status, *_ = get(f"{broker.admin_url}/console/login", Host="attacker.example.com")
    assert status == 421


def test_without_an_issuer_there_is_no_sign_in(settings):
    for name in ("sign_in_issuer", "sign_in_client_id", "sign_in_client_secret"):
        settings[name] = None
    with EmbeddedBroker(BrokerSettings(**settings), site=attach) as broker:
        assert "data-token" not in get(broker.admin_url + "/")[2]
        for path in ("login", "callback"):
            assert get(f"{broker.admin_url}/console/{path}")[0] == 404


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sign_in_issuer": "http://login.example.com"}, "sign_in_issuer='http://login.example.com'"),
        ({"sign_in_issuer": "https://[x"}, "sign_in_issuer="),
        ({"sign_in_client_id": None}, "give sign_in_issuer and sign_in_client_id, or none of both"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, changes, reason):
    with pytest.raises(InvalidConfiguration, match=re.escape(reason)):
        BrokerSettings(**settings | changes)
