"""`geminga.Admin`: the calls of `geminga.asyncio.Admin` (`geminga.client.admin.aio`) for threads.

A method for threads runs the coroutine of the asyncio method. That ends in its first step, because the
requests wait on the calling thread (`AdminSender`) instead of an event loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from geminga import policies
from geminga.client.admin.aio.base import AdminBase
from geminga.client.admin.aio.calls import AdminCalls
from geminga.client.admin.aio.namespaces import Namespaces as AsyncNamespaces
from geminga.client.admin.aio.policies import KnownPolicies
from geminga.client.admin.aio.policies import PolicyAt as AsyncPolicyAt
from geminga.client.admin.aio.policies import PolicyHolder as AsyncPolicyHolder
from geminga.client.admin.aio.policies import TopicPolicies as AsyncTopicPolicies
from geminga.client.admin.aio.schemas import Schemas as AsyncSchemas
from geminga.client.admin.aio.subscriptions import Subscriptions as AsyncSubscriptions
from geminga.client.admin.aio.tenants import Brokers as AsyncBrokers
from geminga.client.admin.aio.tenants import Clusters as AsyncClusters
from geminga.client.admin.aio.tenants import Tenants as AsyncTenants
from geminga.client.admin.aio.topics import Topics as AsyncTopics
from geminga.client.admin.exchange import AdminSettings
from geminga.client.admin.transport import AdminSender
from geminga.policies import Policy

T = TypeVar("T")
P = ParamSpec("P")


def _result(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that does not wait for an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("an admin call for threads waits for an event loop")


def _plain(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return the method for threads of a method for asyncio."""

    @functools.wraps(method)
    def plain(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _result(method(self._section, *args, **kwargs))

    return plain


class Section:
    """Base class of an admin's sections."""

    def __init__(self, section: Any) -> None:
        self._section = section


class Tenants(Section):
    """Tenants, which own namespaces."""

    list = _plain(AsyncTenants.list)
    get = _plain(AsyncTenants.get)
    create = _plain(AsyncTenants.create)
    update = _plain(AsyncTenants.update)
    delete = _plain(AsyncTenants.delete)


class Clusters(Section):
    """Clusters that brokers know."""

    list = _plain(AsyncClusters.list)
    get = _plain(AsyncClusters.get)


class Brokers(Section):
    """Brokers: their state, settings and metrics."""

    list = _plain(AsyncBrokers.list)
    leader = _plain(AsyncBrokers.leader)
    version = _plain(AsyncBrokers.version)
    is_ready = _plain(AsyncBrokers.is_ready)
    check_health = _plain(AsyncBrokers.check_health)
    check_live = _plain(AsyncBrokers.check_live)
    check_ready = _plain(AsyncBrokers.check_ready)
    configuration = _plain(AsyncBrokers.configuration)
    dynamic_names = _plain(AsyncBrokers.dynamic_names)
    dynamic_configuration = _plain(AsyncBrokers.dynamic_configuration)
    set_dynamic = _plain(AsyncBrokers.set_dynamic)
    remove_dynamic = _plain(AsyncBrokers.remove_dynamic)
    metrics = _plain(AsyncBrokers.metrics)
    is_geminga = _plain(AsyncBrokers.is_geminga)
    disk = _plain(AsyncBrokers.disk)


class PolicyAt(Generic[T]):
    """Policy of namespaces or topics, with ``get``, ``set`` and ``remove``."""

    def __init__(self, calls: AsyncPolicyAt[T]) -> None:
        self._calls = calls

    def get(self, place: str, *, applied: bool | None = None) -> T | None:
        """Return the policy set on ``place`` itself; with ``applied``, for topics, the effective value."""
        return _result(self._calls.get(place, applied=applied))

    def set(self, place: str, value: T) -> None:
        """Set the policy of ``place``. Raises `InvalidConfiguration` for a value of another type."""
        _result(self._calls.set(place, value))

    def remove(self, place: str) -> None:
        """Unset the policy of ``place``: the value of the namespace or the broker applies again."""
        _result(self._calls.remove(place))


class PolicyHolder(KnownPolicies, Section):
    """Policies that both namespaces and topics have."""

    def path(self, place: str) -> str:
        """Return the REST path of the policies of ``place``."""
        path: str = self._section.path(place)
        return path

    def policy_at(self, policy: Policy[T]) -> PolicyAt[T]:
        """Return the calls of a policy."""
        return PolicyAt(self._section.policy_at(policy))

    backlog_quotas = _plain(AsyncPolicyHolder.backlog_quotas)
    set_backlog_quota = _plain(AsyncPolicyHolder.set_backlog_quota)
    remove_backlog_quota = _plain(AsyncPolicyHolder.remove_backlog_quota)


class TopicPolicies(policies.TopicScope, PolicyHolder):
    """Policies of single topics, which override those of the namespace."""


class Namespaces(policies.NamespaceScope, PolicyHolder):
    """Namespaces, written ``tenant/namespace``. Each policy is an attribute with ``get``, ``set`` and
    ``remove``::

        admin.namespaces.retention.set("public/default", Retention(minutes=7 * 1440, megabytes=-1))
    """

    list = _plain(AsyncNamespaces.list)
    create = _plain(AsyncNamespaces.create)
    delete = _plain(AsyncNamespaces.delete)
    policies = _plain(AsyncNamespaces.policies)
    topics = _plain(AsyncNamespaces.topics)
    unload = _plain(AsyncNamespaces.unload)
    clear_backlog = _plain(AsyncNamespaces.clear_backlog)
    permissions = _plain(AsyncNamespaces.permissions)
    grant = _plain(AsyncNamespaces.grant)
    revoke = _plain(AsyncNamespaces.revoke)
    subscription_permissions = _plain(AsyncNamespaces.subscription_permissions)
    grant_subscription = _plain(AsyncNamespaces.grant_subscription)
    revoke_subscription = _plain(AsyncNamespaces.revoke_subscription)


class Topics(Section):
    """Topics, partitioned or not. Unless a method says otherwise, it acts on a partitioned topic as a
    whole."""

    list = _plain(AsyncTopics.list)
    list_partitioned = _plain(AsyncTopics.list_partitioned)
    create = _plain(AsyncTopics.create)
    delete = _plain(AsyncTopics.delete)
    partitions = _plain(AsyncTopics.partitions)
    update_partitions = _plain(AsyncTopics.update_partitions)
    create_missed_partitions = _plain(AsyncTopics.create_missed_partitions)
    names = _plain(AsyncTopics.names)
    unload = _plain(AsyncTopics.unload)
    terminate = _plain(AsyncTopics.terminate)
    truncate = _plain(AsyncTopics.truncate)
    trim = _plain(AsyncTopics.trim)
    stats = _plain(AsyncTopics.stats)
    internal_stats = _plain(AsyncTopics.internal_stats)
    last_message_id = _plain(AsyncTopics.last_message_id)
    message_id_at = _plain(AsyncTopics.message_id_at)
    messages_at = _plain(AsyncTopics.messages_at)
    examine = _plain(AsyncTopics.examine)
    backlog_size = _plain(AsyncTopics.backlog_size)
    compact = _plain(AsyncTopics.compact)
    compaction_status = _plain(AsyncTopics.compaction_status)
    offload = _plain(AsyncTopics.offload)
    offload_status = _plain(AsyncTopics.offload_status)
    properties = _plain(AsyncTopics.properties)
    update_properties = _plain(AsyncTopics.update_properties)
    remove_property = _plain(AsyncTopics.remove_property)
    permissions = _plain(AsyncTopics.permissions)
    grant = _plain(AsyncTopics.grant)
    revoke = _plain(AsyncTopics.revoke)
    ensure = _plain(AsyncTopics.ensure)


class Subscriptions(Section):
    """Subscriptions of topics."""

    list = _plain(AsyncSubscriptions.list)
    create = _plain(AsyncSubscriptions.create)
    delete = _plain(AsyncSubscriptions.delete)
    properties = _plain(AsyncSubscriptions.properties)
    set_properties = _plain(AsyncSubscriptions.set_properties)
    clear = _plain(AsyncSubscriptions.clear)
    skip = _plain(AsyncSubscriptions.skip)
    skip_entry = _plain(AsyncSubscriptions.skip_entry)
    reset_to_time = _plain(AsyncSubscriptions.reset_to_time)
    reset_to_id = _plain(AsyncSubscriptions.reset_to_id)
    expire = _plain(AsyncSubscriptions.expire)
    expire_to_id = _plain(AsyncSubscriptions.expire_to_id)
    peek = _plain(AsyncSubscriptions.peek)
    explain = _plain(AsyncSubscriptions.explain)


class Schemas(Section):
    """Schemas of topics, which may be registered before the topic exists.

    A schema argument is a schema (``JsonSchema(Job)``, ...), a dataclass or a similar class, or a
    `SchemaInfo`.
    """

    get = _plain(AsyncSchemas.get)
    versions = _plain(AsyncSchemas.versions)
    upload = _plain(AsyncSchemas.upload)
    delete = _plain(AsyncSchemas.delete)
    check = _plain(AsyncSchemas.check)


class Admin(AdminBase):
    """Administration of a cluster, over the REST API of Apache Pulsar's and Geminga's brokers.

    ::

        with geminga.Admin("http://localhost:8080") as admin:
            admin.topics.create("orders", partitions=4)
            admin.namespaces.retention.set("public/default", Retention(minutes=1440, megabytes=-1))
            print(admin.subscriptions.peek("orders-partition-0", "billing", 10))

    Several threads may use it.
    """

    tenants: Tenants
    clusters: Clusters
    namespaces: Namespaces
    topics: Topics
    topic_policies: TopicPolicies
    subscriptions: Subscriptions
    schemas: Schemas
    brokers: Brokers

    def _open(self, settings: AdminSettings) -> AdminCalls:
        calls = AdminCalls(AdminSender(settings))
        self.tenants = Tenants(AsyncTenants(calls))
        self.clusters = Clusters(AsyncClusters(calls))
        self.namespaces = Namespaces(AsyncNamespaces(calls))
        self.topics = Topics(AsyncTopics(calls))
        self.topic_policies = TopicPolicies(AsyncTopicPolicies(calls))
        self.subscriptions = Subscriptions(AsyncSubscriptions(calls))
        self.schemas = Schemas(AsyncSchemas(calls))
        self.brokers = Brokers(AsyncBrokers(calls))
        return calls

    def call(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None
    ) -> Any:
        """Call any path below ``/admin/v2``, where this class has no method, and return the decoded JSON of
        the answer, None if it is empty. ``path`` is percent-encoded (`geminga.admin.topic_path`)."""
        return _result(self._calls.call(method, path, body, query=query))

    def close(self) -> None:
        """Close idle connections; later calls raise `AlreadyClosed`."""
        self._calls.sender.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
