"""Alert rules for Prometheus on a broker's metrics.

``geminga dashboard alerts`` prints them, and ``make docs`` writes them to ``deploy/prometheus/alerts.json``,
as JSON, which is YAML too. The tests have Prometheus' own ``promtool`` evaluate each rule on series with
which it must fire, and on others with which it must not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

SUBSCRIPTION = "subscription {{ $labels.subscription }} of {{ $labels.topic }}"
TOPIC = "topic {{ $labels.topic }}"
BROKER = "broker {{ $labels.instance }}"


@dataclass(frozen=True)
class Alert:
    """An alert rule. ``after``: how long the expression must hold. ``severity``: page or warning."""

    name: str
    expression: str
    after: str
    severity: str
    text: str
    advice: str


ALERTS = (
    Alert(
        "GemingaDown", 'up{job=~".*broker"} == 0', "1m", "page",
        f"Prometheus cannot read the metrics of {BROKER}: it does not run, or refuses the token.",
        "geminga health on its machine, then the end of its log.",
    ),
    Alert(
        "GemingaStoreStopped", "geminga_store_healthy == 0", "0m", "page",
        f"The store of {BROKER} stopped after a failed write or sync: nothing is stored any more.",
        "Check the disk and the log, then restart the broker.",
    ),
    Alert(
        "GemingaPublishingRefused", "geminga_publishing_refused == 1", "0m", "page",
        f"{BROKER} refuses messages: its disk is full.",
        "Free space: geminga explain for what stops consumers, shorter retention, or offloading.",
    ),
    Alert(
        "GemingaDiskFills", "geminga_disk_seconds_to_low_water < 86400", "15m", "warning",
        f"The disk of {BROKER} is full within a day at the present growth.",
        "See which topics grow: geminga top. Then shorten retention, offload, or extend the disk.",
    ),
    Alert(
        "GemingaDamage", "geminga_store_damaged_things > 0", "0m", "page",
        f"{BROKER} found damaged data (kind of loss: {{{{ $labels.lost }}}}).",
        "geminga store check names files and entries; see the page about operating.",
    ),
    Alert(
        "GemingaSyncsSlow",
        "rate(geminga_store_sync_seconds_total[5m]) / rate(geminga_store_syncs_total[5m]) > 0.1",
        "10m", "warning",
        f"A sync of {BROKER} takes more than 100 ms on average: every receipt waits for one.",
        "Look for other programs that write to the disk, and at the disk itself.",
    ),
    Alert(
        "GemingaProducersHeld", "geminga_subscription_trouble == 6", "1m", "page",
        f"Producers are stopped by the backlog of {SUBSCRIPTION}.",
        "geminga explain TOPIC SUBSCRIPTION says what stops it, and what would free the quota.",
    ),
    Alert(
        "GemingaSubscriptionStopped",
        "geminga_subscription_trouble >= 4 and geminga_subscription_trouble < 6", "5m", "page",
        f"Nothing is acknowledged although messages wait in {SUBSCRIPTION}.",
        "geminga explain TOPIC SUBSCRIPTION says why.",
    ),
    Alert(
        "GemingaOldestMessage", "geminga_subscription_oldest_backlog_message_age_seconds > 3600",
        "5m", "warning",
        f"The oldest message in the backlog of {SUBSCRIPTION} is older than an hour.",
        "Add consumers, or find what holds the oldest message: geminga peek TOPIC SUBSCRIPTION.",
    ),
    Alert(
        "GemingaAckHoles", "geminga_subscription_ack_holes > 10000", "10m", "warning",
        f"{SUBSCRIPTION} has {{{{ $value }}}} acknowledgement holes: storage is kept for single messages.",
        "geminga explain TOPIC SUBSCRIPTION shows the oldest hole and who has it.",
    ),
    Alert(
        "GemingaQuotaNear",
        "(pulsar_storage_backlog_size / (pulsar_storage_backlog_quota_limit > 0) > 0.8) or "
        "(pulsar_storage_backlog_age_seconds / (pulsar_storage_backlog_quota_limit_time > 0) > 0.8)",
        "5m", "warning",
        f"The backlog of {TOPIC} has reached four fifths of its quota.",
        "geminga subscriptions list TOPIC shows the largest backlog; geminga explain, why.",
    ),
    Alert(
        "GemingaTtlExpires", "increase(pulsar_subscription_total_msg_expired[15m]) > 0", "0m", "warning",
        f"Messages of {SUBSCRIPTION} expired unread.",
        "Consumers are slower than the time to live allows: add consumers, or raise it.",
    ),
    Alert(
        "GemingaCertificateExpires",
        "geminga_tls_certificate_expiry_timestamp_seconds - time() < 14 * 86400", "1h", "warning",
        f"The TLS certificate of {BROKER} expires within 14 days.",
        "Replace the file; the broker notices.",
    ),
    Alert(
        "GemingaConnectionsRefused", "increase(geminga_connections_refused_total[5m]) > 0", "0m", "warning",
        f"{BROKER} refused connections: their limit is reached.",
        "Look for programs that open many clients, or raise connections_max.",
    ),
    Alert(
        "GemingaInternalFailures", "increase(geminga_callback_failures_total[15m]) > 0", "0m", "warning",
        f"{BROKER} met an error of its own ({{{{ $labels.kind }}}}).",
        "Its log has the traceback; please report it.",
    ),
)  # fmt: skip


def rules() -> dict[str, Any]:
    """Return the rules in the form of Prometheus' rule files."""
    return {
        "groups": [
            {
                "name": "geminga",
                "rules": [
                    {
                        "alert": each.name,
                        "expr": each.expression,
                        "for": each.after,
                        "labels": {"severity": each.severity},
                        "annotations": {"summary": each.text, "description": each.advice},
                    }
                    for each in ALERTS
                ],
            }
        ]
    }


def text() -> str:
    """Return `rules` as JSON text, which is YAML too."""
    return json.dumps(rules(), indent=2) + "\n"
