"""End-to-end encryption of payloads (framing.md section 1.5).

A payload (a compressed batch, a message, or one chunk) is encrypted with AES-256 in Galois/counter mode: 12
bytes of initialisation vector travel in ``encryption_param``, the 16-byte tag behind the ciphertext, no other
data is authenticated. The AES key, called the data key, is made here; it travels with every message in
``encryption_keys``, wrapped once for each public key:

* RSA keys: OAEP with SHA-1 and MGF1-SHA-1, as the Java, C++, Python and Go clients do it;
* EC keys: what the Java client's BouncyCastle calls ECIES without further words. An ephemeral key pair and
  Diffie-Hellman, KDF2 with SHA-1 over ephemeral point and shared secret, the derived bytes first for the
  MAC (16) and then as a one-time pad, HMAC-SHA-1 over the ciphertext and 8 zero bytes (the length of an
  absent encoding vector); point, ciphertext and MAC one behind the other. Only the Java client has it.

Nothing here reads a clock or makes keys out of thin air: `PayloadEncryptor` takes ``random(count) -> bytes``,
which must come from the operating system's generator, and its caller calls `renew` for new data keys. (Only
the padding of OAEP is filled by the library itself.) Vectors never repeat under one data key: they count up
from a random start.

Needs the package ``cryptography`` (``pip install 'geminga[encryption]'``), loaded when it is first used.
"""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from geminga.config import check_type, refuse
from geminga.errors import CryptoError
from geminga.wire.checksum import Buffer
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.strict import text
from geminga.wire.varint import varint

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

IV_SIZE = 12
TAG_SIZE = 16
DATA_KEY_SIZE = 32
RENEWAL_SECONDS = 4 * 3600.0
"""Maximum seconds of use of a data key, as in the Java client."""
WRAPPED_KEYS_MAX = 64
"""Maximum wrapped data keys of one message that a consumer tries: each may cost an RSA operation."""
DATA_KEYS_KEPT = 256
"""Maximum unwrapped data keys that a consumer caches; the oldest is dropped first."""
PRIVATE_KEYS_KEPT = 32

_AES_KEY_SIZES = (16, 24, 32)
_MAC_KEY_SIZE = 16
_MAC_SIZE = 20
_IV_SPACE = 1 << (8 * IV_SIZE)

Random = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class EncryptionKeyInfo:
    """Result of a key reader: a key in PEM form, and metadata to send with its name."""

    key: bytes = field(repr=False)
    """In PEM form."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Metadata sent with the key's name."""

    def __post_init__(self) -> None:
        check_type("key", self.key, bytes)
        check_type("metadata", self.metadata, Mapping)


ReadKey = Callable[[str, Mapping[str, str]], "EncryptionKeyInfo | bytes"]
"""Maps ``(key name, metadata sent with it)`` to the key; raises any error when it has none."""


def _part(name: str) -> ModuleType:
    """Import a module of ``cryptography``; raise a `CryptoError` with instructions if it is missing."""
    import importlib

    try:
        return importlib.import_module(f"cryptography.{name}")
    except ImportError as error:
        raise CryptoError(
            "end-to-end encryption needs the package 'cryptography': pip install 'geminga[encryption]'"
        ) from error


# --- data keys, wrapped ---------------------------------------------------------------------------

_EC_PARAMETERS = re.compile(
    rb"-----BEGIN EC PARAMETERS-----.*?-----END EC PARAMETERS-----", re.DOTALL | re.ASCII
)


def load_public_key(pem: bytes) -> Any:
    """Return the RSA or EC public key of a PEM text (a key or a certificate). Raises `CryptoError`."""
    serialization = _part("hazmat.primitives.serialization")
    try:
        if b"BEGIN CERTIFICATE" in pem:
            return _part("x509").load_pem_x509_certificate(pem).public_key()
        return serialization.load_pem_public_key(_EC_PARAMETERS.sub(b"", pem))
    except Exception as error:
        raise CryptoError(f"the public key cannot be read: {_reason(error)}") from None


