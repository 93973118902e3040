"""Policies in force: frozen values in which topic, namespace and broker settings are merged, the most
specific one winning."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from geminga.broker.settings import BrokerSettings
from geminga.policies import INACTIVE_TOPIC_MODES, QUOTA_KINDS, DispatchRate, SubscribeRate
from geminga.records import encode

_DEFAULT_STRATEGY: Final = "FULL"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleRate:
    """Rate limit: messages and bytes in a period; -1 is no limit."""

    messages: int = -1
    bytes: int = -1
    period_seconds: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class UnackedRedelivery:
    """Redelivery of messages that no consumer acknowledges in time; 0 seconds: never."""

    after_seconds: float = 0.0
    messages_per_second_max: int = 1_000
    age_seconds_max: int = 0
    """Older messages are not redelivered; 0 is no limit."""


def _first(*path: str, setting: str = "", default: Any = None, applied: bool = True, scale: int = 0) -> Any:
    """Return a field of `Policies`: the value at ``path`` in the most specific layer that has one.

    ``path`` is a policy's JSON name, and the names within its value. Without a value, the field has that of
    the broker's ``setting``, or ``default``. ``applied``: see `in_force`. ``scale``: a divisor of the value.
    """
    return dataclasses.field(
        metadata={"path": path, "setting": setting, "default": default, "applied": applied, "scale": scale}
    )


_SIZE, _AGE = ("backlog_quota_map", QUOTA_KINDS[0]), ("backlog_quota_map", QUOTA_KINDS[1])
_RETENTION, _DELAYED, _INACTIVE = "retention_policies", "delayed_delivery_policies", "inactive_topic_policies"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """Policies of a namespace or a topic after topic, namespace and broker settings are merged.

    Limits are 0 if not set (Pulsar's convention), sizes and ages of retention and backlog quota -1.
    """

    retention_minutes: int = _first(_RETENTION, "retentionTimeInMinutes", setting="retention_minutes")
    retention_megabytes: int = _first(_RETENTION, "retentionSizeInMB", setting="retention_megabytes_default")
    message_ttl_seconds: int = _first("message_ttl_in_seconds", setting="message_ttl_seconds")
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
    redeliver_unacked: UnackedRedelivery
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
    offload_threshold_bytes: int
    offload_threshold_seconds: int
    offload_deletion_lag_ms: int
    """Negative values of all three: never."""
    publish_rate: ThrottleRate
    dispatch_rate: ThrottleRate
    subscription_dispatch_rate: ThrottleRate
    subscribe_rate: ThrottleRate
    """``messages`` is the number of subscribes per consumer and period."""


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


_NO_RATE = ThrottleRate()


class _Field(NamedTuple):
    """Field of `Policies` that follows from its declaration by `_first`."""

    name: str
    path: tuple[str, ...]
    setting: str
    default: Any
    applied: bool
    scale: int


_FIELDS: Final = tuple(
    _Field(each.name, **each.metadata) for each in dataclasses.fields(Policies) if each.metadata
)
_DEFAULTS: Final[Mapping[str, Any]] = {field.name: field.default for field in _FIELDS}
_SETTINGS: Final = tuple((field.name, field.setting) for field in _FIELDS if field.setting)
_FIELDS_OF: Final = {
    policy: [field for field in _FIELDS if field.path[0] == policy]
    for policy in {field.path[0] for field in _FIELDS}
}
"""Fields by the JSON name of their policy."""


class _Layers:
    """Looks a policy up in the layers, the most specific first."""

    def __init__(self, layers: tuple[Mapping[str, Any], ...], cluster: str) -> None:
        self._layers = layers
        self._cluster = cluster

    def value(self, *path: str, default: Any = None) -> Any:
        for layer in self._layers:
            found: Any = layer
            for name in path:
                found = found.get(name)
                if found is None:
                    break
            else:
                return found
        return default

    def offload(self, field: str, old_field: str, default: int) -> int:
        """Return the field of ``offload_policies``, else the separate policy, else the default."""
        for layer in self._layers:
            policies = layer.get("offload_policies") or {}
            found = policies.get(field)
            found = layer.get(old_field) if found is None else found
            if found is not None:
                return int(found)
        return default

    def rate(self, field: str, messages: str, size: str, default: ThrottleRate = _NO_RATE) -> ThrottleRate:
        found = self.value(field, self._cluster)
        if not found:
            return default
        return ThrottleRate(
            messages=found.get(messages, -1),
            bytes=found.get(size, -1),
            period_seconds=found.get("ratePeriodInSecond", 1),
        )


_PUBLISH = ("publishThrottlingRateInMsg", "publishThrottlingRateInByte")
_DISPATCH = ("dispatchThrottlingRateInMsg", "dispatchThrottlingRateInByte")


def resolve(settings: BrokerSettings, *layers: Mapping[str, Any]) -> Policies:
    """Merge ``layers`` (the most specific first) over the broker's settings."""
    look = _Layers(layers, settings.cluster)
    found = dict(_DEFAULTS)
    for name, setting in _SETTINGS:
        found[name] = getattr(settings, setting)
    for policy in set().union(*layers):
        for field in _FIELDS_OF.get(policy, ()):
            value = look.value(*field.path)
            if value is not None:
                found[field.name] = value / field.scale if field.scale else value
    topics = look.value("autoTopicCreationOverride")
    kind, partitions = settings.auto_create_topic_kind, settings.auto_create_partitions
    if topics is not None:
        kind, partitions = topics["topicType"], topics.get("defaultNumPartitions", 0)
    strategy = look.value("schema_compatibility_strategy", default="UNDEFINED")
    redelivery = look.value("redeliver_unacked_policies", default={})
    return Policies(
        **found,
        auto_create_partitions=partitions if kind == "partitioned" else 0,
        max_message_size=look.value("max_message_size", default=0) or settings.max_message_size,
        subscription_types_enabled=frozenset(look.value("subscription_types_enabled", default=())),
        redeliver_unacked=UnackedRedelivery(
            after_seconds=redelivery.get("afterSeconds", settings.redeliver_unacked_after_seconds),
            messages_per_second_max=redelivery.get(
                "messagesPerSecondMax", settings.redeliver_unacked_per_second_max
            ),
            age_seconds_max=redelivery.get("ageSecondsMax", settings.redeliver_unacked_age_seconds_max),
        ),
        schema_compatibility_strategy=_DEFAULT_STRATEGY if strategy == "UNDEFINED" else strategy,
        offload_threshold_bytes=look.offload(
            "managedLedgerOffloadThresholdInBytes", "offload_threshold", settings.offload_threshold_bytes
        ),
        offload_threshold_seconds=look.offload(
            "managedLedgerOffloadThresholdInSeconds",
            "offload_threshold_in_seconds",
            settings.offload_threshold_seconds,
        ),
        offload_deletion_lag_ms=look.offload(
            "managedLedgerOffloadDeletionLagInMillis",
            "offload_deletion_lag_ms",
            int(settings.offload_deletion_lag_seconds * 1000),
        ),
        publish_rate=look.rate("publishMaxMessageRate", *_PUBLISH, _rate_of(settings, "topic_publish_rate")),
        dispatch_rate=look.rate("topicDispatchRate", *_DISPATCH, _rate_of(settings, "topic_dispatch_rate")),
        subscription_dispatch_rate=look.rate(
            "subscriptionDispatchRate", *_DISPATCH, _rate_of(settings, "subscription_dispatch_rate")
        ),
        subscribe_rate=look.rate("clusterSubscribeRate", "subscribeThrottlingRatePerConsumer", ""),
    )


def _rate_of(settings: BrokerSettings, name: str) -> ThrottleRate:
    return ThrottleRate(
        messages=getattr(settings, f"{name}_messages"), bytes=getattr(settings, f"{name}_bytes")
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
    subscribes = policies.subscribe_rate
    return found | {
        "max_message_size": policies.max_message_size,
        "schema_compatibility_strategy": policies.schema_compatibility_strategy,
        "entryFilters": {"entryFilterNames": ""},
        "topicDispatchRate": {cluster: _dispatch(policies.dispatch_rate)},
        "subscriptionDispatchRate": {cluster: _dispatch(policies.subscription_dispatch_rate)},
        "replicatorDispatchRate": {cluster: _dispatch(_NO_RATE)},
        "clusterSubscribeRate": {
            cluster: encode(
                SubscribeRate(
                    subscribes_per_consumer=subscribes.messages, period_seconds=subscribes.period_seconds
                )
            )
        },
    }


def _dispatch(rate: ThrottleRate) -> dict[str, Any]:
    return encode(  # type: ignore[no-any-return]
        DispatchRate(messages=rate.messages, bytes=rate.bytes, period_seconds=rate.period_seconds)
    )
