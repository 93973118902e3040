"""End-to-end encryption arguments, under ``pulsar-client``'s names (framing.md section 1.5).

::

    reader = CryptoKeyReader("public.pem", "private.pem")
    producer = client.create_producer(topic, encryption_key="orders", crypto_key_reader=reader)
    consumer = client.subscribe(topic, "s", crypto_key_reader=reader)

Keys are RSA (every official client reads it) or EC (the Java client does).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from geminga.config import check_type, refuse
from geminga.consumer.encryption_context import EncryptionContext, EncryptionKey
from geminga.wire.encryption import EncryptionKeyInfo, PayloadDecryptor, PayloadEncryptor, ReadKey

__all__ = [
    "CryptoKeyReader",
    "EncryptionContext",
    "EncryptionKey",
    "EncryptionKeyInfo",
    "KeyReader",
    "ProducerCryptoFailureAction",
]


class ProducerCryptoFailureAction(Enum):
    """Action of a producer that has no data key, for example because a public key is missing.

    ``FAIL``: creating it fails, nothing is sent; ``SEND``: messages are sent unencrypted.
    """

    FAIL = 0
    SEND = 1


@runtime_checkable
class KeyReader(Protocol):
    """Interface of key readers: a replacement for `CryptoKeyReader`, for example one that asks a key server.

    Both methods get the key's name and its metadata, and return the PEM bytes, or an `EncryptionKeyInfo` with
    metadata to send along. Their exceptions become a `CryptoError`. ``get_public_key`` is called on an
    executor thread, when a producer is created and every 4 hours. ``get_private_key`` is called on the
    client's I/O thread, once for each data key: it should be quick.
    """

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo | bytes: ...

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo | bytes: ...


class CryptoKeyReader:
    """Reader of the public and the private key from PEM files, for all key names.

    A program that only publishes, or only reads, may leave the other path empty.
    """

    def __init__(self, public_key_path: str, private_key_path: str) -> None:
        self.public_key_path = check_type("public_key_path", public_key_path, str)
        self.private_key_path = check_type("private_key_path", private_key_path, str)

    @property
    def cryptoKeyReader(self) -> CryptoKeyReader:
        """This reader, under ``pulsar-client``'s attribute name."""
        return self

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo | bytes:
        """Return the content of ``public_key_path``. Raises `OSError`."""
        return Path(self.public_key_path).read_bytes()

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo | bytes:
        """Return the content of ``private_key_path``. Raises `OSError`."""
        return Path(self.private_key_path).read_bytes()

    @staticmethod
    def of(public_key: ReadKey | None = None, private_key: ReadKey | None = None) -> KeyReader:
        """Make a reader of two functions ``(key_name, metadata) -> PEM bytes``."""
        for name, function in (("public_key", public_key), ("private_key", private_key)):
            if function is not None and not callable(function):
                refuse(name, function, "a callable that takes (key_name, metadata), or None")
        return _FunctionReader(public_key or _no_key, private_key or _no_key)


class _FunctionReader:
    def __init__(self, public_key: ReadKey, private_key: ReadKey) -> None:
        self.get_public_key = public_key
        self.get_private_key = private_key


def _no_key(key_name: str, metadata: Mapping[str, str]) -> bytes:
    raise LookupError("this reader has no such key")


def checked_key_reader(crypto_key_reader: Any) -> KeyReader | None:
    """Check the argument ``crypto_key_reader``. Raises `TypeError` for an object that cannot read keys."""
    if crypto_key_reader is None or isinstance(crypto_key_reader, KeyReader):
        return crypto_key_reader
    check_type("crypto_key_reader", crypto_key_reader, CryptoKeyReader, optional=True)
    return None


def encryptor(
    encryption_key: str | None,
    encryption_keys: Sequence[str],
    crypto_key_reader: Any,
    crypto_failure_action: ProducerCryptoFailureAction,
    random: Callable[[int], bytes] = os.urandom,
) -> PayloadEncryptor | None:
    """Return the encryptor for the arguments of ``create_producer``; None without encryption.

    Key names without a reader, and a reader without key names, are refused: both would publish plain text by
    mistake. Raises `CryptoError` if the package ``cryptography`` is missing.
    """
    check_type("encryption_key", encryption_key, str, optional=True)
    if isinstance(encryption_keys, str):
        refuse("encryption_keys", encryption_keys, "a list of key names; encryption_key takes one")
    check_type("crypto_failure_action", crypto_failure_action, ProducerCryptoFailureAction)
    reader = checked_key_reader(crypto_key_reader)
    names = list(dict.fromkeys((*((encryption_key,) if encryption_key else ()), *encryption_keys)))
    if reader is None and not names:
        return None
    if reader is None:
        refuse("crypto_key_reader", None, f"a CryptoKeyReader, to encrypt for {', '.join(names)}")
    if not names:
        refuse("encryption_key", encryption_key, "the name of a key, as there is a crypto_key_reader")
    return PayloadEncryptor(
        names,
        reader.get_public_key,
        random,
        plain_on_failure=crypto_failure_action is ProducerCryptoFailureAction.SEND,
    )


class Decryptor(PayloadDecryptor):
    """Decryptor with a reader's private keys, which can encrypt messages again for another topic."""

    def __init__(self, reader: KeyReader) -> None:
        super().__init__(reader.get_private_key)
        self._read_public_key = reader.get_public_key

    def encryptor_for(self, key_names: Sequence[str]) -> PayloadEncryptor:
        """Return an encryptor for the keys that a message was encrypted for."""
        return PayloadEncryptor(key_names, self._read_public_key, os.urandom)


def decryptor(crypto_key_reader: Any) -> Decryptor | None:
    """Return the decryptor for the argument of ``subscribe`` and ``create_reader``."""
    reader = checked_key_reader(crypto_key_reader)
    return None if reader is None else Decryptor(reader)
