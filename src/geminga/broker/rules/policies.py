"""Namespace and topic policies: their JSON format, its checks, and the policies in force.

Policies are stored as the JSON object of Pulsar's admin API, field names included, so that all values are
returned unchanged, also those that this broker does not use. The broker acts by `Policies`: frozen values in
which topic, namespace and broker settings are merged, the most specific one winning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from geminga.broker.rules.json_values import flag_of, is_blank, number_of, whole_of
from geminga.broker.settings import QUOTA_ACTIONS, TOPIC_KINDS, BrokerSettings
from geminga.by_fields import ByFields
from geminga.config import suggestion
from geminga.errors import PulsarException

SUBSCRIPTION_TYPES: Final = ("Exclusive", "Shared", "Failover", "Key_Shared")
COMPATIBILITY_STRATEGIES: Final = (
    "UNDEFINED", "ALWAYS_INCOMPATIBLE", "ALWAYS_COMPATIBLE", "BACKWARD", "FORWARD", "FULL",
    "BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE",
)  # fmt: skip
INACTIVE_TOPIC_MODES: Final = ("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up")
QUOTA_KINDS: Final = ("destination_storage", "message_age")
AUTH_ACTIONS: Final = ("produce", "consume", "functions", "sources", "sinks", "packages")
_DEFAULT_STRATEGY: Final = "FULL"


class InvalidRequest(Enum):
    """Kinds of invalid administrative requests."""

    MISSING = "there is no such thing"
    IN_THE_WAY = "something that is there stands in the way"
    NOT_ALLOWED = "the value is none of those that are allowed"
    NOT_TOGETHER = "values that exclude each other"
    MALFORMED = "not of the form that is needed"
    ELSEWHERE = "it belongs to a cluster that is not known here"


class RuleViolation(PulsarException):
    """Refused administrative call; ``reason`` is for people."""

    def __init__(self, wrong: InvalidRequest, reason: str) -> None:
        super().__init__(wrong, reason)
        self.wrong = wrong
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


# --- checks: each returns the value to keep, or raises RuleBroken ---

Check = Callable[[str, Any], Any]


def _refuse(
    field: str, value: object, allowed: str, wrong: InvalidRequest = InvalidRequest.NOT_ALLOWED
) -> RuleViolation:
    return RuleViolation(wrong, f"{field}={value!r} is not allowed; allowed: {allowed}")


def whole(minimum: int, maximum: int = (1 << 63) - 1) -> Check:
    """Return a check for a whole number in the closed range."""

    def check(field: str, value: Any) -> int:
        found = whole_of(value)
        if found is None or not minimum <= found <= maximum:
            raise _refuse(field, value, f"a whole number from {minimum} to {maximum}")
        return found

    return check


def flag(field: str, value: Any) -> bool:
    found = flag_of(value)
    if found is None:
        raise _refuse(field, value, "true or false")
    return found


def one_of(choices: Iterable[str]) -> Check:
    """Return a check for one of some words."""
    known = tuple(choices)

    def check(field: str, value: Any) -> str:
        word = value.strip() if isinstance(value, str) else value
        if word not in known:
            raise _refuse(field, value, ", ".join(known) + suggestion(value, known))
        return str(word)

    return check


def words(choices: Iterable[str] | None = None) -> Check:
    """Return a check for a list of texts, of ``choices`` only if given."""
    check_one = one_of(choices) if choices is not None else None

    def check(field: str, value: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise _refuse(field, value, "a list of texts")
        if check_one is not None:
            for word in value:
                check_one(field, word)
        return list(dict.fromkeys(value))

    return check


def any_object(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refuse(field, value, "a JSON object")
    return value


def offload_policies(field: str, value: Any) -> dict[str, Any]:
    """Check ``OffloadPolicies``: used fields are checked, others (drivers, buckets) stored and shown."""
    kept = dict(any_object(field, value))
    for name in _OFFLOAD_NUMBERS:
        if kept.get(name) is not None:
            kept[name] = whole(-1)(f"{field}.{name}", kept[name])
    return kept


_OFFLOAD_NUMBERS: Final = (
    "managedLedgerOffloadThresholdInBytes",
    "managedLedgerOffloadThresholdInSeconds",
    "managedLedgerOffloadDeletionLagInMillis",
)


def text_map(field: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise _refuse(field, value, "a JSON object of texts")
    return value


PROPERTIES_BYTES_MAX: Final = 64 * 1024


def properties_map(field: str, value: Any) -> dict[str, str]:
    """Check the properties that users set, which are stored and held in memory."""
    found = text_map(field, value)
    size = sum(len(key) + len(text) for key, text in found.items())
    if size > PROPERTIES_BYTES_MAX:
        raise RuleViolation(
            InvalidRequest.NOT_ALLOWED, f"{field}: names and values have {size} characters; "
            f"at most {PROPERTIES_BYTES_MAX} are allowed"
        )  # fmt: skip
    return found


def record(**fields: tuple[Check, Any]) -> Check:
    """Return a check for an object: known fields are checked and completed with defaults, others are kept."""

    def check(field: str, value: Any) -> dict[str, Any]:
        any_object(field, value)
        kept = {
            name: item
            for name, item in value.items()
            if not (item is None or (name in fields and is_blank(item)))
        }
        for name, (inner, default) in fields.items():
            kept[name] = inner(f"{field}.{name}", kept[name]) if name in kept else default
        return kept

    return check


def by_cluster(inner: Check) -> Check:
    """Return a check for a map from cluster (or role, or topic) to the checked value."""

    def check(field: str, value: Any) -> dict[str, Any]:
        return {
            cluster: inner(f"{field}.{cluster}", item) for cluster, item in any_object(field, value).items()
        }

    return check


def _number(field: str, value: Any) -> float:
    found = number_of(value)
    if found is None or found < 0:
        raise _refuse(field, value, "a number >= 0", InvalidRequest.MALFORMED)
    return found


_retention_fields = record(
    retentionTimeInMinutes=(whole(-1, (1 << 31) - 1), 0), retentionSizeInMB=(whole(-1), 0)
)


def retention(field: str, value: Any) -> dict[str, Any]:
    kept: dict[str, Any] = _retention_fields(field, value)
    minutes, megabytes = kept["retentionTimeInMinutes"], kept["retentionSizeInMB"]
    if (minutes == 0) != (megabytes == 0):
        raise RuleViolation(
            InvalidRequest.MALFORMED,
            f"Invalid retention policy: time {minutes} min and size {megabytes} MB; "
            "either both are 0 (delete at once) or none is (-1 is no limit)",
        )
    return kept


_persistence_fields = record(
    bookkeeperEnsemble=(whole(0), 2),
    bookkeeperWriteQuorum=(whole(0), 2),
    bookkeeperAckQuorum=(whole(0), 2),
    managedLedgerMaxMarkDeleteRate=(_number, 0.0),
)


def persistence(field: str, value: Any) -> dict[str, Any]:
    kept: dict[str, Any] = _persistence_fields(field, value)
    ensemble, write = kept["bookkeeperEnsemble"], kept["bookkeeperWriteQuorum"]
    if not ensemble >= write >= kept["bookkeeperAckQuorum"]:
        raise RuleViolation(
            InvalidRequest.MALFORMED, f"{field}: Bookkeeper Ensemble ({ensemble}) >= WriteQuorum ({write}) "
            f">= AckQuorum ({kept['bookkeeperAckQuorum']}) does not hold"
        )  # fmt: skip
    return kept


_quota_fields = record(
    limit=(whole(-(1 << 63)), -1), limitSize=(whole(-(1 << 63)), -1), limitTime=(whole(-(1 << 31)), -1),
    policy=(one_of(QUOTA_ACTIONS), "producer_request_hold"),
)  # fmt: skip


def backlog_quota(field: str, value: Any) -> dict[str, Any]:
    kept: dict[str, Any] = _quota_fields(field, value)
    # `limit` is the older name of `limitSize`; clients send either or both.
    if kept["limitSize"] == -1:
        kept["limitSize"] = kept["limit"]
    kept["limit"] = kept["limitSize"]
    return kept


def backlog_quotas(field: str, value: Any) -> dict[str, Any]:
    check_kind = one_of(QUOTA_KINDS)
    return {
        check_kind(field, kind): backlog_quota(field, quota)
        for kind, quota in any_object(field, value).items()
    }


_topic_creation_fields = record(
    allowAutoTopicCreation=(flag, True), topicType=(one_of(TOPIC_KINDS), "non-partitioned")
)


def auto_topic_creation(field: str, value: Any) -> dict[str, Any]:
    kept: dict[str, Any] = _topic_creation_fields(field, value)
    partitions = kept.pop("defaultNumPartitions", None)
    if kept["topicType"] == "partitioned":
        given = 1 if is_blank(partitions) else partitions
        kept["defaultNumPartitions"] = whole(1)(f"{field}.defaultNumPartitions", given)
    elif not is_blank(partitions):
        raise RuleViolation(
            InvalidRequest.NOT_TOGETHER, f"{field}: topicType non-partitioned takes no defaultNumPartitions"
        )
    return kept


_actions_by_role = by_cluster(words(AUTH_ACTIONS))
_auth_fields: Final[Mapping[str, Check]] = {
    "namespace_auth": _actions_by_role,
    "destination_auth": by_cluster(_actions_by_role),
    "subscription_auth_roles": by_cluster(words()),
}


def auth_policies(field: str, value: Any) -> dict[str, Any]:
    """Check permissions; unknown fields are stored and grant nothing."""
    return {
        name: _auth_fields[name](f"{field}.{name}", given) if name in _auth_fields else given
        for name, given in any_object(field, value).items()
        if given is not None
    }


dispatch_rate = record(
    dispatchThrottlingRateInMsg=(whole(-1), -1), dispatchThrottlingRateInByte=(whole(-1), -1),
    relativeToPublishRate=(flag, False), ratePeriodInSecond=(whole(1), 1),
)  # fmt: skip
publish_rate = record(publishThrottlingRateInMsg=(whole(-1), -1), publishThrottlingRateInByte=(whole(-1), -1))
subscribe_rate = record(subscribeThrottlingRatePerConsumer=(whole(-1), -1), ratePeriodInSecond=(whole(1), 30))
auto_subscription_creation = record(allowAutoSubscriptionCreation=(flag, True))
delayed_delivery = record(
    tickTime=(whole(1), 1000), active=(flag, True), maxDeliveryDelayInMillis=(whole(0), 0)
)
inactive_topics = record(
    inactiveTopicDeleteMode=(one_of(INACTIVE_TOPIC_MODES), INACTIVE_TOPIC_MODES[0]),
    maxInactiveDurationSeconds=(whole(1), 60), deleteWhileInactive=(flag, True),
)  # fmt: skip

_resource_group_fields = record(
    publishRateInMsgs=(whole(-1), -1), publishRateInBytes=(whole(-1), -1),
    dispatchRateInMsgs=(whole(-1), -1), dispatchRateInBytes=(whole(-1), -1),
)  # fmt: skip


def check_resource_group(name: str, value: Any) -> dict[str, Any]:
    """Check the limits of a resource group, which are stored and shown."""
    return _resource_group_fields(f"resource group {name}", value)  # type: ignore[no-any-return]


def entry_filters(field: str, value: Any) -> dict[str, Any]:
    """Refuse entry filters, which are Java classes in a broker's folder."""
    kept = any_object(field, value)
    names = kept.get("entryFilterNames") or ""
    if names:
        first = str(names).split(",")[0].strip()
        raise RuleViolation(
            InvalidRequest.MALFORMED, f"Entry filter {first!r} not found: this broker runs no Java"
        )
    return kept


