"""The console's files: served to everybody, under strict headers, and nothing else with them."""

import base64
import dataclasses
import gzip
import re
import ssl
import tempfile
from typing import Any

import pytest
import web_requests

import geminga
from geminga.broker.admin.http import RequiredPermission
from geminga.broker.rules.tokens import make_token
from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.broker.settings import BrokerSettings
from geminga.console.site import PERMISSIONS, STATIC, attach
from tests.support.certificates import Authority

SCRIPT_BYTES_MAX = 60_000
SETTINGS = BrokerSettings(memory=True, port=0, web_port=0)


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker(SETTINGS, site=attach) as running:
        yield running


def ask(broker: EmbeddedBroker, path: str, **headers: str) -> tuple[int, Any, bytes]:
    found = web_requests.ask(broker.admin_url + path, **headers)
    return found.status, found.headers, found.body


def test_every_file_is_served_with_its_type(broker):
    for path in sorted(STATIC.rglob("*.*")):
        status, headers, body = ask(broker, f"/console/{path.relative_to(STATIC)}")
        assert (status, body) == (200, path.read_bytes()), path
        assert headers["Content-Type"].endswith("charset=utf-8")
        policy = headers["Content-Security-Policy"]
        if path.name == "filter.js":
            assert policy == "default-src 'none'; script-src 'unsafe-eval'"
            continue
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
    assert ask(broker, "/")[2] == (STATIC / "index.html").read_bytes()


@pytest.mark.parametrize(
    "path",
    [
        "/console/../site.py", "/console/..%2Fsite.py", "/console/%2e%2e/site.py", "/console/site.py",
        "/console//etc/passwd", "/console/vendor", "/console/",
        "/console/index.html%00.js", "/console/missing.js", "/console/" + "x" * 4000 + ".js",
    ],
)  # fmt: skip
def test_other_paths_are_not_found(broker, path):
    assert ask(broker, path)[0] in (400, 404)


def test_requests_with_a_foreign_host_or_origin_are_refused(broker):
    """The console gives a page on the same port a reason to exist; foreign ones get no further for that."""
    assert ask(broker, "/", Origin="http://attacker.example.com")[0] == 403
    assert ask(broker, "/", Sec_Fetch_Site="cross-site")[0] == 403
    assert ask(broker, "/", Host="attacker.example.com")[0] == 421


def test_a_broker_can_run_without_the_console():
    with EmbeddedBroker(SETTINGS) as plain:
        assert ask(plain, "/")[0] == 404
        assert ask(plain, "/console/main.js")[0] == 404


def test_files_need_no_credentials_but_data_does():
    assert PERMISSIONS["GET", "/"] is RequiredPermission.NOTHING
    assert PERMISSIONS["GET", "/console/api/advice"] is RequiredPermission.CREDENTIALS
    settings = dataclasses.replace(SETTINGS, token_secret_key="data:;base64," + "A" * 43 + "=")
    with EmbeddedBroker(settings, site=attach) as guarded:
        assert ask(guarded, "/")[0] == 200
        assert ask(guarded, "/console/main.js")[0] == 200
        for path in (
            "console/api/advice?rate=1",
            "admin/v2/geminga/subscriptions",
            "admin/v2/geminga/overview",
        ):
            status, headers, _ = ask(guarded, f"/{path}")
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer"), path


def post(
    url: str, body: object, context: ssl.SSLContext | None = None, headers: dict[str, str] | None = None
) -> tuple[int, object]:
    found = web_requests.ask(f"{url}/console/api/redrive", "POST", body, context=context, **headers or {})
    return found.status, found.document if found.status == 200 else found.document["reason"]


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"topic": "jobs"}, 412, "subscription=None is not allowed; allowed: a text"),
        ({"topic": 5, "subscription": "s"}, 412, "topic=5 is not allowed; allowed: a text"),
        ({"topic": "jobs", "subscription": "s", "key": 5}, 412, "key=5 is not allowed; allowed: a text"),
        ({"topic": "jobs", "subscription": "s", "contains": ["x"]}, 412, "contains=['x'] is not allowed"),
        ({"topic": "jobs", "subscription": "s", "contains": "\ud800"}, 404, "there is no dead-letter topic"),
    ],
)
def test_a_redrive_refuses_what_is_no_text(broker, body, status, reason):
    found, said = post(broker.admin_url, body)
    assert (found, str(said)[: len(reason)]) == (status, reason)


