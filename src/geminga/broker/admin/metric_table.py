"""Every metric of ``/metrics``: its type, its labels, its unit and its meaning, in one table.

`metrics.py` takes types and ``# HELP`` lines from here, ``docs/reference/metrics.md`` is drawn from it, and
a test compares it with a scrape of a broker that has one of everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final


class MetricScope(Enum):
    """What a metric tells about, and the labels of its samples besides ``cluster``."""

    TOPIC = ("Topics in memory", ("namespace", "topic"))
    SUBSCRIPTION = ("Subscriptions of topics in memory", ("namespace", "topic", "subscription"))
    NAMESPACE = ("Namespaces", ("namespace",))
    BROKER = ("The broker", ())
    STORE = ("The store and its disk", ())
    OFFLOAD = ("Offloading, where it is switched on", ())
    PROCESS = ("The process", ())

    def __init__(self, title: str, labels: tuple[str, ...]) -> None:
        self.title = title
        self.labels = labels


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. ``kind`` is ``gauge`` or ``counter``; ``labels`` are beyond those of ``of``."""

    name: str
    of: MetricScope
    kind: str
    unit: str
    text: str
    labels: tuple[str, ...] = ()


_TOPIC: Final = (
    ("pulsar_subscriptions_count", "gauge", "subscriptions", "Subscriptions of the topic."),
    ("pulsar_producers_count", "gauge", "producers", "Producers that are connected."),
    ("pulsar_consumers_count", "gauge", "consumers", "Consumers that are connected."),
    ("pulsar_msg_backlog", "gauge", "entries",
     "Backlogs of all its subscriptions, added up; also of topics that are not in memory."),
    ("pulsar_rate_in", "gauge", "messages/s", "Rate of publishing."),
    ("pulsar_rate_out", "gauge", "messages/s", "Rate of delivery, over all subscriptions."),
    ("pulsar_throughput_in", "gauge", "bytes/s", "Rate of publishing in stored bytes."),
    ("pulsar_throughput_out", "gauge", "bytes/s", "Rate of delivery in stored bytes."),
    ("pulsar_in_messages_total", "counter", "messages", "Published since the topic was loaded."),
    ("pulsar_in_bytes_total", "counter", "bytes", "Published since the topic was loaded."),
    ("pulsar_average_msg_size", "gauge", "bytes", "Of the messages published since it was loaded."),
    ("pulsar_storage_size", "gauge", "bytes", "What the topic's ledgers take."),
    ("pulsar_storage_backlog_size", "gauge", "bytes", "What the longest backlog keeps."),
    ("pulsar_storage_backlog_quota_limit", "gauge", "bytes", "Backlog quota by size; -1: none."),
    ("pulsar_storage_backlog_quota_limit_time", "gauge", "seconds", "Backlog quota by age; -1: none."),
    ("pulsar_storage_backlog_age_seconds", "gauge", "seconds",
     "Age of the oldest message that a subscription waits for; -1: there is none."),
    ("pulsar_storage_offloaded_size", "gauge", "bytes", "What of the topic is in cheap storage."),
    ("pulsar_compaction_removed_event_count", "counter", "messages", "Left out by compaction: overwritten."),
    ("pulsar_compaction_succeed_count", "counter", "compactions", "Compactions that came to their end."),
    ("pulsar_compaction_failed_count", "counter", "compactions", "Compactions that did not."),
    ("pulsar_compaction_duration_time_in_mills", "gauge", "ms", "How long the last compaction took."),
    ("pulsar_compaction_compacted_entries_count", "gauge", "entries", "Entries of the compacted ledger."),
    ("pulsar_compaction_compacted_entries_size", "gauge", "bytes", "Size of the compacted ledger."),
    ("geminga_compaction_read_bytes_total", "counter", "bytes", "Read by compaction."),
    ("geminga_compaction_written_bytes_total", "counter", "bytes", "Written by compaction."),
)  # fmt: skip
_SUBSCRIPTION: Final = (
    ("pulsar_subscription_consumers_count", "gauge", "consumers",
     "Consumers that are connected; 0 where the topic is not in memory and the subscription has a backlog."),
    ("pulsar_subscription_back_log", "gauge", "entries",
     "Entries (messages or whole batches) that are not acknowledged; also of topics that are not in memory."),
    ("pulsar_subscription_back_log_no_delayed", "gauge", "entries", "The same without delayed ones."),
    ("geminga_subscription_messages_in_backlog", "gauge", "messages",
     "Messages that are not acknowledged, those of batches one by one; -1 while they are being counted."),
    ("geminga_subscription_bytes_in_backlog", "gauge", "bytes",
     "What the entries of the backlog take; -1 while they are being counted."),
    ("geminga_subscription_oldest_backlog_message_age_seconds", "gauge", "seconds",
     "Age of the oldest message of the backlog; -1: there is none."),
    ("geminga_subscription_ack_holes", "gauge", "holes",
     "Gaps: what is not acknowledged, with acknowledged messages behind it."),
    ("geminga_subscription_trouble", "gauge", "0 to 6",
     "0: all is acknowledged; 1: idle; 2: moving; 3: worth a look; 4: stopped; 5: stopped, and the backlog "
     "grows; 6: producers are stopped because of it. As in the console and `geminga explain`."),
    ("geminga_subscription_redeliver_unacked_after_seconds", "gauge", "seconds",
     "After so long unacknowledged messages are pushed again; 0: never."),
    ("geminga_subscription_messages_pushed_again_total", "counter", "messages",
     "Pushed again because nobody acknowledged them."),
    ("geminga_subscription_entries_too_old_to_push_again_total", "counter", "entries",
     "Left where they are because they are older than the policy allows."),
    ("pulsar_subscription_delayed", "gauge", "entries", "Entries whose time has not come."),
    ("pulsar_subscription_in_replay", "gauge", "entries", "Entries that wait to be delivered again."),
    ("pulsar_subscription_unacked_messages", "gauge", "messages",
     "Delivered and not acknowledged; Shared and Key_Shared."),
    ("pulsar_subscription_blocked_on_unacked_messages", "gauge", "0 or 1",
     "1: nothing is delivered, for too much is unacknowledged."),
    ("pulsar_subscription_msg_rate_out", "gauge", "messages/s", "Rate of delivery."),
    ("pulsar_subscription_msg_throughput_out", "gauge", "bytes/s", "Rate of delivery in stored bytes."),
    ("pulsar_subscription_msg_rate_redeliver", "gauge", "messages/s", "Rate of repeated delivery."),
    ("pulsar_subscription_msg_ack_rate", "gauge", "messages/s",
     "Rate of acknowledgement, the messages of a batch one by one."),
    ("pulsar_subscription_msg_rate_expired", "gauge", "messages/s", "Always 0: see the total."),
    ("pulsar_subscription_total_msg_expired", "counter", "messages", "Given up by TTL or by an expiry."),
    ("pulsar_subscription_last_expire_timestamp", "gauge", "ms since 1970", "When that was; 0: never."),
    ("pulsar_subscription_last_acked_timestamp", "gauge", "ms since 1970",
     "The last acknowledgement; 0: none."),
    ("pulsar_subscription_last_consumed_timestamp", "gauge", "ms since 1970", "The last delivery; 0: none."),
    ("pulsar_subscription_last_consumed_flow_timestamp", "gauge", "ms since 1970",
     "When a consumer last gave permits; 0: never."),
    ("pulsar_subscription_last_mark_delete_advanced_timestamp", "gauge", "ms since 1970",
     "When the position up to which all is acknowledged last moved; 0: never."),
    ("pulsar_out_messages_total", "counter", "messages", "Delivered since the topic was loaded."),
    ("pulsar_out_bytes_total", "counter", "bytes", "Delivered since the topic was loaded."),
)  # fmt: skip
_BROKER: Final = (
    ("pulsar_broker_topics_count", "gauge", "topics", "All topics, in memory or not; partitions each."),
    ("geminga_topics_loaded", "gauge", "topics", "Topics in memory."),
    ("pulsar_broker_subscriptions_count", "gauge", "subscriptions", "Of all topics, in memory or not."),
    ("pulsar_broker_producers_count", "gauge", "producers", "Producers that are connected."),
    ("pulsar_broker_consumers_count", "gauge", "consumers", "Consumers that are connected."),
    ("pulsar_broker_msg_backlog", "gauge", "entries", "Backlogs of all topics, in memory or not, added up."),
    ("pulsar_broker_rate_in", "gauge", "messages/s", "Rate of publishing."),
    ("pulsar_broker_rate_out", "gauge", "messages/s", "Rate of delivery."),
    ("pulsar_broker_throughput_in", "gauge", "bytes/s", "Rate of publishing."),
    ("pulsar_broker_throughput_out", "gauge", "bytes/s", "Rate of delivery."),
    ("pulsar_broker_storage_size", "gauge", "bytes", "Size of the ledgers of all topics, in memory or not."),
    ("geminga_backlogs_complete", "gauge", "0 or 1",
     "0: topics that are not in memory are still being read after a start; sums have those read so far."),
    ("geminga_subscriptions_not_listed", "gauge", "subscriptions",
     "With a backlog, of topics not in memory, and in the sums alone: 10,000 are listed, the largest."),
    ("pulsar_active_connections", "gauge", "connections", "Connections of the binary protocol."),
    ("geminga_connections_refused_total", "counter", "connections", "Hung up on: there were too many."),
)  # fmt: skip
_STORE: Final = (
    ("geminga_store_healthy", "gauge", "0 or 1",
     "0: a write or sync failed, and nothing more is receipted. Raise an alarm."),
    ("geminga_store_appended_entries_total", "counter", "entries", "Written since the store was opened."),
    ("geminga_store_appended_bytes_total", "counter", "bytes", "Written since the store was opened."),
    ("geminga_store_syncs_total", "counter", "syncs", "Calls of fdatasync."),
    ("geminga_store_sync_seconds_total", "counter", "seconds",
     "What they took together; divided by their number: the disk's answer."),
    ("geminga_store_disk_bytes", "gauge", "bytes", "What the store's files take."),
    ("geminga_store_pending_writes", "gauge", "writes", "Writes that are not yet on disk."),
    ("geminga_disk_total_bytes", "gauge", "bytes", "Size of the disk, or ``--disk-limit``."),
    ("geminga_disk_free_bytes", "gauge", "bytes", "What may still be written."),
    ("geminga_disk_used_bytes", "gauge", "bytes", "What the data folder takes, allocated ahead included."),
    ("geminga_disk_low_water_bytes", "gauge", "bytes", "With less free than this nothing is published."),
    ("geminga_disk_written_bytes_per_second", "gauge", "bytes/s", "How fast the log grows."),
    ("geminga_disk_seconds_to_low_water", "gauge", "seconds",
     "When the low water is reached if that goes on; +Inf: never."),
    ("geminga_publishing_refused", "gauge", "0 or 1", "1: nothing is published, for the disk is full."),
    ("geminga_retention_overflows", "gauge", "0 or 1",
     "1: what retention is to keep does not fit on the disk as fast as it is written."),
    ("geminga_retention_gave_way_ledgers_total", "counter", "ledgers",
     "Acknowledged ledgers deleted before their retention was over, for want of room."),
    ("geminga_retention_gave_way_bytes_total", "counter", "bytes", "What they held."),
)  # fmt: skip
_OFFLOAD: Final = (
    ("geminga_offload_ledgers_total", "counter", "ledgers", "Moved to cheap storage."),
    ("geminga_offload_written_bytes_total", "counter", "bytes", "Written there."),
    ("geminga_offload_failures_total", "counter", "tries", "Tries that failed; they are repeated."),
    ("geminga_offload_read_bytes_total", "counter", "bytes", "Read from there, of entries."),
    ("geminga_offload_under_way", "gauge", "ledgers", "Being moved now."),
    ("geminga_offload_borrowed", "gauge", "0 or 1",
     "1: the place belongs to another store, of which this one is a copy; it only reads there."),
)  # fmt: skip
_PROCESS: Final = (
    ("process_start_time_seconds", "gauge", "seconds since 1970", "When the broker started."),
    ("process_cpu_seconds_total", "counter", "seconds", "CPU time of the process."),
    ("process_resident_memory_bytes", "gauge", "bytes", "Resident memory; on Linux."),
)


