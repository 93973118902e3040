"""The TLS context of a client. Verification is on by default."""

import ssl
from pathlib import Path
from typing import Final

from geminga.client.options.settings import TlsSettings
from geminga.errors import InvalidConfiguration

CERTIFICATE_ADVICE: Final = (
    "if the broker requires certificates of clients, give a valid one in tls_certificate_file_path"
)


def lost_text(peer: str, error: Exception | None, *, was_ready: bool) -> str:
    """Return the message of a lost connection; before CONNECTED, a broker may have refused the client."""
    text = f"the connection to {peer} was lost{f': {error}' if error else ''}"
    if was_ready:
        return text
    return f"{text} before CONNECTED{f'; {CERTIFICATE_ADVICE}' if peer.startswith('pulsar+ssl:') else ''}"


def make_context(settings: TlsSettings) -> ssl.SSLContext:
    """Create a client context: TLS 1.2 or newer, certificates verified, hostname checked.

    Without ``trust_certificates_path`` the system's trust store is used. Raises `InvalidConfiguration` naming
    the file that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.allow_insecure_connection:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.check_hostname = settings.validate_hostname
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a server's own certificate may be trusted
        _load_trust(context, settings.trust_certificates_path)
    if settings.private_key_path is not None and settings.certificate_path is None:
        raise InvalidConfiguration(
            f"tls_private_key_file_path={settings.private_key_path!r} needs tls_certificate_file_path, too"
        )
    if settings.certificate_path is not None:
        _load_identity(context, settings.certificate_path, settings.private_key_path)
    return context


def _load_trust(context: ssl.SSLContext, path: str | None) -> None:
    if path is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return
    try:
        context.load_verify_locations(cafile=_existing("tls_trust_certs_file_path", path))
    except ssl.SSLError as error:
        raise InvalidConfiguration(
            f"tls_trust_certs_file_path={path!r} is not a file of PEM certificates: {error}"
        ) from error


def _load_identity(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    _existing("tls_certificate_file_path", certificate)
    if key is not None:
        _existing("tls_private_key_file_path", key)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        raise InvalidConfiguration(
            f"tls_certificate_file_path={certificate!r} and its private key {key or certificate!r} "
            f"cannot be used: {error}"
        ) from error


def _no_password() -> str:
    raise InvalidConfiguration("the TLS private key is encrypted; give one without a pass phrase")


def _existing(field: str, path: str) -> str:
    if not Path(path).is_file():
        raise InvalidConfiguration(f"{field}={path!r} does not exist or is not a file")
    return path
