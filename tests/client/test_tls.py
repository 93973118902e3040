"""TLS against a real TLS server: what is trusted, what is refused, and that no credential leaves before."""

import asyncio
import re
import shutil
import ssl
import subprocess

import pytest

from geminga.client.handles.context import ClientContext
from geminga.client.io.tls import make_context
from geminga.client.options.settings import ClientSettings, TlsSettings
from geminga.connection.authentication import TokenCredentials
from geminga.errors import ConnectError, InvalidConfiguration

openssl = shutil.which("openssl")
needs_openssl = pytest.mark.skipif(openssl is None, reason="needs the openssl command")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for ``localhost`` alone."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [
            openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
            "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
            "-keyout", str(key), "-out", str(certificate),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return str(certificate), str(key)


def connect(scripted, certificate, host="localhost", prepare=lambda context: None, **tls):
    """Connect once; returns the scripted broker, and the error if there was one."""

    async def main():
        broker = scripted()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        prepare(context)
        await broker.start(context)
        context = ClientContext(
            ClientSettings(
                service_url=f"pulsar+ssl://{host}:{broker.port}",
                credentials=TokenCredentials("canary-token"),
                connection_timeout_seconds=5.0,
                tls=TlsSettings(**tls),
            )
        )
        error = None
        try:
            await context.service_connection()
        except Exception as caught:
            error = caught
        finally:
            context.shutdown()
            await broker.stop()
        return broker, error

    return asyncio.run(main())


def credentials_sent(broker):
    return [peer.connect.auth_data for peer in broker.peers if peer.connect is not None]


@needs_openssl
@pytest.mark.parametrize(
    ("host", "trusts", "settings", "words"),
    [
        pytest.param("localhost", True, {}, None, id="a trusted certificate"),
        pytest.param(
            "localhost", False, {}, "not trusted.*tls_trust_certs_file_path", id="an unknown certificate"
        ),
        pytest.param("127.0.0.1", True, {}, "127.0.0.1", id="a wrong host name"),
        pytest.param("127.0.0.1", True, {"validate_hostname": False}, None, id="host names are not checked"),
        pytest.param("127.0.0.1", False, {"allow_insecure_connection": True}, None, id="nothing is checked"),
    ],
)
def test_a_server_is_verified_before_any_credential_is_sent(
    scripted, certificate, host, trusts, settings, words
):
    trust = {"trust_certificates_path": certificate[0]} if trusts else {}
    broker, error = connect(scripted, certificate, host, **trust, **settings)
    if words is None:
        assert error is None
        assert credentials_sent(broker) == [b"canary-token"]
    else:
        assert isinstance(error, ConnectError)
        assert re.search(words, str(error), re.DOTALL)
        assert credentials_sent(broker) == []


@needs_openssl
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_certificate_is_shown(scripted, certificate, version):
    def wanting(context):
        context.maximum_version = version
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificate[0])

    trust = {"trust_certificates_path": certificate[0]}
    identity = {"certificate_path": certificate[0], "private_key_path": certificate[1]}
    _, error = connect(scripted, certificate, prepare=wanting, **trust, **identity)
    assert error is None
    broker, error = connect(scripted, certificate, prepare=wanting, **trust)
    assert isinstance(error, ConnectError)
    assert "requires certificates of clients, give a valid one in tls_certificate_file_path" in str(error)
    assert credentials_sent(broker) == []


def test_defaults():
    context = make_context(TlsSettings())
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    "settings",
    [
        {"trust_certificates_path": "/no/such/file.pem"},
        {"certificate_path": "/no/such/file.pem", "private_key_path": "/no/such/key.pem"},
        {"private_key_path": "/no/such/key.pem"},
    ],
)
def test_missing_files_are_named(settings):
    with pytest.raises(InvalidConfiguration, match="/no/such"):
        make_context(TlsSettings(**settings))


def test_a_file_that_is_no_certificate(tmp_path):
    path = tmp_path / "note.pem"
    path.write_text("not a certificate")
    with pytest.raises(InvalidConfiguration, match=r"note\.pem"):
        make_context(TlsSettings(trust_certificates_path=str(path)))
    with pytest.raises(InvalidConfiguration, match=r"note\.pem"):
        make_context(TlsSettings(certificate_path=str(path), private_key_path=str(path)))