_redeliver_fields = {
    "afterSeconds": (_number, 0.0), "messagesPerSecondMax": (whole(1), 1000), "ageSecondsMax": (whole(0), 0),
}  # fmt: skip


def redeliver_unacked(field: str, value: Any) -> dict[str, Any]:
    """Check Geminga's own policy; unknown fields are refused."""
    check_name = one_of(_redeliver_fields)
    for name in any_object(field, value):
        check_name(field, name)
    return record(**_redeliver_fields)(field, value)  # type: ignore[no-any-return]


FIELDS: Final[Mapping[str, Check]] = {
    "auth_policies": auth_policies,
    "replication_clusters": words(),
    "allowed_clusters": words(),
    "bundles": any_object,
    "backlog_quota_map": backlog_quotas,
    "clusterDispatchRate": by_cluster(dispatch_rate),
    "topicDispatchRate": by_cluster(dispatch_rate),
    "subscriptionDispatchRate": by_cluster(dispatch_rate),
    "replicatorDispatchRate": by_cluster(dispatch_rate),
    "clusterSubscribeRate": by_cluster(subscribe_rate),
    "publishMaxMessageRate": by_cluster(publish_rate),
    "persistence": persistence,
    "deduplicationEnabled": flag,
    "deduplicationSnapshotIntervalSeconds": whole(0),
    "autoTopicCreationOverride": auto_topic_creation,
    "autoSubscriptionCreationOverride": auto_subscription_creation,
    "latency_stats_sample_rate": any_object,
    "message_ttl_in_seconds": whole(0, (1 << 31) - 1),
    "subscription_expiration_time_minutes": whole(0, (1 << 31) - 1),
    "retention_policies": retention,
    "deleted": flag,
    "encryption_required": flag,
    "delayed_delivery_policies": delayed_delivery,
    "inactive_topic_policies": inactive_topics,
    "subscription_auth_mode": one_of(("None", "Prefix")),
    "max_producers_per_topic": whole(0),
    "max_consumers_per_topic": whole(0),
    "max_consumers_per_subscription": whole(0),
    "max_unacked_messages_per_consumer": whole(0),
    "max_unacked_messages_per_subscription": whole(0),
    "max_subscriptions_per_topic": whole(0),
    "max_topics_per_namespace": whole(0),
    "max_message_size": whole(0),
    "compaction_threshold": whole(0),
    "offload_threshold": whole(-1),
    "offload_threshold_in_seconds": whole(-1),
    "offload_deletion_lag_ms": whole(0),
    "offload_policies": offload_policies,
    "schema_auto_update_compatibility_strategy": one_of(
        ("AutoUpdateDisabled", "Backward", "Forward", "Full", "AlwaysCompatible", "BackwardTransitive",
         "ForwardTransitive", "FullTransitive")
    ),
    "schema_compatibility_strategy": one_of(COMPATIBILITY_STRATEGIES),
    "is_allow_auto_update_schema": flag,
    "schema_validation_enforced": flag,
    "subscription_types_enabled": words(SUBSCRIPTION_TYPES),
    "properties": properties_map,
    "redeliver_unacked_policies": redeliver_unacked,
    "resource_group_name": lambda field, value: words()(field, [value])[0],
    "dispatcherPauseOnAckStatePersistentEnabled": flag,
    "entryFilters": entry_filters,
    "bookieAffinityGroup": any_object,
    "antiAffinityGroup": lambda field, value: words()(field, [value])[0],
    "migrated": flag,
}  # fmt: skip
"""Check of every policy by Pulsar's name."""


