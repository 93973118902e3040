"""Authorization: super users, administrators of tenants, and roles with permissions.

As in Apache Pulsar: a super user may do everything; roles in a tenant's ``adminRoles`` may do everything in
it; others need a permission of their role, for the namespace or for the topic. Anything else is refused.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from geminga.broker.rules.namespaces import NamespaceRegistry
from geminga.ids import TopicName
from geminga.transactions import COORDINATORS_TOPIC

PRODUCE: Final = "produce"
CONSUME: Final = "consume"
PACKAGES: Final = "packages"


class Authorization:
    """Authorization by the present policies; nothing is cached."""

    def __init__(
        self,
        namespaces: NamespaceRegistry,
        super_user_roles: Collection[str],
        metrics_roles: Collection[str] = (),
    ) -> None:
        self._namespaces = namespaces
        self._super = frozenset(super_user_roles)
        self._metrics = frozenset(metrics_roles)

    def is_super_user(self, role: str) -> bool:
        return role in self._super

    def may_read_metrics(self, role: str) -> bool:
        return role in self._super or role in self._metrics

    def administers(self, role: str, tenant: str) -> bool:
        """Return whether ``role`` may do everything in a tenant; for a missing one, super users only."""
        return role in self._super or role in self._namespaces.tenants.admin_roles(tenant)

    def may_in_namespace(self, role: str, action: str, tenant: str, namespace: str) -> bool:
        """Return whether the role has the permission for the whole namespace."""
        if self.administers(role, tenant):
            return True
        given = self._namespaces.permissions(tenant, namespace)
        return given is not None and _allows(given, "namespace_auth", role, action)

    def may(self, role: str, action: str, topic: TopicName) -> bool:
        """Return whether ``role`` may do ``action`` with the topic, or with the topic of a partition."""
        if self.may_in_namespace(role, action, topic.tenant, topic.namespace):
            return True
        given = self._namespaces.permissions(topic.tenant, topic.namespace)
        of_topics = None if given is None else given.get("destination_auth")
        if not isinstance(of_topics, Mapping):
            return False
        names = {str(topic), str(topic.base)}
        return any(_allows(of_topics, name, role, action) for name in names)

    def may_look(self, role: str, topic: TopicName) -> bool:
        """Return whether ``role`` may find the topic and see its statistics, as producer or consumer.

        All roles may have transactions, and so find their coordinator.
        """
        return (
            topic.base.text == COORDINATORS_TOPIC
            or self.may(role, PRODUCE, topic)
            or self.may(role, CONSUME, topic)
        )

    def may_subscribe(self, role: str, topic: TopicName, subscription: str) -> bool:
        """Return whether ``role`` may consume with this subscription (empty: with any).

        A subscription that was granted to roles is reserved for them; in namespaces with the subscription
        mode ``Prefix`` its name must start with the role.
        """
        if self.administers(role, topic.tenant):
            return True
        return self._subscription_is_free(role, topic.tenant, topic.namespace, subscription) and self.may(
            role, CONSUME, topic
        )

    def may_use_subscriptions(self, role: str, tenant: str, namespace: str, subscription: str) -> bool:
        """Return whether ``role`` may consume with this subscription name on all topics of a namespace."""
        if self.administers(role, tenant):
            return True
        return self._subscription_is_free(role, tenant, namespace, subscription) and self.may_in_namespace(
            role, CONSUME, tenant, namespace
        )

    def _subscription_is_free(self, role: str, tenant: str, namespace: str, subscription: str) -> bool:
        if not subscription:
            return True
        given = self._namespaces.permissions(tenant, namespace)
        if given is None:
            return False
        of_subscriptions = given.get("subscription_auth_roles")
        roles = of_subscriptions.get(subscription) if isinstance(of_subscriptions, Mapping) else None
        if roles and role not in roles:
            return False
        mode = self._namespaces.get_policy(tenant, namespace, "subscription_auth_mode")
        return mode != "Prefix" or subscription.startswith(role)


def _allows(given: Mapping[str, Any], where: str, role: str, action: str) -> bool:
    roles = given.get(where)
    actions = roles.get(role) if isinstance(roles, Mapping) else None
    return isinstance(actions, list) and action in actions
