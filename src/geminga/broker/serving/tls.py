"""TLS of the broker's ports: certificates from files, reloaded when the files change.

New connections use the reloaded certificates; open connections keep theirs. If the files become invalid (half
written, the key of another certificate, expired), the last valid ones stay in use, and the log reports it.
"""

import logging
import ssl
import time
from _ssl import _test_decode_cert  # type: ignore[attr-defined]  # the only reader of the dates
from pathlib import Path
from typing import Final, NamedTuple

from geminga.broker.settings import BrokerSettings
from geminga.errors import InvalidConfiguration

log = logging.getLogger("geminga.broker")

LOOK_SECONDS: Final = 5.0
"""Interval of checks whether the files have changed."""
SOON_SECONDS: Final = 14 * 86_400.0
"""Remaining time of a certificate from which on its expiry is logged; a third of its time if that is less."""
Stamp = tuple[tuple[int, int, int], ...]


class LoadedFiles(NamedTuple):
    """Files as they were read, and when their certificate begins and expires, in seconds since 1970."""

    stamp: Stamp
    context: ssl.SSLContext
    begins_at: float
    expires_at: float


class TlsFiles:
    """Certificate, key and trusted certificates of the settings; `context` is for servers."""

    def __init__(self, settings: BrokerSettings) -> None:
        """Raise `InvalidConfiguration` naming the file that cannot be used."""
        self._settings = settings
        self._loaded = _load(settings)
        self.context = _load(settings).context
        self.context.sni_callback = self._chosen
        self._warn()

    @property
    def expires_at(self) -> float:
        """When the certificate in use expires, in seconds since 1970."""
        return self._loaded.expires_at

    def _chosen(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        # Called for every handshake, with or without a name: returns the current context.
        connection.context = self._loaded.context

    def refresh(self) -> bool:
        """Reload the files if they have changed; return whether others are in use now."""
        stamp = _look(self._settings)
        if stamp == self._loaded.stamp:
            return False
        self._loaded = self._loaded._replace(stamp=stamp)
        try:
            self.use(self._settings, self.load(self._settings))
        except InvalidConfiguration as error:
            log.error("cannot use the changed TLS certificates, keeping the previous ones: %s", error)
            return False
        log.info("new connections use the changed TLS certificates")
        return True

    def load(self, settings: BrokerSettings) -> LoadedFiles:
        """Read the files of the settings. Raises `InvalidConfiguration`, also for a certificate that has
        expired while the one in use has not."""
        loaded = _load(settings)
        if loaded.expires_at <= time.time() < self._loaded.expires_at:
            when = _date(loaded.expires_at)
            raise InvalidConfiguration(f"tls_certificate={str(settings.tls_certificate)!r} expired on {when}")
        return loaded

    def use(self, settings: BrokerSettings, loaded: LoadedFiles) -> bool:
        """Use files that `load` returned, for new connections; return whether they have changed."""
        has_changed = loaded.stamp != self._loaded.stamp
        self._settings, self._loaded = settings, loaded
        # Versions, ciphers and verification are those of the context that a connection begins with.
        _configure(self.context, settings)
        self._warn()
        return has_changed

    def _warn(self) -> None:
        """Log that the certificate has expired, or will soon."""
        now, expires, begins = time.time(), self._loaded.expires_at, self._loaded.begins_at
        verb = "expired" if expires <= now else "expires"
        if expires - now < min(SOON_SECONDS, (expires - begins) / 3):
            log.warning(
                "the TLS certificate %s %s on %s", self._settings.tls_certificate, verb, _date(expires)
            )


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _look(settings: BrokerSettings) -> Stamp:
    found = []
    for name in (settings.tls_certificate, settings.tls_key, settings.tls_trust_certificates):
        try:
            state = Path(name).stat() if name else None
        except OSError:
            state = None
        found.append((0, 0, 0) if state is None else (state.st_mtime_ns, state.st_size, state.st_ino))
    return tuple(found)


def _load(settings: BrokerSettings) -> LoadedFiles:
    stamp = _look(settings)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert settings.tls_certificate is not None
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key, password=_no_password)
        certificate = _test_decode_cert(str(settings.tls_certificate))
    except (OSError, ssl.SSLError) as error:
        key = "without tls_key" if settings.tls_key is None else f"with tls_key={str(settings.tls_key)!r}"
        raise InvalidConfiguration(
            f"tls_certificate={str(settings.tls_certificate)!r} {key} cannot be used: {_why(error)}"
        ) from None
    if settings.tls_trust_certificates is not None:
        try:
            context.load_verify_locations(cafile=settings.tls_trust_certificates)
        except (OSError, ssl.SSLError) as error:
            trust = str(settings.tls_trust_certificates)
            raise InvalidConfiguration(
                f"tls_trust_certificates={trust!r} cannot be used: {_why(error)}"
            ) from None
    _configure(context, settings)
    return LoadedFiles(
        stamp, context, *(ssl.cert_time_to_seconds(certificate[name]) for name in ("notBefore", "notAfter"))
    )


def _configure(context: ssl.SSLContext, settings: BrokerSettings) -> None:
    """Set the versions, ciphers and client verification of the settings."""
    context.minimum_version = ssl.TLSVersion[settings.tls_minimum_version.replace(".", "_")]
    try:
        context.set_ciphers(settings.tls_ciphers)
    except ssl.SSLError:
        raise InvalidConfiguration(
            f"tls_ciphers={settings.tls_ciphers!r} names no cipher that OpenSSL has; see `openssl ciphers`"
        ) from None
    required = ssl.CERT_REQUIRED if settings.tls_require_client_certificate else ssl.CERT_OPTIONAL
    context.verify_mode = ssl.CERT_NONE if settings.tls_trust_certificates is None else required


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__


def _no_password() -> str:
    raise ssl.SSLError("the key has a pass phrase")
