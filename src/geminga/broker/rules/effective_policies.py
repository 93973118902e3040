"""Policies in force: frozen values in which topic, namespace and broker settings are merged, the most
specific one winning."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeVar

from geminga.broker.settings import BrokerSettings
from geminga.policies import (
    INACTIVE_TOPIC_MODES,
    QUOTA_KINDS,
    DispatchRate,
    PublishRate,
    RedeliverUnacked,
    SubscribeRate,
)
from geminga.records import decode, encode

R = TypeVar("R")
_DEFAULT_STRATEGY: Final = "FULL"


def _first(
    *path: str, setting: str = "", default: Any = None, applied: bool = True, scale: int = 0, twin: str = ""
) -> Any:
    """Return a field of `Policies`: the value at ``path`` in the most specific layer that has one.

    ``path`` is a policy's JSON name, and the names within its value; ``twin`` is a policy with the same
    meaning. Without a value, the field has that of the broker's ``setting``, or ``default``. ``applied``: see
    `in_force`. ``scale``: a divisor of the value.
    """
    found = {"path": path, "setting": setting, "default": default, "applied": applied}
    return dataclasses.field(metadata=found | {"scale": scale, "twin": twin})


_SIZE, _AGE = ("backlog_quota_map", QUOTA_KINDS[0]), ("backlog_quota_map", QUOTA_KINDS[1])
_OFFLOAD = "offload_policies"
_RETENTION, _DELAYED, _INACTIVE = "retention_policies", "delayed_delivery_policies", "inactive_topic_policies"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """Policies of a namespace or a topic after topic, namespace and broker settings are merged.

    Limits are 0 if not set (Pulsar's convention), sizes and ages of retention and backlog quota -1.
    """

    retention_minutes: int = _first(_RETENTION, "retentionTimeInMinutes", setting="retention_minutes")
    retention_megabytes: int = _first(_RETENTION, "retentionSizeInMB", setting="retention_megabytes_default")
    message_ttl_seconds: int = _first("message_ttl_in_seconds", setting="message_ttl_seconds")
    ttl_from_delivery: bool = _first("message_ttl_from_delivery", default=False)
    backlog_quota_bytes: int = _first(*_SIZE, "limitSize", setting="backlog_quota_bytes")
    backlog_quota_action: str = _first(*_SIZE, "policy", setting="backlog_quota_action")
    backlog_quota_seconds: int = _first(*_AGE, "limitTime", setting="backlog_quota_seconds")
    backlog_quota_age_action: str = _first(*_AGE, "policy", setting="backlog_quota_action")
    deduplication: bool = _first("deduplicationEnabled", setting="deduplication")
    auto_create_topics: bool = _first(
        "autoTopicCreationOverride", "allowAutoTopicCreation", setting="auto_create_topics", applied=False
    )
    auto_create_partitions: int
    """Partitions of an automatically created topic; 0 makes it non-partitioned."""
    auto_create_subscriptions: bool = _first(
        "autoSubscriptionCreationOverride",
        "allowAutoSubscriptionCreation",
        setting="auto_create_subscriptions",
    )
    max_producers_per_topic: int = _first("max_producers_per_topic", default=0)
    max_consumers_per_topic: int = _first("max_consumers_per_topic", default=0)
    max_consumers_per_subscription: int = _first("max_consumers_per_subscription", default=0, applied=False)
    max_subscriptions_per_topic: int = _first("max_subscriptions_per_topic", default=0, applied=False)
    max_topics_per_namespace: int = _first("max_topics_per_namespace", default=0, applied=False)
    max_message_size: int
    unacked_messages_per_consumer_max: int = _first(
        "max_unacked_messages_per_consumer", setting="unacked_messages_per_consumer_max"
    )
    unacked_messages_per_subscription_max: int = _first(
        "max_unacked_messages_per_subscription", setting="unacked_messages_per_subscription_max"
    )
    subscription_types_enabled: frozenset[str]
    """Empty allows all."""
    redeliver_unacked: RedeliverUnacked
    subscription_expiration_minutes: int = _first(
        "subscription_expiration_time_minutes", setting="subscription_expiration_minutes", applied=False
    )
    delayed_delivery_tick_seconds: float = _first(
        _DELAYED, "tickTime", setting="delayed_delivery_tick_seconds", scale=1000
    )
    delayed_delivery: bool = _first(_DELAYED, "active", setting="delayed_delivery")
    delayed_delivery_seconds_max: float = _first(
        _DELAYED, "maxDeliveryDelayInMillis", default=0.0, scale=1000
    )
    """0 is no limit."""
    inactive_topic_mode: str = _first(_INACTIVE, "inactiveTopicDeleteMode", default=INACTIVE_TOPIC_MODES[0])
    inactive_topic_seconds: int = _first(
        _INACTIVE, "maxInactiveDurationSeconds", setting="inactive_topic_seconds"
    )
    delete_inactive_topics: bool = _first(_INACTIVE, "deleteWhileInactive", setting="delete_inactive_topics")
    encryption_required: bool = _first("encryption_required", default=False, applied=False)
    schema_compatibility_strategy: str
    schema_auto_update: bool = _first("is_allow_auto_update_schema", default=True, applied=False)
    schema_validation_enforced: bool = _first("schema_validation_enforced", default=False, applied=False)
    compaction_threshold_bytes: int = _first("compaction_threshold", default=0)
    offload_threshold_bytes: int = _first(
        _OFFLOAD, "managedLedgerOffloadThresholdInBytes",
        twin="offload_threshold", setting="offload_threshold_bytes", applied=False,
    )  # fmt: skip
    offload_threshold_seconds: int = _first(
        _OFFLOAD, "managedLedgerOffloadThresholdInSeconds",
        twin="offload_threshold_in_seconds", setting="offload_threshold_seconds", applied=False,
    )  # fmt: skip
    offload_deletion_lag_ms: int = _first(
        _OFFLOAD, "managedLedgerOffloadDeletionLagInMillis",
        twin="offload_deletion_lag_ms", setting="offload_deletion_lag_ms", applied=False,
    )  # fmt: skip
    """Negative values of all three: never."""
    publish_rate: PublishRate
    dispatch_rate: DispatchRate
    subscription_dispatch_rate: DispatchRate
    subscribe_rate: SubscribeRate


def cautious(policies: Policies) -> Policies:
    """Return policies for use while some were lost: nothing is deleted, skipped or stopped by them.

    Messages and topics that a lost policy would have kept must still exist when it is set again.
    """
    return replace(
        policies,
        retention_minutes=-1,
        retention_megabytes=-1,
        message_ttl_seconds=0,
        backlog_quota_bytes=-1,
        backlog_quota_seconds=-1,
        subscription_expiration_minutes=0,
        delete_inactive_topics=False,
        compaction_threshold_bytes=0,
        offload_threshold_bytes=-1,
        offload_threshold_seconds=-1,
        offload_deletion_lag_ms=-1,
    )


class _Field(NamedTuple):
    """Field of `Policies` that follows from its declaration by `_first`."""

    name: str
    path: tuple[str, ...]
    setting: str
    default: Any
    applied: bool
    scale: int
    twin: str


_FIELDS: Final = tuple(
    _Field(each.name, **each.metadata) for each in dataclasses.fields(Policies) if each.metadata
)
_DEFAULTS: Final[Mapping[str, Any]] = {field.name: field.default for field in _FIELDS}
_SETTINGS: Final = tuple((field.name, field.setting) for field in _FIELDS if field.setting)
POLICY_SETTINGS: Final = sorted({setting for _, setting in _SETTINGS})
"""Settings with the defaults of policies."""
_FIELDS_OF: Final = {
    policy: [field for field in _FIELDS if policy in (field.path[0], field.twin)]
    for policy in {name for field in _FIELDS for name in (field.path[0], field.twin)}
}
"""Fields by the JSON name of their policy."""
TWINS: Final = {field.twin: field.path for field in _FIELDS if field.twin}
"""Policies that are also fields of another one, with their paths: the last one set counts."""


class _Layers:
    """Looks a policy up in the layers, the most specific first."""

    def __init__(self, layers: tuple[Mapping[str, Any], ...]) -> None:
        self._layers = layers

    def value(self, *path: str, twin: str = "", default: Any = None) -> Any:
        for layer in self._layers:
            found: Any = layer
            for name in path:
                found = None if found is None else found.get(name)
            found = layer.get(twin) if found is None else found
            if found is not None:
                return found
        return default

    def record(self, default: R, *path: str) -> R:
        """Return a value as a record of the type of ``default``, or ``default`` without a value."""
        found = self.value(*path)
        return decode(type(default), found) if found else default


def resolve(settings: BrokerSettings, *layers: Mapping[str, Any]) -> Policies:
    """Merge ``layers`` (the most specific first) over the broker's settings."""
    look = _Layers(layers)
    found = dict(_DEFAULTS)
    for name, setting in _SETTINGS:
        found[name] = getattr(settings, setting)
    for policy in set().union(*layers):
        for field in _FIELDS_OF.get(policy, ()):
            value = look.value(*field.path, twin=field.twin)
            if value is not None:
                found[field.name] = value / field.scale if field.scale else value
    topics = look.value("autoTopicCreationOverride")
    kind, partitions = settings.auto_create_topic_kind, settings.auto_create_partitions
    if topics is not None:
        kind, partitions = topics["topicType"], topics.get("defaultNumPartitions", 0)
    strategy = look.value("schema_compatibility_strategy", default="UNDEFINED")
    cluster = settings.cluster

    def rate(kind: type[R], name: str) -> R:
        given = {part: getattr(settings, f"{name}_{part}") for part in ("messages", "bytes")}
        return kind(**given)

    return Policies(
        **found,
        auto_create_partitions=partitions if kind == "partitioned" else 0,
        max_message_size=look.value("max_message_size", default=0) or settings.max_message_size,
        subscription_types_enabled=frozenset(look.value("subscription_types_enabled", default=())),
        redeliver_unacked=look.record(
            RedeliverUnacked(
                after_seconds=settings.redeliver_unacked_after_seconds,
                messages_per_second_max=settings.redeliver_unacked_per_second_max,
                age_seconds_max=settings.redeliver_unacked_age_seconds_max,
            ),
            "redeliver_unacked_policies",
        ),
        schema_compatibility_strategy=_DEFAULT_STRATEGY if strategy == "UNDEFINED" else strategy,
        publish_rate=look.record(rate(PublishRate, "topic_publish_rate"), "publishMaxMessageRate", cluster),
        dispatch_rate=look.record(rate(DispatchRate, "topic_dispatch_rate"), "topicDispatchRate", cluster),
        subscription_dispatch_rate=look.record(
            rate(DispatchRate, "subscription_dispatch_rate"), "subscriptionDispatchRate", cluster
        ),
        subscribe_rate=look.record(SubscribeRate(), "clusterSubscribeRate", cluster),
    )


def in_force(policies: Policies, cluster: str) -> dict[str, Any]:
    """Return policies in the format in which each is set, as shown by ``--applied``, by JSON name.

    Policies that Apache Pulsar does not show where they are not set are left out.
    """
    found: dict[str, Any] = {}
    for field in _FIELDS:
        if field.applied:
            value = getattr(policies, field.name)
            inner = found
            for name in field.path[:-1]:
                inner = inner.setdefault(name, {})
            inner[field.path[-1]] = round(value * field.scale) if field.scale else value
    for kind, quota in found["backlog_quota_map"].items():
        size = quota.get("limitSize", -1)
        unset = {"limit": size, "limitSize": size, "limitTime": -1}
        found["backlog_quota_map"][kind] = unset | quota
    return found | {
        "max_message_size": policies.max_message_size,
        "schema_compatibility_strategy": policies.schema_compatibility_strategy,
        "entryFilters": {"entryFilterNames": ""},
        "topicDispatchRate": {cluster: encode(policies.dispatch_rate)},
        "subscriptionDispatchRate": {cluster: encode(policies.subscription_dispatch_rate)},
        "replicatorDispatchRate": {cluster: encode(DispatchRate())},
        "clusterSubscribeRate": {cluster: encode(policies.subscribe_rate)},
    }
