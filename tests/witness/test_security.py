"""The official client against a broker with authentication: tokens, refusals, and a token that expires."""

import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pulsar
import pytest
from waiting import eventually

import geminga
from geminga.broker.rules.tokens import make_token
from geminga.broker.serving.embedded import embedded
from tests.support.certificates import Authority

KEY = bytes(range(32))
SECRET = "data:;base64,AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="


def token(role: str, seconds: int | None = None) -> str:
    return make_token(role, KEY, "HS256", expires_at=None if seconds is None else int(time.time()) + seconds)


@pytest.fixture(scope="module")
def guarded():
    with embedded(token_secret_key=SECRET, super_user_roles=("admin",)) as running:
        yield running


def test_roles_do_only_what_is_allowed(guarded, connect, topic):
    for url in (guarded.service_url, guarded.admin_url):
        client = connect(url, authentication=pulsar.AuthenticationToken(token("admin")))
        consumer = client.subscribe(topic, "s" + url[:4])
        client.create_producer(topic).send(b"1")
        assert consumer.receive(30_000).data() == b"1"
    stranger = connect(
        guarded.service_url,
        authentication=pulsar.AuthenticationToken(token("x")),
        operation_timeout_seconds=3,
    )
    with pytest.raises(pulsar.AuthorizationError):
        stranger.create_producer(topic)
    with pytest.raises(pulsar.AuthorizationError):
        stranger.subscribe(topic, "s")


def test_certificates_give_a_role_over_tls(connect, topic, tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.sign("broker")
    admin = authority.sign("admin")
    with embedded(
        tls_certificate=certificate, tls_key=key, tls_trust_certificates=authority.certificate,
        super_user_roles=("admin",),
    ) as running:  # fmt: skip
        client = connect(
            running.service_url,
            tls_trust_certs_file_path=str(authority.certificate),
            tls_validate_hostname=True,
            authentication=pulsar.AuthenticationTLS(*map(str, admin)),
        )
        consumer = client.subscribe([topic, topic + "2"], "s")
        client.create_producer(topic).send(b"1")
        assert consumer.receive(30_000).data() == b"1"


def test_clients_without_a_token_are_refused(guarded, connect, topic):
    for options in ({}, {"authentication": pulsar.AuthenticationToken("x.y.z")}):
        client = connect(guarded.service_url, operation_timeout_seconds=2, **options)
        with pytest.raises(pulsar.PulsarException):
            client.create_producer(topic)


def test_an_expired_token_is_replaced(connect, topic):
    asked = []

    def supplier() -> str:
        asked.append(1)
        return token("admin", 3 if len(asked) == 1 else 100)  # whole seconds: it lives for two, or three

    with embedded(
        token_secret_key=SECRET, super_user_roles=("admin",), authentication_refresh_seconds=5
    ) as running:
        client = connect(running.service_url, authentication=pulsar.AuthenticationToken(supplier))
        producer = client.create_producer(topic)
        eventually(lambda: producer.send(b"on") and len(asked) >= 2)
        producer.send(b"still")


@pytest.fixture(scope="module")
def by_password(tmp_path_factory):
    pytest.importorskip("passlib")
    pytest.importorskip("bcrypt")
    users = tmp_path_factory.mktemp("users") / "htpasswd"
    # Passwords "secret", by openssl passwd -apr1, and "other", by the C library's crypt.
    users.write_text("admin:$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/\njoe:ablevSdGaUmRA\n")
    with embedded(basic_auth=str(users), super_user_roles=("admin",)) as running:
        yield running


@pytest.mark.parametrize("library", [pulsar, geminga], ids=["official", "ours"])
def test_clients_log_in_with_user_and_password(by_password, library, topic):
    for url in (by_password.service_url, by_password.admin_url):
        client = library.Client(url, authentication=library.AuthenticationBasic("admin", "secret"))
        try:
            consumer = client.subscribe(topic, "s" + url[:4])
            client.create_producer(topic).send(b"1")
            assert consumer.receive(30_000).data() == b"1"
        finally:
            client.close()

    def is_refused(known: tuple[str, str]) -> None:
        client = library.Client(
            by_password.service_url,
            authentication=library.AuthenticationBasic(*known),
            operation_timeout_seconds=3,
        )
        try:
            with pytest.raises(library.PulsarException):
                client.create_producer(topic)
        finally:
            client.close()

    # pulsar-client asks again and again until its time-out: all at once.
    refused = (("admin", "other"), ("joe", "secret"), ("nobody", "secret"), ("admin", ""))
    with ThreadPoolExecutor(len(refused)) as threads:
        for _ in threads.map(is_refused, refused):
            pass


def test_a_browser_is_asked_for_a_password(by_password):
    url = f"{by_password.admin_url}/admin/v2/tenants"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(url, timeout=60)
    with caught.value as refusal:
        assert (refusal.code, refusal.headers["WWW-Authenticate"][:5]) == (401, "Basic")
    asked = urllib.request.Request(url, headers={"Authorization": "Basic YWRtaW46c2VjcmV0"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert answer.status == 200
