"""The Grafana dashboard of a broker's metrics: queries and layout of the panels.

``geminga dashboard grafana`` prints it; ``make docs`` generates ``deploy/grafana/geminga.json`` from it.
Queries use only metrics that a broker with topics always exports, so that no panel is empty.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

UID = "geminga-broker"
WIDTH = 24
"""Width of Grafana's grid in columns."""

_ALL = 'cluster=~"$cluster"'
_TOPIC = f'{_ALL},namespace=~"$namespace",topic=~"$topic"'
_SUBSCRIPTION = f'{_TOPIC},subscription=~"$subscription"'


MESSAGES_A_SECOND = "suffix: msg/s"


@dataclass(frozen=True)
class Query:
    """A PromQL expression and the legend of its series."""

    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """A panel of the dashboard. ``kind``: timeseries or stat; ``text``: the panel's description."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    text: str = ""
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    worse_from: float | None = None
    """Threshold of a stat: red from this value on (below it if ``better_high``)."""
    better_high: bool = False


def _of_broker(title: str, metric: str, unit: str = "short", **more: Any) -> Panel:
    return Panel(
        title, (Query(f"sum({metric}{{{_ALL}}})", title),), unit, kind="stat", width=3, height=4, **more
    )


def _by_topic(title: str, expression: str, unit: str = "short", text: str = "") -> Panel:
    return Panel(title, (Query(f"topk(20, {expression})", "{{topic}}"),), unit, text)


def _by_subscription(title: str, metric: str, unit: str = "short", text: str = "") -> Panel:
    expression = f"topk(20, {metric}{{{_SUBSCRIPTION}}})"
    return Panel(title, (Query(expression, "{{topic}} {{subscription}}"),), unit, text)


def _rate(metric: str, labels: str = _ALL) -> str:
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Broker",
        (
            Panel(
                "Store",
                (Query(f"min(geminga_store_healthy{{{_ALL}}})", "healthy"),),
                kind="stat",
                width=3,
                height=4,
                worse_from=1,
                better_high=True,
                text="1: writes. 0: the store has stopped; the log says why.",
            ),
            Panel(
                "Publishing refused",
                (Query(f"max(geminga_publishing_refused{{{_ALL}}})", "refused"),),
                kind="stat",
                width=3,
                height=4,
                worse_from=1,
                text="1: the disk is full, and producers wait.",
            ),
            _of_broker("Topics", "pulsar_broker_topics_count"),
            _of_broker("Subscriptions", "pulsar_broker_subscriptions_count"),
            _of_broker("Producers", "pulsar_broker_producers_count"),
            _of_broker("Consumers", "pulsar_broker_consumers_count"),
            _of_broker("Connections", "pulsar_active_connections"),
            _of_broker("Backlog, entries", "pulsar_broker_msg_backlog"),
            Panel(
                "Messages",
                (
                    Query(f"sum(pulsar_broker_rate_in{{{_ALL}}})", "in"),
                    Query(f"sum(pulsar_broker_rate_out{{{_ALL}}})", "out"),
                ),
                MESSAGES_A_SECOND,
            ),
            Panel(
                "Bytes",
                (
                    Query(f"sum(pulsar_broker_throughput_in{{{_ALL}}})", "in"),
                    Query(f"sum(pulsar_broker_throughput_out{{{_ALL}}})", "out"),
                ),
                "Bps",
            ),
            Panel(
                "Messages an entry",
                (
                    Query(
                        f"sum({_rate('pulsar_in_messages_total')}) / "
                        f"sum({_rate('geminga_store_appended_entries_total')})",
                        "batch fill",
                    ),
                ),
                text="Near 1 the producers do not batch: geminga tune says what that costs.",
            ),
            Panel("CPU", (Query(_rate("process_cpu_seconds_total"), "cores"),), "short"),
            Panel("Memory", (Query(f"process_resident_memory_bytes{{{_ALL}}}", "resident"),), "bytes"),
            Panel(
                "Failed callbacks, in an hour",
                (
                    Query(
                        f"sum(increase(geminga_callback_failures_total{{{_ALL}}}[1h])) or vector(0)",
                        "failures",
                    ),
                ),
                text="Errors that nobody expected: the log has them, with the topic's name.",
            ),
        ),
    ),
    (
        "Topics",
        (
            _by_topic("Messages in", f"pulsar_rate_in{{{_TOPIC}}}", MESSAGES_A_SECOND),
            _by_topic("Messages out", f"pulsar_rate_out{{{_TOPIC}}}", MESSAGES_A_SECOND),
            _by_topic("Bytes in", f"pulsar_throughput_in{{{_TOPIC}}}", "Bps"),
            _by_topic("Bytes out", f"pulsar_throughput_out{{{_TOPIC}}}", "Bps"),
            _by_topic("Stored", f"pulsar_storage_size{{{_TOPIC}}}", "bytes"),
            _by_topic(
                "Kept for subscriptions",
                f"pulsar_storage_backlog_size{{{_TOPIC}}}",
                "bytes",
                "From the oldest open message to the end: what a backlog quota counts.",
            ),
        ),
    ),
    (
        "Subscriptions",
        (
            _by_subscription("Backlog, messages", "geminga_subscription_messages_in_backlog"),
            _by_subscription("Backlog, bytes", "geminga_subscription_bytes_in_backlog", "bytes"),
            _by_subscription(
                "Age of the oldest open message",
                "geminga_subscription_oldest_backlog_message_age_seconds",
                "s",
                "Growing while the backlog is small: a hole. geminga explain TOPIC SUBSCRIPTION names it.",
            ),
            _by_subscription("Unacknowledged", "pulsar_subscription_unacked_messages"),
            _by_subscription("Ack holes", "geminga_subscription_ack_holes"),
            _by_subscription(
                "Blocked by unacknowledged messages",
                "pulsar_subscription_blocked_on_unacked_messages",
                text="1: nothing more is sent before something is acknowledged.",
            ),
            _by_subscription("Delivered", "pulsar_subscription_msg_rate_out", MESSAGES_A_SECOND),
            _by_subscription("Acknowledged", "pulsar_subscription_msg_ack_rate", MESSAGES_A_SECOND),
            _by_subscription("Redelivered", "pulsar_subscription_msg_rate_redeliver", MESSAGES_A_SECOND),
            _by_subscription("Consumers", "pulsar_subscription_consumers_count"),
            _by_subscription("Delayed", "pulsar_subscription_delayed"),
            _by_subscription("Expired", "pulsar_subscription_msg_rate_expired", MESSAGES_A_SECOND),
        ),
    ),
    (
        "Producers",
        (
            _by_topic("Producers", f"pulsar_producers_count{{{_TOPIC}}}"),
            _by_topic(
                "Messages in, a producer",
                f"pulsar_rate_in{{{_TOPIC}}} / (pulsar_producers_count{{{_TOPIC}}} > 0)",
                MESSAGES_A_SECOND,
            ),
            _by_topic("Size of a message", f"pulsar_average_msg_size{{{_TOPIC}}}", "bytes"),
        ),
    ),
    (
        "Store and disk",
        (
            Panel(
                "Disk",
                (
                    Query(f"geminga_disk_total_bytes{{{_ALL}}}", "whole"),
                    Query(f"geminga_disk_free_bytes{{{_ALL}}}", "free"),
                    Query(f"geminga_disk_used_bytes{{{_ALL}}}", "used by the store"),
                    Query(f"geminga_disk_low_water_bytes{{{_ALL}}}", "low water"),
                ),
                "bytes",
                "Below low water retention gives way, and then publishing stops.",
            ),
            Panel(
                "Time until low water",
                (Query(f"geminga_disk_seconds_to_low_water{{{_ALL}}}", "at the rate of now"),),
                "s",
            ),
            Panel(
                "Written", (Query(f"geminga_disk_written_bytes_per_second{{{_ALL}}}", "to the disk"),), "Bps"
            ),
            Panel("Syncs", (Query(_rate("geminga_store_syncs_total"), "syncs"),), "ops"),
            Panel(
                "A sync takes",
                (
                    Query(
                        f"{_rate('geminga_store_sync_seconds_total')} / {_rate('geminga_store_syncs_total')}",
                        "mean",
                    ),
                ),
                "s",
                "A receipt waits for one, with all that came meanwhile.",
            ),
            Panel("Writes that wait", (Query(f"geminga_store_pending_writes{{{_ALL}}}", "writes"),)),
            Panel(
                "Retention that gave way",
                (Query(_rate("geminga_retention_gave_way_bytes_total"), "to a full disk"),),
                "Bps",
            ),
            Panel(
                "Damaged",
                (Query(f"sum by (lost) (geminga_store_damaged_things{{{_ALL}}})", "{{lost}}"),),
                text="What damage took and nobody has settled: geminga store check.",
            ),
            Panel(
                "Connections refused", (Query(_rate("geminga_connections_refused_total"), "refused"),), "cps"
            ),
        ),
    ),
)

VARIABLES: tuple[tuple[str, str], ...] = (
    ("cluster", "label_values(pulsar_version_info, cluster)"),
    ("namespace", 'label_values(pulsar_rate_in{cluster=~"$cluster"}, namespace)'),
    ("topic", 'label_values(pulsar_rate_in{cluster=~"$cluster",namespace=~"$namespace"}, topic)'),
    (
        "subscription",
        'label_values(pulsar_subscription_back_log{namespace=~"$namespace",topic=~"$topic"}, subscription)',
    ),
)
"""Template variables of the dashboard, with the queries that list their values."""

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
    """Return the dashboard in the form of Grafana's provisioning and import."""
    return {
        "uid": UID,
        "title": "Geminga",
        "description": "Brokers, topics, subscriptions and producers of Geminga, by Prometheus.",
        "tags": ["pulsar", "geminga"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [_datasource(), *(_variable(name, query) for name, query in VARIABLES)]},
        "panels": _panels(),
    }