def check_policy(field: str, value: Any) -> Any:
    """Return the value to store for a known policy; `RuleViolation` names field, value and allowed ones."""
    check = FIELDS.get(field)
    if check is None:
        raise RuleViolation(
            InvalidRequest.MALFORMED, f"no policy is called {field!r}{suggestion(field, FIELDS)}"
        )
    return check(field, value)


def check_document(document: Any) -> dict[str, Any]:
    """Check a whole policies object; nulls are dropped, unknown fields are kept as they are."""
    kept = any_object("policies", document)
    return {
        field: check_policy(field, value) if field in FIELDS else value
        for field, value in kept.items()
        if value is not None
    }


def bundle_ranges(count: int) -> dict[str, Any]:
    """Return ``count`` equal hash ranges, the last boundary included, in Pulsar's format."""
    if not 1 <= count <= 1 << 20:
        raise RuleViolation(
            InvalidRequest.NOT_ALLOWED, f"numBundles={count} is not allowed; allowed: 1 to {1 << 20}"
        )
    step = (1 << 32) // count
    boundaries = [f"0x{index * step:08x}" for index in range(count)]
    return {"boundaries": [*boundaries, "0xffffffff"], "numBundles": count}


# --- what is in force ---


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ThrottleRate(ByFields):
    """Rate limit: messages and bytes in a period; -1 is no limit."""

    messages: int = -1
    bytes: int = -1
    period_seconds: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class UnackedRedelivery(ByFields):
    """Redelivery of messages that no consumer acknowledges in time; 0 seconds: never."""

    after_seconds: float = 0.0
    messages_per_second_max: int = 1_000
    age_seconds_max: int = 0
    """Older messages are not redelivered; 0 is no limit."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Policies(ByFields):
    """Policies of a namespace or a topic after topic, namespace and broker settings are merged.

    Limits are 0 if not set (Pulsar's convention), sizes and ages of retention and backlog quota -1.
    """

    retention_minutes: int
    retention_megabytes: int
    message_ttl_seconds: int
    backlog_quota_bytes: int
    backlog_quota_action: str
    backlog_quota_seconds: int
    backlog_quota_age_action: str
    deduplication: bool
    auto_create_topics: bool
    auto_create_partitions: int
    """Partitions of an automatically created topic; 0 makes it non-partitioned."""
    auto_create_subscriptions: bool
    max_producers_per_topic: int
    max_consumers_per_topic: int
    max_consumers_per_subscription: int
    max_subscriptions_per_topic: int
    max_topics_per_namespace: int
    max_message_size: int
    unacked_messages_per_consumer_max: int
    unacked_messages_per_subscription_max: int
    subscription_types_enabled: frozenset[str]
    """Empty allows all."""
    redeliver_unacked: UnackedRedelivery
    subscription_expiration_minutes: int
    delayed_delivery: bool
    delayed_delivery_tick_seconds: float
    delayed_delivery_seconds_max: float
    """0 is no limit."""
    delete_inactive_topics: bool
    inactive_topic_mode: str
    inactive_topic_seconds: int
    encryption_required: bool
    schema_compatibility_strategy: str
    schema_auto_update: bool
    schema_validation_enforced: bool
    compaction_threshold_bytes: int
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


class _Layers:
    """Looks a policy up in the layers, the most specific first."""

    def __init__(self, layers: tuple[Mapping[str, Any], ...], cluster: str) -> None:
        self._layers = layers
        self._cluster = cluster

    def value(self, field: str, default: Any) -> Any:
        for layer in self._layers:
            found = layer.get(field)
            if found is not None:
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

    def record(self, field: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.value(field, {})
        return found

    def quota(self, kind: str) -> Mapping[str, Any]:
        for layer in self._layers:
            found = layer.get("backlog_quota_map", {}).get(kind)
            if found:
                return found  # type: ignore[no-any-return]
        return {}

    def rate(self, field: str, messages: str, size: str, default: ThrottleRate = _NO_RATE) -> ThrottleRate:
        for layer in self._layers:
            found = layer.get(field, {}).get(self._cluster)
            if found:
                return ThrottleRate(
                    messages=found.get(messages, -1),
                    bytes=found.get(size, -1),
                    period_seconds=found.get("ratePeriodInSecond", 1),
                )
        return default


_DISPATCH = ("dispatchThrottlingRateInMsg", "dispatchThrottlingRateInByte")


def resolve(settings: BrokerSettings, *layers: Mapping[str, Any]) -> Policies:
    """Merge ``layers`` (the most specific first) over the broker's settings."""
    look = _Layers(layers, settings.cluster)
    kept = look.record("retention_policies")
    size_quota, age_quota = look.quota("destination_storage"), look.quota("message_age")
    topics = look.record("autoTopicCreationOverride")
    delayed = look.record("delayed_delivery_policies")
    inactive = look.record("inactive_topic_policies")
    again = look.record("redeliver_unacked_policies")
    partitions = settings.auto_create_partitions if settings.auto_create_topic_kind == "partitioned" else 0
    if topics:
        partitions = topics["defaultNumPartitions"] if topics["topicType"] == "partitioned" else 0
    strategy = look.value("schema_compatibility_strategy", "UNDEFINED")
    return Policies(
        retention_minutes=kept.get("retentionTimeInMinutes", settings.retention_minutes),
        retention_megabytes=kept.get("retentionSizeInMB", settings.retention_megabytes_default),
        message_ttl_seconds=look.value("message_ttl_in_seconds", settings.message_ttl_seconds),
        backlog_quota_bytes=size_quota.get("limitSize", settings.backlog_quota_bytes),
        backlog_quota_action=size_quota.get("policy", settings.backlog_quota_action),
        backlog_quota_seconds=age_quota.get("limitTime", settings.backlog_quota_seconds),
        backlog_quota_age_action=age_quota.get("policy", settings.backlog_quota_action),
        deduplication=look.value("deduplicationEnabled", settings.deduplication),
        auto_create_topics=topics.get("allowAutoTopicCreation", settings.auto_create_topics),
        auto_create_partitions=partitions,
        auto_create_subscriptions=look.record("autoSubscriptionCreationOverride").get(
            "allowAutoSubscriptionCreation", settings.auto_create_subscriptions
        ),
        max_producers_per_topic=look.value("max_producers_per_topic", 0),
        max_consumers_per_topic=look.value("max_consumers_per_topic", 0),
        max_consumers_per_subscription=look.value("max_consumers_per_subscription", 0),
        max_subscriptions_per_topic=look.value("max_subscriptions_per_topic", 0),
        max_topics_per_namespace=look.value("max_topics_per_namespace", 0),
        max_message_size=look.value("max_message_size", 0) or settings.max_message_size,
        unacked_messages_per_consumer_max=look.value(
            "max_unacked_messages_per_consumer", settings.unacked_messages_per_consumer_max
        ),
        unacked_messages_per_subscription_max=look.value(
            "max_unacked_messages_per_subscription", settings.unacked_messages_per_subscription_max
        ),
        subscription_types_enabled=frozenset(look.value("subscription_types_enabled", ())),
        redeliver_unacked=UnackedRedelivery(
            after_seconds=again.get("afterSeconds", settings.redeliver_unacked_after_seconds),
            messages_per_second_max=again.get(
                "messagesPerSecondMax", settings.redeliver_unacked_per_second_max
            ),
            age_seconds_max=again.get("ageSecondsMax", settings.redeliver_unacked_age_seconds_max),
        ),
        subscription_expiration_minutes=look.value(
            "subscription_expiration_time_minutes", settings.subscription_expiration_minutes
        ),
        delayed_delivery=delayed.get("active", settings.delayed_delivery),
        delayed_delivery_tick_seconds=delayed.get("tickTime", 1000 * settings.delayed_delivery_tick_seconds)
        / 1000,
        delayed_delivery_seconds_max=delayed.get("maxDeliveryDelayInMillis", 0) / 1000,
        delete_inactive_topics=inactive.get("deleteWhileInactive", settings.delete_inactive_topics),
        inactive_topic_mode=inactive.get("inactiveTopicDeleteMode", INACTIVE_TOPIC_MODES[0]),
        inactive_topic_seconds=inactive.get("maxInactiveDurationSeconds", settings.inactive_topic_seconds),
        encryption_required=look.value("encryption_required", False),
        schema_compatibility_strategy=_DEFAULT_STRATEGY if strategy == "UNDEFINED" else strategy,
        schema_auto_update=look.value("is_allow_auto_update_schema", True),
        schema_validation_enforced=look.value("schema_validation_enforced", False),
        compaction_threshold_bytes=look.value("compaction_threshold", 0),
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
        publish_rate=look.rate(
            "publishMaxMessageRate",
            "publishThrottlingRateInMsg",
            "publishThrottlingRateInByte",
            ThrottleRate(
                messages=settings.topic_publish_rate_messages, bytes=settings.topic_publish_rate_bytes
            ),
        ),
        dispatch_rate=look.rate(
            "topicDispatchRate",
            *_DISPATCH,
            ThrottleRate(
                messages=settings.topic_dispatch_rate_messages, bytes=settings.topic_dispatch_rate_bytes
            ),
        ),
        subscription_dispatch_rate=look.rate(
            "subscriptionDispatchRate",
            *_DISPATCH,
            ThrottleRate(
                messages=settings.subscription_dispatch_rate_messages,
                bytes=settings.subscription_dispatch_rate_bytes,
            ),
        ),
        subscribe_rate=look.rate("clusterSubscribeRate", "subscribeThrottlingRatePerConsumer", ""),
    )