def _all() -> Mapping[str, Metric]:
    groups = (
        (MetricScope.TOPIC, _TOPIC), (MetricScope.SUBSCRIPTION, _SUBSCRIPTION), (MetricScope.BROKER, _BROKER), (MetricScope.STORE, _STORE),
        (MetricScope.OFFLOAD, _OFFLOAD), (MetricScope.PROCESS, _PROCESS),
    )  # fmt: skip
    found = [Metric(name, of, kind, unit, text) for of, group in groups for name, kind, unit, text in group]
    found += [
        Metric("pulsar_topics_count", MetricScope.NAMESPACE, "gauge", "topics", "Topics, in memory or not."),
        Metric("geminga_namespace_msg_backlog", MetricScope.NAMESPACE, "gauge", "entries",
               "Backlogs of all its topics, in memory or not, added up."),
        Metric("pulsar_version_info", MetricScope.PROCESS, "gauge", "1", "Always 1; the labels tell the version.",
               ("version", "implementation")),
        Metric("geminga_store_damaged_things", MetricScope.STORE, "gauge", "things",
               "What damage took and nobody has settled, by what was lost.", ("lost",)),
        Metric("geminga_callback_failures_total", MetricScope.BROKER, "counter", "failures",
               "Isolated failures inside the broker, by what failed; the log says more. Raise an alarm.",
               ("kind",)),
    ]  # fmt: skip
    return MappingProxyType({metric.name: metric for metric in found})


METRICS: Final = _all()
"""By name."""
