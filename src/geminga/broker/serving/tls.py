"""TLS of the broker's ports: certificates from files, reloaded when the files change.

New connections use the reloaded certificates; open connections keep theirs. If the files become invalid (half
written, the key of another certificate), the last valid ones stay in use, and the log reports it.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Final

from geminga.broker.settings import BrokerSettings
from geminga.errors import InvalidConfiguration

log = logging.getLogger("geminga.broker")

LOOK_SECONDS: Final = 5.0
"""Interval of checks whether the files have changed."""
Stamp = tuple[tuple[int, int, int], ...]


class TlsFiles:
    """Certificate, key and trusted certificates of the settings; `context` is for servers."""

    def __init__(self, settings: BrokerSettings) -> None:
        """Raise `InvalidConfiguration` naming the file that cannot be used."""
        self._settings = settings
        self._stamp = self._look()
        self._current = self._load()
        self.context = self._load()
        self.context.sni_callback = self._chosen

    def _chosen(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        # Called for every handshake, with or without a name: returns the current context.
        connection.context = self._current

    def refresh(self) -> bool:
        """Reload the files if they have changed; return whether others are in use now."""
        stamp = self._look()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self._current = self._load()
        except InvalidConfiguration as error:
            log.error("cannot use the changed TLS certificates, keeping the previous ones: %s", error)
            return False
        log.info("new connections use the changed TLS certificates")
        return True

    def _look(self) -> Stamp:
        found = []
        settings = self._settings
        for name in (settings.tls_certificate, settings.tls_key, settings.tls_trust_certificates):
            try:
                state = Path(name).stat() if name else None
            except OSError:
                state = None
            found.append((0, 0, 0) if state is None else (state.st_mtime_ns, state.st_size, state.st_ino))
        return tuple(found)

    def _load(self) -> ssl.SSLContext:
        settings = self._settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        assert settings.tls_certificate is not None
        try:
            context.load_cert_chain(settings.tls_certificate, settings.tls_key, password=_no_password)
        except (OSError, ssl.SSLError) as error:
            raise InvalidConfiguration(
                f"tls_certificate={str(settings.tls_certificate)!r} with "
                f"tls_key={str(settings.tls_key)!r} cannot be used: {_why(error)}"
            ) from None
        if settings.tls_trust_certificates is not None:
            try:
                context.load_verify_locations(cafile=settings.tls_trust_certificates)
            except (OSError, ssl.SSLError) as error:
                trust = str(settings.tls_trust_certificates)
                raise InvalidConfiguration(
                    f"tls_trust_certificates={trust!r} cannot be used: {_why(error)}"
                ) from None
            required = settings.tls_require_client_certificate
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        return context


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__


def _no_password() -> str:
    raise ssl.SSLError("the key has a pass phrase")
