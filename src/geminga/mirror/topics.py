"""Discovery of topics to mirror, and their creation in the target: partitions, namespaces and policies."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from geminga.asyncio import Admin
from geminga.client.admin.aio.policies import NamespacePolicies, PolicyHolder, TopicPolicies
from geminga.errors import AdminConflict, AdminError, AdminNotAllowed, AdminNotFound
from geminga.ids import TopicName
from geminga.mirror.pairing import PREFIX, MirrorRefused
from geminga.mirror.patterns import MirrorPattern

logger = logging.getLogger("geminga.mirror")

NOT_COPIED = frozenset(
    policy.name
    for scope in (NamespacePolicies, TopicPolicies)
    for policy in scope.policies_known()
    if not policy.mirrored
)
"""Policies that belong to a cluster rather than to its data, or would delete data before it is used.
Permissions are not copied either: roles differ."""
ASKED_AT_ONCE = 16
"""Policies of the source that are queried concurrently."""
DISABLED = "opic level policies is disabled"
"""Text of Apache Pulsar's error 405 if topic policies are disabled."""


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic of the source; ``partitions`` is 0 if it is not partitioned."""

    topic: TopicName
    partitions: int

    def names(self) -> list[str]:
        """Return the names of the partitions, or of the topic if it is not partitioned."""
        if not self.partitions:
            return [str(self.topic)]
        return [str(self.topic.partition_name(index)) for index in range(self.partitions)]


async def find_topics(
    admin: Admin, patterns: Iterable[MirrorPattern], known: Mapping[str, int] | None = None
) -> list[SourceTopic]:
    """Return the persistent topics of a cluster that match one of the patterns, sorted by name.

    ``known``: number of partitions of topics found before; it is queried again if the list shows another
    number.
    """
    known = {} if known is None else known
    patterns = list(patterns)
    found: dict[str, SourceTopic] = {}
    for namespace in await _namespaces(admin, patterns):
        try:
            partitioned = [TopicName.parse(name) for name in await admin.topics.list_partitioned(namespace)]
            single = [TopicName.parse(name) for name in await admin.topics.list(namespace)]
        except AdminNotFound:
            continue
        bases = {str(topic) for topic in partitioned}
        listed = Counter(str(topic.base) for topic in single if topic.partition >= 0)
        for topic in partitioned:
            if topic.persistent and any(pattern.matches(topic) for pattern in patterns):
                count = known.get(str(topic))
                if count is None or count != listed[str(topic)]:
                    count = await admin.topics.partitions(topic)
                found[str(topic)] = SourceTopic(topic, count)
        for topic in single:
            is_part = topic.partition >= 0 and str(topic.base) in bases
            if not is_part and topic.persistent and any(pattern.matches(topic) for pattern in patterns):
                found[str(topic)] = SourceTopic(topic, 0)
    return [found[name] for name in sorted(found)]


async def _namespaces(admin: Admin, patterns: list[MirrorPattern]) -> list[str]:
    names: set[str] = set()
    for pattern in patterns:
        tenant, namespace = pattern.plain(pattern.tenant), pattern.plain(pattern.namespace)
        if tenant is not None and namespace is not None:
            names.add(f"{tenant}/{namespace}")
            continue
        tenants = [tenant] if tenant is not None else await admin.tenants.list()
        for one in tenants:
            try:
                names |= {
                    name for name in await admin.namespaces.list(one) if pattern.matches_namespace(name)
                }
            except AdminNotFound:
                continue
    return sorted(names)


class TopicMaker:
    """Creates missing topics in the target."""

    def __init__(self, source: Admin, target: Admin, *, policies: bool) -> None:
        self._source = source
        self._target = target
        self._policies = policies
        self._namespaces: set[str] = set()
        self._asking = asyncio.Semaphore(ASKED_AT_ONCE)
        self._tells_what_is_set = True
        self._has_topic_policies = True

    async def make(self, found: SourceTopic) -> None:
        """Create a topic with namespace and tenant. Raises `MirrorRefused` if another kind of topic
        exists."""
        await self._make_namespace(found.topic.namespace_name)
        name = str(found.topic)
        there = await self._partitions(name)
        if there and not found.partitions:
            raise MirrorRefused(
                f"{name} has {there} partitions in the target and none in the source: delete it there, or "
                "leave it out"
            )
        if there:
            if there < found.partitions:
                await self._target.topics.update_partitions(name, found.partitions)
            return
        if found.partitions and await self._exists(found.topic):
            raise MirrorRefused(
                f"{name} has {found.partitions} partitions in the source and none in the target: delete it "
                "there, or leave it out"
            )
        try:
            await self._target.topics.create(name, partitions=found.partitions)
        except AdminConflict:
            return
        if self._policies:
            await self._copy_labels(name)
            if self._has_topic_policies:
                await self._copy_policies(self._source.topic_policies, self._target.topic_policies, name)

    async def _partitions(self, topic: str) -> int:
        try:
            return await self._target.topics.partitions(topic)
        except AdminNotFound:
            return 0

    async def _exists(self, topic: TopicName) -> bool:
        return str(topic) in await self._target.topics.list(topic.namespace_name)

    async def _make_namespace(self, namespace: str) -> None:
        if namespace in self._namespaces:
            return
        tenant = namespace.partition("/")[0]
        try:
            there = namespace in await self._target.namespaces.list(tenant)
        except AdminNotFound:
            there = False
            with contextlib.suppress(AdminConflict):  # without its administrators: roles differ
                await self._target.tenants.create(tenant)
        if not there:
            try:
                await self._target.namespaces.create(namespace)
            except AdminConflict:
                pass
            else:
                if self._policies:
                    await self._copy_policies(self._source.namespaces, self._target.namespaces, namespace)
        self._namespaces.add(namespace)

    async def _copy_labels(self, topic: str) -> None:
        try:
            found = await self._source.topics.properties(topic)
            # The mirrors' properties are valid for the source only.
            labels = {name: label for name, label in found.items() if not name.startswith(PREFIX)}
            if labels:
                await self._target.topics.update_properties(topic, labels)
        except AdminError as error:
            logger.warning("the properties of %s are not copied: %s", topic, error)

    async def _copy_policies(self, source: PolicyHolder, target: PolicyHolder, place: str) -> None:
        """Copy the policies set at ``place`` itself. Policies that cannot be read or set are logged."""
        are_set = await self._set_at(source, place)
        wanted = [
            policy
            for policy in type(source).policies_known()
            if policy.name not in NOT_COPIED and (are_set is None or policy.segment in are_set)
        ]
        values = await asyncio.gather(*(self._value(source, policy.name, place) for policy in wanted))
        for policy, value in zip(wanted, values, strict=True):
            if value is not None:
                await self._set(getattr(target, policy.name), policy.name, place, value)
        if are_set is not None and "backlogQuotaMap" not in are_set:
            return
        try:
            for kind, quota in (await source.backlog_quotas(place)).items():
                await target.set_backlog_quota(place, quota, kind=kind)
        except AdminError as error:
            logger.warning("the backlog quotas of %s are not copied: %s", place, error)

    async def _set_at(self, source: PolicyHolder, place: str) -> frozenset[str] | None:
        """Return the policies that are set, by the last part of their paths; None if the source does not list
        them (Apache Pulsar): then each is queried."""
        if self._tells_what_is_set:
            try:
                found = await self._source.call("GET", f"{source.path(place)}/policiesSet")
                if isinstance(found, list):
                    return frozenset(found)
                self._tells_what_is_set = False
            except AdminError as error:
                logger.debug("%s: querying each policy separately: %s", place, error)
                self._tells_what_is_set = False
        return None

    async def _value(self, source: PolicyHolder, name: str, place: str) -> Any:
        async with self._asking:
            if not self._has_topic_policies and isinstance(source, TopicPolicies):
                return None
            try:
                return await getattr(source, name).get(place)
            except AdminError as error:
                if isinstance(error, AdminNotAllowed) and DISABLED in str(error):
                    self._has_topic_policies = False
                    logger.info("topics of the source have no policies: %s", error)
                else:
                    logger.warning("%s of %s is not copied: %s", name, place, error)
        return None

    async def _set(self, target: Any, name: str, place: str, value: Any) -> None:
        try:
            if value != await target.get(place):
                await target.set(place, value)
        except AdminError as error:
            logger.warning("%s of %s is not copied: %s", name, place, error)
