"""Keys that marks are signed with: one of each namespace of a source, which its administrators can see.

A key is a property of the namespace in the source cluster: brokers show these to administrators of the
tenant only, unlike what topics and subscriptions have, which everybody sees who may publish or consume.
Mirrors both ways know both clusters, and so does one that takes the entries on, to where they come from.

Without its key nobody knows what a mirror has written. So one that runs puts its key back when somebody
removes it, believes what it has once seen, and asks anew where another may have begun to sign since.
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
    """The keys of one cluster's namespaces, asked for when they are needed."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._known: dict[str, tuple[bytes, ...]] = {}
        self._there: dict[str, tuple[bytes, ...]] = {}
        """What the cluster had when it was asked last."""
        self._own: dict[str, bytes] = {}
        self._asking: dict[str, asyncio.Lock] = {}
        self._making: dict[str, asyncio.Lock] = {}
        self._asked: dict[str, int] = {}
        """How often a namespace was asked."""
        self._answered: dict[str, int] = {}
        """The last of these questions that has its answer."""

    def known(self, namespace: str) -> tuple[bytes, ...]:
        """All that were ever seen here."""
        return self._known.get(namespace, ())

    async def learn(self, namespace: str) -> tuple[bytes, ...]:
        """All that there are by now, and were before. Raises what admin REST reports."""
        before = self._asked.get(namespace, 0)
        async with self._asking.setdefault(namespace, asyncio.Lock()):
            if self._answered.get(namespace, 0) <= before:  # else somebody has asked since this call
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
        """The one to sign with; made where there is none. Raises `MirrorRefused` where it cannot be kept, and
        what admin REST reports."""
        async with self._making.setdefault(namespace, asyncio.Lock()):
            key = self._own.get(namespace)
            return await self._kept(namespace) if key is None else key

    async def keep(self) -> None:
        """Put back what was removed. Raises as `own`."""
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
                "%s: somebody has removed the key that this mirror signs with from the namespace's "
                "properties. It is put back: without it nobody knows what was mirrored. To have another "
                "one, stop the mirrors first", namespace,
            )  # fmt: skip
        key = key or secrets.token_bytes(KEY_BYTES)
        # Each has a name of its own: of two mirrors that begin at once both keys stay valid.
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
    """What may be shown of a key to everybody."""
    return hashlib.blake2b(key, digest_size=_FINGERPRINT_BYTES, person=b"geminga-mark-key").hexdigest()


def _key(text: object) -> bytes | None:
    try:
        key = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        return None
    return key if len(key) == KEY_BYTES else None
