"""Keys that sign marks: one per namespace of a source, visible to its administrators.

A key is a property of the namespace in the source cluster: brokers show these only to the tenant's
administrators, while clients that may publish or consume can read the properties of topics and subscriptions.
Mirrors in both directions know both clusters, and so does a mirror that copies the entries further.

Without the key, mirrored entries cannot be recognised. A running mirror therefore restores its key when it is
removed, trusts keys that it has seen, and queries again when another mirror may have created one.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Mapping

from geminga.asyncio import Admin
from geminga.client.admin.exchange import namespace_path
from geminga.errors import AdminError
from geminga.mirror.pairing import MirrorRefused
from geminga.mirror.replication_stamp import KEY_BYTES

logger = logging.getLogger("geminga.mirror")

KEY_PREFIX = "geminga-mirror-key."
_FINGERPRINT_BYTES = 8


class StampKeys:
    """Keys of a cluster's namespaces, queried when needed."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._known: dict[str, tuple[bytes, ...]] = {}
        self._there: dict[str, tuple[bytes, ...]] = {}
        """Keys that the cluster had at the last query."""
        self._own: dict[str, bytes] = {}
        self._asking: dict[str, asyncio.Lock] = {}
        self._making: dict[str, asyncio.Lock] = {}
        self._asked: dict[str, int] = {}
        """Number of queries per namespace."""
        self._answered: dict[str, int] = {}
        """Number of the last answered query per namespace."""

    def known(self, namespace: str) -> tuple[bytes, ...]:
        """Return all keys seen so far."""
        return self._known.get(namespace, ())

    async def learn(self, namespace: str) -> tuple[bytes, ...]:
        """Return all present and former keys. Raises errors of admin REST."""
        before = self._asked.get(namespace, 0)
        async with self._asking.setdefault(namespace, asyncio.Lock()):
            if self._answered.get(namespace, 0) <= before:  # else a concurrent call has queried since
                self._asked[namespace] = number = self._asked.get(namespace, 0) + 1
                self._saw(namespace, await self._admin.call("GET", self._path(namespace)))
                self._answered[namespace] = number
        return self._known[namespace]

    def _saw(self, namespace: str, properties: Mapping[str, str] | None) -> None:
        keys = []
        for name, text in sorted((properties or {}).items()):
            key = _key(text) if name.startswith(KEY_PREFIX) else None
            if key is not None:
                keys.append(key)
        self._there[namespace] = tuple(keys)
        self._known[namespace] = tuple(dict.fromkeys((*keys, *self.known(namespace))))

    async def own(self, namespace: str) -> bytes:
        """Return the key to sign with; create it if it does not exist. Raises `MirrorRefused` if it cannot be
        stored, and errors of admin REST."""
        async with self._making.setdefault(namespace, asyncio.Lock()):
            key = self._own.get(namespace)
            return await self._kept(namespace) if key is None else key

    async def keep(self) -> None:
        """Restore a removed key. Raises as `own`."""
        for namespace in list(self._own):
            async with self._making[namespace]:
                await self._kept(namespace)

    async def _kept(self, namespace: str) -> bytes:
        try:
            await self.learn(namespace)
            key, there = self._own.get(namespace), self._there[namespace]
            if key is None and there:
                key = self._own[namespace] = there[0]
            return await self._put(namespace, key) if key is None or key not in there else key
        except AdminError as error:
            if error.retriable:
                raise
            raise MirrorRefused(
                f"{namespace}: the source does not let the mirror keep a key in the namespace's "
                f"properties ({error}). Give its role the administration of the tenant: without the key "
                "whoever may publish could pass off messages as mirrored"
            ) from error

    async def _put(self, namespace: str, key: bytes | None) -> bytes:
        if key is not None:
            logger.warning(
                "%s: the key of this mirror was removed from the namespace's properties. It is restored: "
                "without it, mirrored entries cannot be recognised. To replace the key, stop the mirrors "
                "first", namespace,
            )  # fmt: skip
        key = key or secrets.token_bytes(KEY_BYTES)
        # Keys have unique names: if two mirrors start at once, both keys stay valid.
        added = {KEY_PREFIX + secrets.token_hex(4): key.hex()}
        await self._admin.call("PUT", self._path(namespace), added)
        await self.learn(namespace)
        if key not in self._there[namespace]:
            raise MirrorRefused(f"{namespace}: the source does not keep the namespace's properties")
        self._own[namespace] = key
        return key

    @staticmethod
    def _path(namespace: str) -> str:
        return f"namespaces/{namespace_path(namespace)}/properties"


def fingerprint(key: bytes) -> str:
    """Return a digest of a key that is safe to publish."""
    return hashlib.blake2b(key, digest_size=_FINGERPRINT_BYTES, person=b"geminga-mark-key").hexdigest()


def _key(text: object) -> bytes | None:
    try:
        key = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        return None
    return key if len(key) == KEY_BYTES else None
