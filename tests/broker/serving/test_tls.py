"""TLS on both ports: trust, client certificates as roles, and certificates that change."""

import contextlib
import http.client
import socket
import ssl
import warnings
from pathlib import Path
from typing import Any

import pytest
from waiting import eventually, never
from web_requests import ask

import geminga
from geminga.broker.rules.tokens import make_token
from geminga.broker.serving.embedded import embedded
from geminga.broker.serving.tls import TlsFiles
from geminga.broker.settings import BrokerSettings
from geminga.errors import InvalidConfiguration
from tests.broker.conftest import KEY, SECRET
from tests.support.certificates import Authority


def trusting(authority: Authority) -> dict[str, Any]:
    return {"tls_trust_certs_file_path": str(authority.certificate)}


def client(broker: Any, authority: Authority, url: str = "", **options: Any) -> geminga.Client:
    options |= {"tls_validate_hostname": True, "operation_timeout_seconds": 5}
    return geminga.Client(url or broker.service_url, **trusting(authority), **options)


def get(broker: Any, path: str, trust: Authority, own: Any = None, **headers: str) -> tuple[int, bytes]:
    context = ssl.create_default_context(cafile=str(trust.certificate))
    if own is not None:
        context.load_cert_chain(*own)
    return ask(broker.admin_url + path, context=context, **headers)[:2]


def test_messages_and_web_requests_use_tls(authority, tls):
    with embedded(**tls) as broker:
        assert broker.service_url.startswith("pulsar+ssl://")
        assert broker.admin_url.startswith("https://")
        with client(broker, authority) as ours:
            consumer = ours.subscribe("t", "s")
            producer = ours.create_producer("t")
            large = bytes(3 * 1024 * 1024)
            for payload in (b"one", large):
                producer.send(payload)
            assert [consumer.receive(30_000).data() for _ in range(2)] == [b"one", large]
        metrics = get(broker, "/metrics", authority)[1].decode()
        assert "geminga_tls_certificate_expiry_timestamp_seconds{" in metrics
        assert get(broker, "/admin/v2/tenants", authority)[0] == 200
        assert b"pulsar+ssl://" in get(broker, "/lookup/v2/topic/persistent/public/default/t", authority)[1]


def test_plain_and_tls_ports_are_served_together(authority, tls):
    with embedded(**tls, tls_port=0, web_tls_port=0) as broker:
        urls = (broker.service_url, broker.service_url_tls, broker.admin_url, broker.admin_url_tls)
        assert [url.split(":")[0] for url in urls] == ["pulsar", "pulsar+ssl", "http", "https"]
        trust = {**trusting(authority), "tls_validate_hostname": True}
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(geminga.Client(url, **trust)) for url in urls]
            consumers = [one.subscribe("t", f"s{i}") for i, one in enumerate(clients)]
            for number, one in enumerate(clients):
                one.create_producer("t").send(b"%d" % number)
            for consumer in consumers:
                assert [consumer.receive(30_000).data() for _ in urls] == [b"0", b"1", b"2", b"3"]
            peers = ask(f"{broker.admin_url}/admin/v2/persistent/public/default/t/stats").document
            assert len(peers["publishers"]) == 4
        context = ssl.create_default_context(cafile=str(authority.certificate))
        lookup = f"{broker.admin_url_tls}/lookup/v2/topic/persistent/public/default/t"
        found = ask(lookup, context=context).document
        assert (found["brokerUrl"], found["brokerUrlTls"], found["httpUrl"], found["httpUrlTls"]) == urls
        cluster = ask(f"{broker.admin_url}/admin/v2/clusters/standalone").document
        named = ("brokerServiceUrl", "brokerServiceUrlTls", "serviceUrl", "serviceUrlTls")
        assert tuple(cluster[name] for name in named) == urls
        # Each port speaks one language.
        port = int(broker.service_url_tls.rpartition(":")[2])
        with pytest.raises(geminga.PulsarException):
            geminga.Client(f"pulsar://127.0.0.1:{port}", operation_timeout_seconds=2).create_producer("t")


def test_client_certificates_apply_only_to_the_tls_port(authority, tls):
    """A connection without TLS has no certificate and so no role."""
    settings = {**tls, "tls_port": 0, "tls_trust_certificates": authority.certificate}
    certificate, key = authority.sign("boss")
    with embedded(**settings, super_user_roles=("boss",)) as broker:
        own = geminga.AuthenticationTLS(str(certificate), str(key))
        with client(broker, authority, broker.service_url_tls, authentication=own) as ours:
            ours.create_producer("t").send(b"x")
        with (
            geminga.Client(broker.service_url, operation_timeout_seconds=5) as nobody,
            pytest.raises(geminga.AuthenticationError),
        ):
            nobody.create_producer("t")


