"""Certificates for tests: a certificate authority and signed certificates."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)
_CA_USAGE = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
    key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
)  # fmt: skip


class Authority:
    """A certificate authority; ``certificate`` is its CA certificate's file. Files are in ``folder``.

    ``is_strict``: with the extensions of RFC 5280 that Python's own clients require from 3.13 on. Private
    authorities often lack them.
    """

    def __init__(self, folder: Path, name: str = "authority", *, is_strict: bool = True) -> None:
        self._folder = folder
        self._is_strict = is_strict
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = folder / f"{name}.pem"
        made = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        if is_strict:
            made = made.add_extension(_CA_USAGE, critical=True)
        self._write(self.certificate, made.sign(self._key, hashes.SHA256()))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, days: float = 100
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder()
        if self._is_strict:
            own = x509.SubjectKeyIdentifier.from_public_key(key)
            issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
            builder = builder.add_extension(own, critical=False).add_extension(issuer, critical=False)
        return (
            builder.subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 100 * _DAY)
            .not_valid_after(now + days * _DAY)
        )

    @staticmethod
    def _write(path: Path, certificate: x509.Certificate) -> None:
        path.write_bytes(certificate.public_bytes(Encoding.PEM))

    def sign(self, common_name: str, file_name: str | None = None, *, days: float = 100) -> tuple[Path, Path]:
        """Sign a certificate for ``common_name`` on this machine, valid for ``days``, which may be negative.

        Return its file and its key's, in PEM.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        names: list[x509.GeneralName] = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        made = self._builder(subject, key.public_key(), days).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        place = self._folder / (file_name or common_name)
        certificate, key_file = place.with_suffix(".pem"), place.with_suffix(".key")
        self._write(certificate, made.sign(self._key, hashes.SHA256()))
        key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return certificate, key_file
