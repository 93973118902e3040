"""Permission that each route of the web port needs: a complete table, checked before the handler runs.

Permissions are Apache Pulsar's, with two stricter ones: requests that act on all subscriptions at once
(clearing the backlog of all, expiring on all) need an administrator, and ``/metrics`` needs a super user,
because it contains the topic names of every tenant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from aiohttp import web

from geminga.broker.admin.auth import Key, RequiredPermission, key_of
from geminga.policies import NamespaceScope, TopicScope, declared

_BROKER: Final = {
    RequiredPermission.NOTHING: """
        GET /status.html
        GET /livez
        GET /readyz
    """,
    RequiredPermission.CREDENTIALS: """
        GET /admin/v2/brokers/ready
        GET /admin/v2/brokers/version
        GET /admin/v2/clusters
        GET /admin/v2/geminga/subscriptions
    """,
    RequiredPermission.SUPER_USER: """
        GET /metrics
        GET /metrics/
        GET /admin/v2/bookies/all
        GET /admin/v2/bookies/racks-info
        GET /admin/v2/broker-stats/allocator-stats/{allocator}
        GET /admin/v2/broker-stats/destinations
        GET /admin/v2/broker-stats/load-report
        GET /admin/v2/broker-stats/mbeans
        GET /admin/v2/broker-stats/metrics
        GET /admin/v2/broker-stats/topics
        GET /admin/v2/brokers
        GET /admin/v2/brokers/backlog-quota-check
        GET /admin/v2/brokers/configuration
        GET /admin/v2/brokers/configuration/runtime
        GET /admin/v2/brokers/configuration/values
        GET /admin/v2/brokers/health
        GET /admin/v2/brokers/internal-configuration
        GET /admin/v2/brokers/leaderBroker
        GET /admin/v2/brokers/{cluster}
        GET /admin/v2/brokers/{cluster}/{broker}/ownedNamespaces
        GET /admin/v2/clusters/{cluster}
        PUT /admin/v2/clusters/{cluster}
        POST /admin/v2/clusters/{cluster}
        DELETE /admin/v2/clusters/{cluster}
        GET /admin/v2/clusters/{cluster}/failureDomains
        GET /admin/v2/clusters/{cluster}/failureDomains/{name}
        POST /admin/v2/clusters/{cluster}/failureDomains/{name}
        DELETE /admin/v2/clusters/{cluster}/failureDomains/{name}
        GET /admin/v2/clusters/{cluster}/migrate
        POST /admin/v2/clusters/{cluster}/migrate
        GET /admin/namespaces/{cluster}/antiAffinity/{group}
        POST /admin/v2/brokers/configuration/{name}/{value}
        DELETE /admin/v2/brokers/configuration/{name}
        GET /admin/v2/clusters/{cluster}/namespaceIsolationPolicies
        GET /admin/v2/clusters/{cluster}/peers
        POST /admin/v2/clusters/{cluster}/peers
        GET /admin/v2/geminga/damage
        DELETE /admin/v2/geminga/damage/{name}
        GET /admin/v2/geminga/disk
        GET /admin/v2/geminga/happenings
        GET /admin/v2/geminga/overview
        GET /admin/v2/resource-quotas
        GET /admin/v2/resource-quotas/{tenant}/{namespace}/{bundle}
        GET /admin/v2/resourcegroups
        GET /admin/v2/resourcegroups/{group}
        PUT /admin/v2/resourcegroups/{group}
        DELETE /admin/v2/resourcegroups/{group}
        GET /admin/v2/tenants
        GET /admin/v2/tenants/{tenant}
        PUT /admin/v2/tenants/{tenant}
        POST /admin/v2/tenants/{tenant}
        DELETE /admin/v2/tenants/{tenant}
    """,
    RequiredPermission.ADMINISTRATOR: """
        GET /admin/v2/namespaces/{tenant}
        GET /admin/namespaces/{tenant}/{cluster}
    """,
    RequiredPermission.LIST: """
        GET /admin/v2/{domain}/{tenant}/{namespace}
        GET /admin/v2/{domain}/{tenant}/{namespace}/partitioned
        GET /admin/v2/{domain}/{tenant}/{namespace}/{bundle}
    """,
    RequiredPermission.LOOK: """
        GET /lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}
        GET /lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}/bundle
    """,
}
_NAMESPACE: Final = {
    RequiredPermission.ADMINISTRATOR: """
        GET
        PUT
        DELETE
        GET /bundles
        PUT /unload
        PUT /{bundle}/unload
        GET /{bundle}/topicHashPositions
        POST /clearBacklog
        POST /{bundle}/clearBacklog
        GET /permissions
        POST /permissions/{role}
        DELETE /permissions/{role}
        GET /permissions/subscription
        POST /permissions/subscription/{subscription}
        DELETE /permissions/{subscription}/{role}
        GET /backlogQuotaMap
        POST /backlogQuota
        DELETE /backlogQuota
        DELETE /removeOffloadPolicies
        GET /persistence/bookieAffinity
        POST /persistence/bookieAffinity
        DELETE /persistence/bookieAffinity
        GET /antiAffinity
        POST /antiAffinity
        DELETE /antiAffinity
        GET /resourcegroup
        GET /properties
        PUT /properties
        DELETE /properties
        GET /property/{key}
        PUT /property/{key}/{value}
        DELETE /property/{key}
    """,
    RequiredPermission.SUPER_USER: """
        PUT /{bundle}/split
        POST /resourcegroup/{group}
        DELETE /resourcegroup
    """,
    RequiredPermission.LIST: "GET /topics",
    RequiredPermission.SUBSCRIPTIONS: """
        POST /clearBacklog/{subscription}
        POST /{bundle}/clearBacklog/{subscription}
        POST /unsubscribe/{subscription}
        POST /{bundle}/unsubscribe/{subscription}
    """,
}
_TOPIC: Final = {
    RequiredPermission.ADMINISTRATOR: """
        PUT
        DELETE
        PUT /partitions
        POST /partitions
        DELETE /partitions
        POST /createMissedPartitions
        POST /terminate
        POST /terminate/partitions
        DELETE /truncate
        PUT /unload
        POST /trim
        GET /compaction
        PUT /compaction
        GET /offload
        PUT /offload
        GET /shadowTopics
        PUT /properties
        DELETE /properties
        GET /permissions
        POST /permissions/{role}
        DELETE /permissions/{role}
        POST /all_subscription/expireMessages/{seconds}
        GET /backlogQuotaMap
        POST /backlogQuota
        DELETE /backlogQuota
    """,
    RequiredPermission.LOOK: """
        GET /stats
        GET /internalStats
        GET /internal-info
        GET /partitions
        GET /partitioned-stats
        GET /partitioned-internalStats
        GET /properties
    """,
    RequiredPermission.CONSUME: """
        GET /lastMessageId
        GET /messageid/{timestamp}
        GET /ledger/{ledger}/entry/{entry}
        GET /examinemessage
        PUT /backlogSize
        GET /backlog
        GET /subscriptions
        PUT /subscription/{subscription}
        DELETE /subscription/{subscription}
        POST /subscription/{subscription}/resetcursor
        POST /subscription/{subscription}/resetcursor/{timestamp}
        POST /subscription/{subscription}/skip/{count}
        POST /subscription/{subscription}/skip/{ledger}/{entry}
        GET /subscription/{subscription}/explain
        GET /subscription/{subscription}/cursor
        GET /subscription/{subscription}/holes
        GET /subscription/{subscription}/open
        GET /subscription/{subscription}/preview/{action}
        POST /subscription/{subscription}/redeliver
        GET /tail
        POST /subscription/{subscription}/skip_all
        POST /subscription/{subscription}/expireMessages
        POST /subscription/{subscription}/expireMessages/{seconds}
        GET /subscription/{subscription}/position/{nth}
        POST /subscription/{subscription}/analyzeBacklog
        GET /subscription/{subscription}/properties
        PUT /subscription/{subscription}/properties
        GET /subscription/{subscription}/replicatedSubscriptionStatus
        POST /subscription/{subscription}/replicatedSubscriptionStatus
    """,
}
_SCHEMAS: Final = {
    RequiredPermission.LOOK: """
        GET /schema
        GET /schema/{version}
        GET /schemas
        GET /metadata
        POST /compatibility
        POST /version
    """,
    RequiredPermission.PRODUCE: "POST /schema",
    RequiredPermission.ADMINISTRATOR: "DELETE /schema",
}
_NAMESPACE_PATH: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
_TOPIC_PATH: Final = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
_SCHEMA_PATH: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"


def _lines(table: Mapping[RequiredPermission, str], path: str) -> Iterator[tuple[Key, RequiredPermission]]:
    for needs, text in table.items():
        for line in text.strip().splitlines():
            method, _, rest = line.strip().partition(" ")
            yield (method, path + rest), needs


def _all_routes() -> Mapping[Key, RequiredPermission]:
    found = dict(_lines(_BROKER, ""))
    found |= _lines(_NAMESPACE, _NAMESPACE_PATH)
    found |= _lines(_TOPIC, _TOPIC_PATH)
    found |= _lines(_SCHEMAS, _SCHEMA_PATH)
    for path, scope in ((_NAMESPACE_PATH, NamespaceScope), (_TOPIC_PATH, TopicScope)):
        found["GET", f"{path}/policiesSet"] = RequiredPermission.ADMINISTRATOR
        for policy in declared(scope):
            limits = policy.super_user and scope is NamespaceScope
            change = RequiredPermission.SUPER_USER if limits else RequiredPermission.ADMINISTRATOR
            found["GET", f"{path}/{policy.segment}"] = RequiredPermission.ADMINISTRATOR
            found[policy.method, f"{path}/{policy.segment}"] = change
            found["DELETE", f"{path}/{policy.segment}"] = change
    return MappingProxyType(found)


PERMISSIONS: Final = _all_routes()
"""Permission of every route of the web port. A missing route is refused for every role, and fails a test."""


def unmapped(routes: Iterable[web.AbstractRoute]) -> list[Key]:
    """Return the routes without a permission."""
    keys = (key for route in routes if (key := key_of(route.method, route.resource)) is not None)
    return sorted(key for key in keys if key not in PERMISSIONS)