def test_authorities_without_the_extensions_of_rfc_5280_are_accepted_on_every_python(tmp_path):
    authority = Authority(tmp_path, is_strict=False)
    certificate, key = authority.sign("broker")
    own_certificate, own_key = authority.sign("boss")
    with embedded(
        tls_certificate=certificate, tls_key=key, tls_trust_certificates=authority.certificate,
        super_user_roles=("boss",),
    ) as broker:  # fmt: skip
        authentication = geminga.AuthenticationTLS(str(own_certificate), str(own_key))
        with client(broker, authority, authentication=authentication) as ours:
            ours.create_producer("t").send(b"x")
        with geminga.Admin(broker.admin_url, authentication, **trusting(authority)) as admin:
            assert admin.topics.list("public/default") == ["persistent://public/default/t"]


def test_an_added_tls_port_does_not_change_other_ports(authority, tls):
    with embedded(**tls, tls_port=0) as broker:
        assert [url.split(":")[0] for url in (broker.service_url, broker.admin_url)] == ["pulsar", "https"]
        assert get(broker, "/admin/v2/tenants", authority)[0] == 200
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(broker.admin_url.replace("https:", "http:") + "/admin/v2/tenants")
    with embedded(**tls, web_tls_port=0) as broker:
        assert [url.split(":")[0] for url in (broker.service_url, broker.admin_url)] == ["pulsar+ssl", "http"]
        address = broker.service_url.replace("pulsar+ssl", "pulsar")
        with (
            geminga.Client(address, operation_timeout_seconds=2) as client,
            pytest.raises(geminga.PulsarException),
        ):
            client.create_producer("t")


def test_plain_connections_and_foreign_certificates_are_refused(authority, tls, tmp_path):
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other")
    with embedded(**tls) as broker:
        with client(broker, stranger) as ours, pytest.raises(geminga.exceptions.PulsarException):
            ours.create_producer("t")
        with socket.create_connection(("127.0.0.1", broker.settings.port), timeout=60) as plain:
            plain.sendall(b"\0\0\0\5\0\0\0\1\0")
            assert b"CONNECTED" not in plain.recv(100)
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with (
            socket.create_connection(("127.0.0.1", broker.settings.port), timeout=60) as plain,
            pytest.raises((ssl.SSLError, OSError)),
        ):
            old.wrap_socket(plain)


@pytest.mark.parametrize("required", [False, True])
def test_a_client_certificate_is_a_role(authority, tls, required, tmp_path):
    admin, nobody = authority.sign("admin"), authority.sign("nobody")
    settings = {
        **tls, "tls_trust_certificates": authority.certificate, "tls_require_client_certificate": required,
        "super_user_roles": ("admin",), "token_secret_key": SECRET,
    }  # fmt: skip
    with embedded(**settings) as broker:
        with client(broker, authority, authentication=geminga.AuthenticationTLS(*map(str, admin))) as ours:
            ours.create_producer("t").send(b"1")
        with (
            client(broker, authority, authentication=geminga.AuthenticationTLS(*map(str, nobody))) as ours,
            pytest.raises(geminga.exceptions.AuthorizationError),
        ):
            ours.create_producer("t")
        assert get(broker, "/admin/v2/tenants", authority, admin)[0] == 200
        assert get(broker, "/admin/v2/tenants", authority, nobody)[0] == 403
        token = make_token("admin", KEY, "HS256")
        if required:
            with pytest.raises((OSError, ssl.SSLError)):
                get(broker, "/admin/v2/tenants", authority)
        else:
            assert get(broker, "/admin/v2/tenants", authority)[0] == 401
            assert get(broker, "/admin/v2/tenants", authority, Authorization=f"Bearer {token}")[0] == 200
        (tmp_path / "x").mkdir(exist_ok=True)
        forged = Authority(tmp_path / "x").sign("admin")
        with pytest.raises((OSError, ssl.SSLError)):
            get(broker, "/admin/v2/tenants", authority, forged)


def served(broker: Any) -> bytes:
    return ssl.get_server_certificate(("127.0.0.1", broker.settings.port)).encode()


def test_changed_certificate_files_apply_to_new_connections(authority, tls, tmp_path, monkeypatch):
    monkeypatch.setattr("geminga.broker.serving.server.LOOK_SECONDS", 0.05)
    with embedded(**tls) as broker, client(broker, authority) as ours:
        producer = ours.create_producer("t")
        before = served(broker)
        tls["tls_key"].write_text("half writ")
        never(lambda: served(broker) != before, 0.2)
        authority.sign("broker-2", "broker")
        eventually(lambda: served(broker) != before)
        producer.send(b"the open connection goes on")
        with client(broker, authority) as another:
            another.create_producer("t").send(b"new")


