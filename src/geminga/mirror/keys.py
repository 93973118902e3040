"""Keys that marks are signed with: one of each namespace of a source, which its administrators can see.

A key is a property of the namespace in the source cluster: brokers show these to administrators of the
tenant only, unlike what topics and subscriptions have, which everybody sees who may publish or consume.
Mirrors both ways know both clusters, and so does one that takes the entries on, to where they come from.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping

from geminga.asyncio import Admin
from geminga.client.admin.exchange import namespace_path
from geminga.errors import AdminError
from geminga.mirror.marks import KEY_BYTES
from geminga.mirror.pairing import MirrorRefused

KEY_PREFIX = "geminga-mirror-key."


class MarkKeys:
    """The keys of one cluster's namespaces, asked for when they are needed."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._known: dict[str, tuple[bytes, ...]] = {}
        self._asking: dict[str, asyncio.Lock] = {}

    def known(self, namespace: str) -> tuple[bytes, ...]:
        """As far as they were asked for."""
        return self._known.get(namespace, ())

    async def learn(self, namespace: str) -> tuple[bytes, ...]:
        """All that there are by now. Raises what admin REST reports."""
        found: Mapping[str, str] | None = await self._admin.call("GET", self._path(namespace))
        keys = []
        for name, text in sorted((found or {}).items()):
            key = _key(text) if name.startswith(KEY_PREFIX) else None
            if key is not None:
                keys.append(key)
        self._known[namespace] = tuple(keys)
        return self._known[namespace]

    async def own(self, namespace: str) -> bytes:
        """The one to sign with; made where there is none. Raises `MirrorRefused` where it cannot be kept."""
        async with self._asking.setdefault(namespace, asyncio.Lock()):
            keys = self.known(namespace)
            try:
                if not keys and not (keys := await self.learn(namespace)):
                    # Each has a name of its own: of two mirrors that begin at once both keys stay valid.
                    added = {KEY_PREFIX + secrets.token_hex(4): secrets.token_hex(KEY_BYTES)}
                    await self._admin.call("PUT", self._path(namespace), added)
                    keys = await self.learn(namespace)
            except AdminError as error:
                if error.retriable:
                    raise
                raise MirrorRefused(
                    f"{namespace}: the source does not let the mirror keep a key in the namespace's "
                    f"properties ({error}). Give its role the administration of the tenant: without the key "
                    "whoever may publish could pass off messages as mirrored"
                ) from error
        if not keys:
            raise MirrorRefused(f"{namespace}: the source does not keep the namespace's properties")
        return keys[0]

    @staticmethod
    def _path(namespace: str) -> str:
        return f"namespaces/{namespace_path(namespace)}/properties"


def _key(text: str) -> bytes | None:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        return None
    return key if len(key) == KEY_BYTES else None