def text() -> str:
    """Return `dashboard` as JSON text."""
    return json.dumps(dashboard(), indent=2) + "\n"


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "hide": 0,
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
            }
        )
        top += 1
        left = height = 0
        for panel in row:
            if left + panel.width > WIDTH:
                left, top, height = 0, top + height, 0
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            panels.append({"id": len(panels) + 1, "gridPos": place, **_panel(panel)})
            left += panel.width
            height = max(height, panel.height)
        top += height
    return panels


def _panel(panel: Panel) -> dict[str, Any]:
    stat = panel.kind == "stat"
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
                "instant": stat,
                "range": not stat,
            }
            for index, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, **_colours(panel)}, "overrides": []},
        "options": _STAT if stat else _SERIES,
    }


def _colours(panel: Panel) -> dict[str, Any]:
    if panel.kind != "stat":
        return {"custom": {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never", "spanNulls": True}}
    if panel.worse_from is None:
        return {"color": {"mode": "fixed", "fixedColor": "text"}}
    low, high = ("red", "green") if panel.better_high else ("green", "red")
    steps = [{"color": low, "value": None}, {"color": high, "value": panel.worse_from}]
    return {"color": {"mode": "thresholds"}, "thresholds": {"mode": "absolute", "steps": steps}}


_STAT: dict[str, Any] = {
    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    "colorMode": "value",
    "graphMode": "none",
    "textMode": "value",
}
_SERIES: dict[str, Any] = {
    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
    "tooltip": {"mode": "multi", "sort": "desc"},
}