def test_dead_letters_are_sent_back_with_a_token_under_any_spelling_of_its_scheme():
    key = bytes(32)
    secret = f"data:;base64,{base64.b64encode(key).decode()}"
    settings = dataclasses.replace(SETTINGS, token_secret_key=secret, super_user_roles=("ada",))
    token = make_token("ada", key, "HS256")
    with EmbeddedBroker(settings, site=attach) as guarded:
        with geminga.Client(guarded.service_url, geminga.AuthenticationToken(token)) as client:
            client.create_producer("jobs-workers-DLQ").send(b"1")
        body = {"topic": "jobs", "subscription": "workers", "preview": True}
        found, said = post(guarded.admin_url, body, headers={"Authorization": f"bearer  {token}"})
        assert found == 200, said


def test_dead_letters_are_sent_back_without_a_folder_for_temporary_files(broker, monkeypatch, tmp_path):
    """Containers may have a file system that is read only."""
    with geminga.Client(broker.service_url) as client:
        client.create_producer("jobs-nightly-DLQ").send(b"1")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    found, said = post(broker.admin_url, {"topic": "jobs", "subscription": "nightly", "preview": True})
    assert (found, "jobs': 1" in str(said)) == (200, True), said


def test_dead_letters_are_sent_back_by_a_broker_with_a_private_certificate(tmp_path):
    certificate, key = Authority(tmp_path).sign("broker")
    settings = dataclasses.replace(SETTINGS, tls_certificate=str(certificate), tls_key=str(key))
    jobs = "persistent://public/default/jobs"
    with EmbeddedBroker(settings, site=attach) as running:
        with running.client(tls_allow_insecure_connection=True) as client:
            client.create_producer("jobs-workers-DLQ").send(b"1", properties={"REAL_TOPIC": jobs})
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        body = {"topic": "jobs", "subscription": "workers", "contains": None}
        sent = {"sent": {jobs: 1}, "left": 0, "encrypted": 0}
        assert post(running.admin_url, body, context) == (200, sent)


@pytest.mark.parametrize(
    ("action", "command"), [("redrive", "geminga subscriptions redrive"), ("publish", "geminga produce")]
)
def test_the_console_does_not_act_for_a_client_certificate(tmp_path, action, command):
    """The broker does not have its key, and sends nothing under another name."""
    authority = Authority(tmp_path)
    (certificate, key), ada = (authority.sign(name) for name in ("broker", "ada"))
    settings = dataclasses.replace(
        SETTINGS, tls_certificate=str(certificate), tls_key=str(key), authorization=True,
        tls_trust_certificates=str(authority.certificate), tls_require_client_certificate=True,
        super_user_roles=("ada",),
    )  # fmt: skip
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.load_cert_chain(*ada)
    body = {"topic": "jobs", "subscription": "workers", "payload": "x"}
    with EmbeddedBroker(settings, site=attach) as running:
        found = web_requests.ask(f"{running.admin_url}/console/api/{action}", "POST", body, context=context)
        assert (found.status, f"use {command}" in str(found.document)) == (501, True)


def test_scripts_and_styles_are_external_files_of_this_origin():
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", page)
    for path in STATIC.glob("*.*"):
        for address in re.findall(r"https?://[^\s\"'`)>]+", path.read_text()):
            assert address in ("http://www.w3.org/2000/svg",), f"{path.name} names {address}"


def test_no_script_makes_markup_from_text():
    for path in set(STATIC.glob("*.js")) - {STATIC / "filter.js"}:  # it has no page
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", path.read_text()
        )
        assert not found, f"{path.name}: {found}"


def test_all_scripts_together_are_small():
    """Compressed, as a proxy sends them: the console has no library."""
    size = sum(len(gzip.compress(path.read_bytes(), mtime=0)) for path in STATIC.rglob("*.js"))
    assert size < SCRIPT_BYTES_MAX
