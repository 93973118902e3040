"""Certificate authority of this process, for its own clients where a port requires client certificates."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final
from uuid import uuid4

from geminga.extras import need

HOUR: Final = dt.timedelta(hours=1)
YEARS: Final = dt.timedelta(days=3650)


class OwnAuthority:
    """Authority whose key is kept in memory; ``certificate`` is its certificate in PEM."""

    def __init__(self) -> None:
        """Create the key. Raises `MissingExtra`."""
        need("a client certificate for this process", "cryptography")
        # Unlike that of any trusted authority: OpenSSL looks for issuers by name.
        self._name = f"geminga {uuid4()}"
        self._key, self.certificate = self._make(self._name, None, YEARS)

    def sign(self, name: str) -> str:
        """Return a certificate for the common name ``name``, valid for an hour, and its key, in PEM.

        An empty ``name`` is left out.
        """
        from cryptography.hazmat.primitives import serialization

        key, certificate = self._make(name, self._key, HOUR)
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return f"{certificate}{key.private_bytes(serialization.Encoding.PEM, *form).decode()}"

    def _make(self, name: str, issuer_key: Any, time: dt.timedelta) -> tuple[Any, str]:
        """Return a new key and its certificate; without ``issuer_key`` that of an authority."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding

        def named(text: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)] if text else [])

        key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(named(name)).issuer_name(named(self._name)).public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - HOUR).not_valid_after(now + time)
            .add_extension(x509.BasicConstraints(ca=issuer_key is None, path_length=None), critical=True)
            .sign(issuer_key or key, hashes.SHA256())
        )  # fmt: skip
        return key, made.public_bytes(Encoding.PEM).decode()
