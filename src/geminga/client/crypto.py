"""End-to-end encryption arguments, under ``pulsar-client``'s names."""

from __future__ import annotations

from geminga.config import check_type
from geminga.consumer.encryption_context import EncryptionContext, EncryptionKey

__all__ = ["CryptoKeyReader", "EncryptionContext", "EncryptionKey"]


class CryptoKeyReader:
    """Names the PEM files that hold the public and the private key."""

    def __init__(self, public_key_path: str, private_key_path: str) -> None:
        self.public_key_path = check_type("public_key_path", public_key_path, str)
        self.private_key_path = check_type("private_key_path", private_key_path, str)