def load_private_key(pem: bytes) -> Any:
    """Return the RSA or EC private key of a PEM text (PKCS#1, SEC1 or PKCS#8, no password).

    Raises `CryptoError`, which never repeats any of the text.
    """
    serialization = _part("hazmat.primitives.serialization")
    try:
        return serialization.load_pem_private_key(_EC_PARAMETERS.sub(b"", pem), None)
    except Exception as error:
        raise CryptoError(f"the private key cannot be read: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """Return type and first line of an error: parsers' texts may be long."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"


def _oaep() -> Any:
    padding = _part("hazmat.primitives.asymmetric.padding")
    hashes = _part("hazmat.primitives.hashes")
    return padding.OAEP(mgf=padding.MGF1(hashes.SHA1()), algorithm=hashes.SHA1(), label=None)


def wrap_data_key(public_key: Any, data_key: bytes, random: Random) -> bytes:
    """Encrypt ``data_key`` for the private key's holder. Raises `CryptoError` for other key types."""
    rsa = _part("hazmat.primitives.asymmetric.rsa")
    ec = _part("hazmat.primitives.asymmetric.ec")
    if isinstance(public_key, rsa.RSAPublicKey):
        try:
            return bytes(public_key.encrypt(data_key, _oaep()))
        except ValueError as error:
            raise CryptoError(f"the RSA key cannot wrap a data key: {_reason(error)}") from None
    if isinstance(public_key, ec.EllipticCurvePublicKey):
        return _ecies_encrypt(ec, public_key, data_key, random)
    raise CryptoError(f"a public key is {type(public_key).__name__}; RSA and EC keys can encrypt")


def unwrap_data_key(private_key: Any, wrapped: bytes) -> bytes:
    """Return the data key. Raises `CryptoError` when it was not wrapped for this key or was changed."""
    rsa = _part("hazmat.primitives.asymmetric.rsa")
    ec = _part("hazmat.primitives.asymmetric.ec")
    try:
        if isinstance(private_key, rsa.RSAPrivateKey):
            data_key = bytes(private_key.decrypt(wrapped, _oaep()))
        elif isinstance(private_key, ec.EllipticCurvePrivateKey):
            data_key = _ecies_decrypt(ec, private_key, wrapped)
        else:
            raise CryptoError(f"a private key is {type(private_key).__name__}; RSA and EC keys can decrypt")
    except ValueError:
        raise CryptoError("the data key was not encrypted for this private key, or was changed") from None
    if len(data_key) not in _AES_KEY_SIZES:
        raise CryptoError(f"the data key has {len(data_key)} bytes, which is no AES key")
    return data_key


def _ecies_encrypt(ec: ModuleType, public_key: Any, data_key: bytes, random: Random) -> bytes:
    curve = public_key.curve
    ephemeral = ec.derive_private_key(_scalar(curve.group_order, random), curve)
    point = _point(ephemeral.public_key())
    shared = ephemeral.exchange(ec.ECDH(), public_key)
    mac_key, pad = _derive(point + shared, len(data_key))
    hidden = bytes(a ^ b for a, b in zip(data_key, pad, strict=True))
    return point + hidden + _mac(mac_key, hidden)


def _ecies_decrypt(ec: ModuleType, private_key: Any, wrapped: bytes) -> bytes:
    point_size = 1 + 2 * ((private_key.curve.key_size + 7) // 8)
    size = len(wrapped) - point_size - _MAC_SIZE
    if size not in _AES_KEY_SIZES:
        raise ValueError
    point, hidden, mac = wrapped[:point_size], wrapped[point_size:-_MAC_SIZE], wrapped[-_MAC_SIZE:]
    other = ec.EllipticCurvePublicKey.from_encoded_point(private_key.curve, point)
    mac_key, pad = _derive(point + private_key.exchange(ec.ECDH(), other), size)
    if not _part("hazmat.primitives.constant_time").bytes_eq(_mac(mac_key, hidden), mac):
        raise ValueError
    return bytes(a ^ b for a, b in zip(hidden, pad, strict=True))


def _scalar(order: int, random: Random) -> int:
    """Return a uniform number in [1, order)."""
    size, mask = (order.bit_length() + 7) // 8, (1 << order.bit_length()) - 1
    while True:
        number = int.from_bytes(random(size), "big") & mask
        if 0 < number < order:
            return number


def _point(public_key: Any) -> bytes:
    """Return the uncompressed form: 4, x, y."""
    serialization = _part("hazmat.primitives.serialization")
    return bytes(
        public_key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    )


def _derive(secret: bytes, size: int) -> tuple[bytes, bytes]:
    """Derive MAC key and pad by KDF2 with SHA-1 (counter from 1, after the secret)."""
    from hashlib import sha1

    wanted = _MAC_KEY_SIZE + size
    blocks = -(-wanted // _MAC_SIZE)
    stream = b"".join(sha1(secret + n.to_bytes(4, "big")).digest() for n in range(1, blocks + 1))
    return stream[:_MAC_KEY_SIZE], stream[_MAC_KEY_SIZE:wanted]


def _mac(key: bytes, hidden: bytes) -> bytes:
    from hmac import digest

    return digest(key, hidden + bytes(8), "sha1")


# --- producers ------------------------------------------------------------------------------------


class Sealed(NamedTuple):
    """An encrypted payload, and the fields 13 and 15 of its ``MessageMetadata``, encoded."""

    payload: bytes
    metadata: bytes


class _DataKey(NamedTuple):
    """One data key: its cipher, its encoded wrapped forms, and its unused vectors."""

    cipher: AESGCM
    keys: bytes
    vectors: Iterator[int]


class PayloadEncryptor:
    """Encrypts the payloads of one producer. Thread-safe.

    ``key_names`` are the public keys: holders of the private part of any of them can read.
    ``read_public_key`` is called for each at every `renew`, which comes first and then every
    `RENEWAL_SECONDS`. With ``plain_on_failure`` payloads are sent unencrypted while no data key could be
    created (Java's ``ProducerCryptoFailureAction.SEND``); without it nothing is sent unencrypted. Raises
    `CryptoError` if ``cryptography`` is missing.
    """

    def __init__(
        self,
        key_names: Sequence[str],
        read_public_key: ReadKey,
        random: Random,
        *,
        plain_on_failure: bool = False,
    ) -> None:
        if isinstance(key_names, str) or not key_names:
            refuse("encryption_keys", key_names, "a list with at least one key name")
        for name in key_names:
            if not check_type("encryption_keys", name, str):
                refuse("encryption_keys", name, "a text that is not empty")
        if len(set(key_names)) != len(key_names):
            refuse("encryption_keys", key_names, "each key name once")
        self.key_names = tuple(key_names)
        self.plain_on_failure = plain_on_failure
        self._read_public_key = read_public_key
        self._random = random
        self._ciphers = _part("hazmat.primitives.ciphers.aead")
        self._current: _DataKey | None = None

    def __repr__(self) -> str:
        return f"<PayloadEncryptor {', '.join(self.key_names)}>"

    def renew(self) -> None:
        """Create a new data key and wrap it for all public keys, which are read again.

        Raises `CryptoError`; the previous data key stays in use then.
        """
        data_key = self._random(DATA_KEY_SIZE)
        keys = []
        for name in self.key_names:
            info = read_key(self._read_public_key, name, {}, "public")
            wrapped = wrap_data_key(load_public_key(info.key), data_key, self._random)
            keys.append(_encode_key(name, wrapped, info.metadata))
        start = int.from_bytes(self._random(IV_SIZE), "big")
        self._current = _DataKey(self._ciphers.AESGCM(data_key), b"".join(keys), itertools.count(start))

    @property
    def metadata_size(self) -> int:
        """Return the bytes added to a message's metadata; an estimate until the first `renew`."""
        current = self._current
        keys = 1024 * len(self.key_names) if current is None else len(current.keys)
        return keys + 2 + IV_SIZE

    def seal(self, payload: Buffer) -> Sealed | None:
        """Return the encrypted payload; None to send it unencrypted. Raises `CryptoError`."""
        current = self._current
        if current is None:
            if self.plain_on_failure:
                return None
            raise CryptoError(f"no data key could be made for {', '.join(self.key_names)}: nothing is sent")
        vector = (next(current.vectors) % _IV_SPACE).to_bytes(IV_SIZE, "big")
        # Arrow's buffers are views of signed bytes, which the library refuses.
        plain = memoryview(payload).cast("B")
        return Sealed(current.cipher.encrypt(vector, plain, None), current.keys + b"\x7a\x0c" + vector)


def read_key(read: ReadKey, name: str, metadata: Mapping[str, str], kind: str) -> EncryptionKeyInfo:
    """Call a key reader; turn any of its errors into a `CryptoError` that names the key."""
    try:
        answer = read(name, metadata)
    except Exception as error:
        raise CryptoError(f"the {kind} key {name!r} was not given: {_reason(error)}") from error
    if isinstance(answer, bytes):
        return EncryptionKeyInfo(answer)
    if isinstance(answer, EncryptionKeyInfo):
        return answer
    raise CryptoError(
        f"the key reader answered a {type(answer).__name__} for the {kind} key {name!r}; "
        "expected bytes or EncryptionKeyInfo"
    )


def _encode_key(name: str, wrapped: bytes, metadata: Mapping[str, str]) -> bytes:
    """Return one ``encryption_keys`` (field 13 of ``MessageMetadata``)."""
    body = _field(b"\x0a", name.encode()) + _field(b"\x12", wrapped)
    for key, value in metadata.items():
        body += _field(b"\x1a", _field(b"\x0a", key.encode()) + _field(b"\x12", value.encode()))
    return _field(b"\x6a", body)


def _field(tag: bytes, value: bytes) -> bytes:
    return tag + varint(len(value)) + value


# --- consumers ------------------------------------------------------------------------------------


class PayloadDecryptor:
    """Decrypts payloads; called by one thread at a time.

    ``read_private_key`` is called once for each wrapped data key, with its name and metadata. Raises
    `CryptoError` if ``cryptography`` is missing.
    """

    def __init__(self, read_private_key: ReadKey) -> None:
        self._read_private_key = read_private_key
        self._ciphers = _part("hazmat.primitives.ciphers.aead")
        self._invalid_tag = _part("exceptions").InvalidTag
        self._data_keys: OrderedDict[bytes, AESGCM] = OrderedDict()
        self._private_keys: OrderedDict[bytes, Any] = OrderedDict()

    def __repr__(self) -> str:
        return "<PayloadDecryptor>"

    def __call__(self, metadata: pb.MessageMetadata, payload: Buffer) -> bytes:
        """Return the decrypted payload; see `decrypt_run`."""
        return self.decrypt_run(metadata, (metadata.encryption_param,), (payload,))[0]

    def decrypt_run(
        self, metadata: pb.MessageMetadata, vectors: Sequence[bytes], payloads: Sequence[Buffer]
    ) -> list[bytes]:
        """Return the decrypted payloads of messages with the keys of ``metadata``.

        Any one of its keys is enough. Raises `CryptoError` when none of them is available or when anything
        was changed in transit.
        """
        if sizes := {*map(len, vectors)} - {IV_SIZE}:
            raise CryptoError(f"encryption_param has {sizes.pop()} bytes, not {IV_SIZE}")
        if (size := min(map(len, payloads))) < TAG_SIZE:
            raise CryptoError(f"{size} bytes are too few for an encrypted payload")
        keys = metadata.encryption_keys
        if len(keys) > WRAPPED_KEYS_MAX:
            raise CryptoError(f"the message names {len(keys)} keys; at most {WRAPPED_KEYS_MAX} are tried")
        payloads = [each if type(each) is bytes else memoryview(each).cast("B") for each in payloads]
        reasons = []
        # Known data keys first: unwrapping costs a thousand times more than decrypting.
        known = self._data_keys
        wanted = [keys[0]] if len(keys) == 1 else sorted(keys, key=lambda key: key.value not in known)
        for key in wanted:
            try:
                cipher = known.get(key.value) or self._new_cipher(key)
                return list(map(cipher.decrypt, vectors, payloads, itertools.repeat(None)))
            except CryptoError as error:
                reasons.append(str(error))
            except self._invalid_tag:
                reasons.append(f"{_named(key)}: payload, tag or vector were changed")
        raise CryptoError("the message cannot be decrypted: " + ("; ".join(reasons) or "it names no key"))

    def _new_cipher(self, key: pb.EncryptionKeys) -> AESGCM:
        metadata = {text(pair.key): text(pair.value) for pair in key.metadata}
        info = read_key(self._read_private_key, text(key.key), metadata, "private")
        try:
            data_key = unwrap_data_key(self._private_key(info.key), key.value)
        except CryptoError as error:
            raise CryptoError(f"{_named(key)}: {error}") from None
        cipher = cast("AESGCM", self._ciphers.AESGCM(data_key))
        _keep(self._data_keys, key.value, cipher, DATA_KEYS_KEPT)
        return cipher

    def _private_key(self, pem: bytes) -> Any:
        known = self._private_keys.get(pem)
        if known is None:
            known = load_private_key(pem)
            _keep(self._private_keys, pem, known, PRIVATE_KEYS_KEPT)
        return known


def _keep(cache: OrderedDict[bytes, Any], key: bytes, value: Any, most: int) -> None:
    cache[key] = value
    if len(cache) > most:
        cache.popitem(last=False)


def _named(key: pb.EncryptionKeys) -> str:
    return f"key {text(key.key)[:200]!r}"
