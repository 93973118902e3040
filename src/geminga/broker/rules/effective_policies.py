"""Policies in force for a topic, in the format in which each is set, as shown by ``--applied``."""

from __future__ import annotations

from typing import Any

from geminga.broker.rules.policies import Policies, ThrottleRate


def in_force(policies: Policies, cluster: str) -> dict[str, Any]:
    """Return policies by name, without those that have no format for "not set"."""
    return {
        "retention_policies": {
            "retentionTimeInMinutes": policies.retention_minutes,
            "retentionSizeInMB": policies.retention_megabytes,
        },
        "message_ttl_in_seconds": policies.message_ttl_seconds,
        "deduplicationEnabled": policies.deduplication,
        "max_consumers_per_topic": policies.max_consumers_per_topic,
        "max_producers_per_topic": policies.max_producers_per_topic,
        "max_unacked_messages_per_consumer": policies.unacked_messages_per_consumer_max,
        "max_unacked_messages_per_subscription": policies.unacked_messages_per_subscription_max,
        "max_message_size": policies.max_message_size,
        "compaction_threshold": policies.compaction_threshold_bytes,
        "schema_compatibility_strategy": policies.schema_compatibility_strategy,
        "autoSubscriptionCreationOverride": {
            "allowAutoSubscriptionCreation": policies.auto_create_subscriptions
        },
        "delayed_delivery_policies": {
            "tickTime": round(1000 * policies.delayed_delivery_tick_seconds),
            "active": policies.delayed_delivery,
            "maxDeliveryDelayInMillis": round(1000 * policies.delayed_delivery_seconds_max),
        },
        "inactive_topic_policies": {
            "inactiveTopicDeleteMode": policies.inactive_topic_mode,
            "maxInactiveDurationSeconds": policies.inactive_topic_seconds,
            "deleteWhileInactive": policies.delete_inactive_topics,
        },
        "entryFilters": {"entryFilterNames": ""},
        "topicDispatchRate": {cluster: _dispatch(policies.dispatch_rate)},
        "subscriptionDispatchRate": {cluster: _dispatch(policies.subscription_dispatch_rate)},
        "replicatorDispatchRate": {cluster: _dispatch(ThrottleRate())},
        "clusterSubscribeRate": {
            cluster: {
                "subscribeThrottlingRatePerConsumer": policies.subscribe_rate.messages,
                "ratePeriodInSecond": policies.subscribe_rate.period_seconds,
            }
        },
        "backlog_quota_map": {
            "destination_storage": {
                "limit": policies.backlog_quota_bytes,
                "limitSize": policies.backlog_quota_bytes,
                "limitTime": -1,
                "policy": policies.backlog_quota_action,
            },
            "message_age": {
                "limit": -1,
                "limitSize": -1,
                "limitTime": policies.backlog_quota_seconds,
                "policy": policies.backlog_quota_age_action,
            },
        },
    }


def _dispatch(rate: ThrottleRate) -> dict[str, Any]:
    return {
        "dispatchThrottlingRateInMsg": rate.messages,
        "dispatchThrottlingRateInByte": rate.bytes,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": rate.period_seconds,
    }