def test_new_trusted_certificates_apply(authority, tls, tmp_path):
    trust = tmp_path / "trust.pem"
    trust.write_bytes(authority.certificate.read_bytes())
    (tmp_path / "next").mkdir()
    following = Authority(tmp_path / "next")
    files = TlsFiles(BrokerSettings(memory=True, **tls, tls_trust_certificates=trust))
    assert not files.refresh()
    old, new = authority.sign("old"), following.sign("new")
    assert accepts(files, authority, old)
    assert not accepts(files, authority, new)
    trust.write_bytes(following.certificate.read_bytes())
    assert files.refresh()
    assert accepts(files, authority, new)
    assert not accepts(files, authority, old)


def handshake(files: TlsFiles, context: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject] | None:
    """A handshake in memory: the client's end and the broker's; None: it was refused."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = files.context.wrap_bio(to_server, to_client, server_side=True)
    ours = context.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(4):
        for end in (ours, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                return None
    return ours, server


def accepts(files: TlsFiles, trust: Authority, certificate: tuple[Path, Path]) -> bool:
    context = ssl.create_default_context(cafile=str(trust.certificate))
    context.load_cert_chain(*certificate)
    ends = handshake(files, context)
    return ends is not None and bool(ends[1].getpeercert())


@pytest.mark.parametrize(
    "wrong",
    [
        {"tls_key": "/no/such/key"},
        {"tls_certificate": None},
        {"tls_require_client_certificate": True},
        {"tls_trust_certificates": "/no/such/file"},
    ],
)
def test_unusable_files_are_named(tls, wrong):
    with pytest.raises(InvalidConfiguration, match="tls_"):
        embedded(**{**tls, **wrong})


def test_an_expired_certificate_does_not_replace_a_good_one(authority, tls, caplog):
    files = TlsFiles(BrokerSettings(memory=True, **tls, tls_trust_certificates=authority.certificate))
    client = authority.sign("client")
    before = files.expires_at
    assert not caplog.text
    authority.sign("broker", days=-1)
    assert not files.refresh()
    assert "expired on 20" in caplog.text
    assert "keeping the previous ones" in caplog.text
    assert files.expires_at == before
    assert accepts(files, authority, client)
    caplog.clear()
    authority.sign("broker", days=5)
    assert files.refresh()
    assert f"the TLS certificate {tls['tls_certificate']} expires on 20" in caplog.text
    assert files.expires_at < before


def test_a_broker_starts_with_an_expired_certificate_and_logs_it(authority, caplog):
    certificate, key = authority.sign("late", days=-1)
    files = TlsFiles(BrokerSettings(memory=True, tls_certificate=certificate, tls_key=key))
    assert f"the TLS certificate {certificate} expired on 20" in caplog.text
    authority.sign("late", days=-2)
    assert files.refresh(), "one expired certificate may replace another"


def spoken(files: TlsFiles, trust: Authority, **limits: Any) -> str | None:
    """Version and cipher of a handshake in memory with a client of these limits; None: it was refused."""
    context = ssl.create_default_context(cafile=str(trust.certificate))
    if "ciphers" in limits:
        context.set_ciphers(limits.pop("ciphers"))
    for name, value in limits.items():
        setattr(context, name, value)
    ends = handshake(files, context)
    return None if ends is None else f"{ends[0].version()} {ends[0].cipher()[0]}"


def test_the_lowest_version_and_the_ciphers_of_tls_are_set(authority, tls):
    old = {"maximum_version": ssl.TLSVersion.TLSv1_2}
    files = TlsFiles(BrokerSettings(memory=True, **tls))
    assert (spoken(files, authority) or "").startswith("TLSv1.3")
    assert "ECDHE" in (spoken(files, authority, **old) or "")
    for weak in ("AES128-GCM-SHA256", "AES256-SHA", "ECDHE-ECDSA-AES128-SHA"):
        assert spoken(files, authority, **old, ciphers=f"{weak}:@SECLEVEL=0") is None
    files = TlsFiles(BrokerSettings(memory=True, **tls, tls_minimum_version="TLSv1.3"))
    assert spoken(files, authority, **old) is None
    one = "ECDHE-ECDSA-AES256-GCM-SHA384"
    files = TlsFiles(BrokerSettings(memory=True, **tls, tls_ciphers=one))
    assert spoken(files, authority, **old) == f"TLSv1.2 {one}"
    with pytest.raises(InvalidConfiguration, match="tls_ciphers='nonsense'"):
        TlsFiles(BrokerSettings(memory=True, **tls, tls_ciphers="nonsense"))
