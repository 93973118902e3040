"""Every metric of ``/metrics``: its type, its labels, its unit and its meaning, in one table.

`metrics.py` takes types and ``# HELP`` lines from here, ``docs/reference/metrics.md`` is drawn from it, and
a test compares it with a scrape of a broker that has one of everything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from geminga.broker.topics.histograms import ACK_LATENCIES, LATENCIES, SIZES


class MetricScope(Enum):
    """Scope of a metric, and the labels of its samples besides ``cluster``."""

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
    """One metric. ``kind`` is ``gauge`` or ``counter``; ``labels`` are added to those of the scope ``of``.

    ``source`` names the field of the statistics that is its value, behind the name of the part (``disk.``)
    if it has one; empty if `metrics.py` computes the value.
    """

    name: str
    of: MetricScope
    kind: str
    unit: str
    text: str
    source: str = ""
    labels: tuple[str, ...] = ()


_TOPIC: Final = (
    ("pulsar_subscriptions_count", "gauge", "subscriptions", "Subscriptions of the topic."),
    ("pulsar_producers_count", "gauge", "producers", "Connected producers."),
    ("pulsar_consumers_count", "gauge", "consumers", "Connected consumers."),
    ("pulsar_msg_backlog", "gauge", "entries",
     "Sum of the backlogs of all its subscriptions; also for topics that are not in memory."),
    ("pulsar_rate_in", "gauge", "messages/s", "Rate of publishing.", "msgRateIn"),
    ("pulsar_rate_out", "gauge", "messages/s", "Rate of delivery, over all subscriptions.", "msgRateOut"),
    ("pulsar_throughput_in", "gauge", "bytes/s", "Rate of publishing in stored bytes.", "msgThroughputIn"),
    ("pulsar_throughput_out", "gauge", "bytes/s", "Rate of delivery in stored bytes.", "msgThroughputOut"),
    ("pulsar_in_messages_total", "counter", "messages",
     "Messages published since the topic was loaded.", "msgInCounter"),
    ("pulsar_in_bytes_total", "counter", "bytes",
     "Stored bytes published since the topic was loaded.", "bytesInCounter"),
    ("pulsar_average_msg_size", "gauge", "bytes",
     "Average size of messages since loading.", "averageMsgSize"),
    ("pulsar_storage_size", "gauge", "bytes", "Size of the topic's ledgers.", "storageSize"),
    ("pulsar_storage_logical_size", "gauge", "bytes", "The same: this broker keeps one copy.", "storageSize"),
    ("pulsar_storage_backlog_size", "gauge", "bytes",
     "Size of the entries that the longest backlog retains.", "backlogSize"),
    ("pulsar_storage_backlog_quota_limit", "gauge", "bytes",
     "Backlog quota by size; -1: not set.", "backlogQuotaLimitSize"),
    ("pulsar_storage_backlog_quota_limit_time", "gauge", "seconds",
     "Backlog quota by age; -1: not set.", "backlogQuotaLimitTime"),
    ("pulsar_storage_backlog_age_seconds", "gauge", "seconds",
     "Age of the topic's oldest unacknowledged message; -1: no backlog.", "oldestBacklogMessageAgeSeconds"),
    ("pulsar_storage_offloaded_size", "gauge", "bytes",
     "Size of the topic's offloaded ledgers.", "offloadedStorageSize"),
    ("pulsar_compaction_removed_event_count", "counter", "messages",
     "Messages removed by compaction: a newer one has the key.", "compaction.removed"),
    ("pulsar_compaction_succeed_count", "counter", "compactions",
     "Compactions that succeeded.", "compaction.succeeded"),
    ("pulsar_compaction_failed_count", "counter", "compactions",
     "Compactions that failed.", "compaction.failed"),
    ("pulsar_compaction_duration_time_in_mills", "gauge", "ms",
     "Duration of the last compaction.", "compaction.lastCompactionDurationTimeInMills"),
    ("pulsar_compaction_compacted_entries_count", "gauge", "entries",
     "Entries of the compacted ledger.", "compaction.entries"),
    ("pulsar_compaction_compacted_entries_size", "gauge", "bytes",
     "Size of the compacted ledger.", "compaction.size"),
    ("geminga_compaction_read_bytes_total", "counter", "bytes",
     "Bytes read by compaction.", "compaction.bytesRead"),
    ("geminga_compaction_written_bytes_total", "counter", "bytes",
     "Bytes written by compaction.", "compaction.bytesWritten"),
)  # fmt: skip
_WRITES: Final = (
    *((f"pulsar_storage_write_latency_le_{name}", "gauge", "entries",
       f"New entries of the last whole minute that were durable within {seconds * 1000:g} ms, without those "
       "of the bucket below; none for a topic without new entries.") for name, seconds in LATENCIES.items()),
    ("pulsar_storage_write_latency_overflow", "gauge", "entries",
     "New entries of the last whole minute that were durable after more than 1 s."),
    ("pulsar_storage_write_latency_count", "gauge", "entries",
     "New entries of the last whole minute that became durable."),
    ("pulsar_storage_write_latency_sum", "gauge", "µs",
     "Sum of the times until new entries of the last whole minute were durable."),
    *((f"pulsar_entry_size_le_{name}", "gauge", "entries",
       f"New entries of the last whole minute of at most {size:,} bytes, without those of the bucket below.")
      for name, size in SIZES.items()),
    ("pulsar_entry_size_le_overflow", "gauge", "entries",
     "New entries of the last whole minute of more than 1 MiB."),
    ("pulsar_entry_size_count", "gauge", "entries", "New entries of the last whole minute."),
    ("pulsar_entry_size_sum", "gauge", "bytes", "Sum of the sizes of new entries of the last whole minute."),
    ("pulsar_storage_write_rate", "gauge", "entries/s", "Rate of new entries in the last whole minute."),
)  # fmt: skip
WRITES: Final = frozenset(name for name, *_ in _WRITES)
"""Metrics of topics that `geminga.broker.topics.histograms` computes from new entries."""
_ACKS: Final = (
    *((f"geminga_ack_latency_le_{name}", "gauge", "messages",
       f"Sampled messages of the last whole minute that were acknowledged within {name.replace('_', ' ')} "
       "of publishing, without those of the bucket below. One message of a subscription is sampled each "
       "second; none for a topic without acknowledgements.") for name in ACK_LATENCIES),
    ("geminga_ack_latency_overflow", "gauge", "messages",
     "Sampled messages of the last whole minute that were acknowledged after more than 1 h."),
    ("geminga_ack_latency_count", "gauge", "messages",
     "Acknowledgements sampled in the last whole minute: a subscription's oldest message, once a second."),
    ("geminga_ack_latency_sum", "gauge", "seconds",
     "Sum of the times of the sampled messages of the last whole minute, from publishing (by the producer's "
     "clock) to acknowledgement."),
)  # fmt: skip
ACKS: Final = frozenset(name for name, *_ in _ACKS)
"""Metrics of topics that `geminga.broker.topics.histograms` computes from acknowledgements."""
_SUBSCRIPTION: Final = (
    ("pulsar_subscription_consumers_count", "gauge", "consumers",
     "Connected consumers; 0 if the topic is not in memory and the subscription has a backlog."),
    ("pulsar_subscription_back_log", "gauge", "entries",
     "Unacknowledged entries (messages or whole batches); also for topics that are not in "
     "memory.", "msgBacklog"),
    ("pulsar_subscription_back_log_no_delayed", "gauge", "entries",
     "Unacknowledged entries without delayed ones.", "msgBacklogNoDelayed"),
    ("geminga_subscription_messages_in_backlog", "gauge", "messages",
     "Unacknowledged messages, those of a batch counted individually.", "messagesInBacklog"),
    ("geminga_subscription_bytes_in_backlog", "gauge", "bytes",
     "Size of the entries in the backlog.", "bytesInBacklog"),
    ("geminga_subscription_oldest_backlog_message_age_seconds", "gauge", "seconds",
     "Age of the oldest message in the backlog; -1: the backlog is empty.", "oldestBacklogMessageAgeSeconds"),
    ("geminga_subscription_ack_holes", "gauge", "holes",
     "Runs of unacknowledged messages that are followed by acknowledged ones.", "ackHoles"),
    ("geminga_subscription_trouble", "gauge", "0 to 6",
     "0: all is acknowledged; 1: idle; 2: moving; 3: check it; 4: stopped; 5: stopped, and the backlog "
     "grows; 6: producers are stopped because of it. As in the console and `geminga explain`.", "trouble"),
    ("geminga_subscription_redeliver_unacked_after_seconds", "gauge", "seconds",
     "Time after which unacknowledged messages are redelivered; 0: never.", "redeliverUnackedAfterSeconds"),
    ("geminga_subscription_messages_pushed_again_total", "counter", "messages",
     "Messages redelivered because no consumer acknowledged them in time.", "messagesPushedAgain"),
    ("geminga_subscription_entries_too_old_to_push_again_total", "counter", "entries",
     "Entries not redelivered because they are older than the policy allows.", "entriesTooOldToPushAgain"),
    ("pulsar_subscription_delayed", "gauge", "entries",
     "Delayed entries that are not due yet.", "msgDelayed"),
    ("pulsar_subscription_in_replay", "gauge", "entries", "Entries waiting for redelivery.", "msgInReplay"),
    ("pulsar_subscription_unacked_messages", "gauge", "messages",
     "Messages delivered and not acknowledged; Shared and Key_Shared only.", "unackedMessages"),
    ("pulsar_subscription_blocked_on_unacked_messages", "gauge", "0 or 1",
     "1: delivery is blocked because too many messages are "
     "unacknowledged.", "blockedSubscriptionOnUnackedMsgs"),
    ("pulsar_subscription_msg_rate_out", "gauge", "messages/s", "Rate of delivery.", "msgRateOut"),
    ("pulsar_subscription_msg_throughput_out", "gauge", "bytes/s",
     "Rate of delivery in stored bytes.", "msgThroughputOut"),
    ("pulsar_subscription_msg_rate_redeliver", "gauge", "messages/s",
     "Rate of redelivery.", "msgRateRedeliver"),
    ("pulsar_subscription_msg_ack_rate", "gauge", "messages/s",
     "Rate of acknowledgement; messages of a batch count individually.", "messageAckRate"),
    ("pulsar_subscription_msg_rate_expired", "gauge", "messages/s",
     "Always 0; use the total instead.", "msgRateExpired"),
    ("pulsar_subscription_total_msg_expired", "counter", "messages",
     "Messages expired by TTL or by command.", "totalMsgExpired"),
    ("pulsar_subscription_last_expire_timestamp", "gauge", "ms since 1970",
     "Last expiry; 0: never.", "lastExpireTimestamp"),
    ("pulsar_subscription_last_acked_timestamp", "gauge", "ms since 1970",
     "Last acknowledgement; 0: never.", "lastAckedTimestamp"),
    ("pulsar_subscription_last_consumed_timestamp", "gauge", "ms since 1970",
     "Last delivery; 0: never.", "lastConsumedTimestamp"),
    ("pulsar_subscription_last_consumed_flow_timestamp", "gauge", "ms since 1970",
     "When a consumer last sent permits (FLOW); 0: never.", "lastConsumedFlowTimestamp"),
    ("pulsar_subscription_last_mark_delete_advanced_timestamp", "gauge", "ms since 1970",
     "When the mark-delete position last advanced; 0: never.", "lastMarkDeleteAdvancedTimestamp"),
    ("pulsar_out_messages_total", "counter", "messages",
     "Messages delivered since the topic was loaded.", "msgOutCounter"),
    ("pulsar_out_bytes_total", "counter", "bytes",
     "Stored bytes delivered since the topic was loaded.", "bytesOutCounter"),
)  # fmt: skip
_BROKER: Final = (
    ("pulsar_broker_topics_count", "gauge", "topics", "All topics, in memory or not; each partition counts."),
    ("geminga_topics_loaded", "gauge", "topics", "Topics in memory."),
    ("pulsar_broker_subscriptions_count", "gauge", "subscriptions",
     "Subscriptions of all topics, in memory or not."),
    ("pulsar_broker_producers_count", "gauge", "producers", "Connected producers."),
    ("pulsar_broker_consumers_count", "gauge", "consumers", "Connected consumers."),
    ("pulsar_broker_msg_backlog", "gauge", "entries", "Sum of the backlogs of all topics, in memory or not."),
    ("pulsar_broker_rate_in", "gauge", "messages/s", "Rate of publishing.", "msgRateIn"),
    ("pulsar_broker_rate_out", "gauge", "messages/s", "Rate of delivery.", "msgRateOut"),
    ("pulsar_broker_throughput_in", "gauge", "bytes/s",
     "Rate of publishing in stored bytes.", "msgThroughputIn"),
    ("pulsar_broker_throughput_out", "gauge", "bytes/s",
     "Rate of delivery in stored bytes.", "msgThroughputOut"),
    ("pulsar_broker_storage_size", "gauge", "bytes", "Size of the ledgers of all topics, in memory or not."),
    ("pulsar_broker_storage_logical_size", "gauge", "bytes", "The same: this broker keeps one copy."),
    ("geminga_backlogs_complete", "gauge", "0 or 1",
     "0: after a start, topics not in memory are still being read; sums cover those read so far."),
    ("geminga_subscriptions_not_listed", "gauge", "subscriptions",
     "Subscriptions counted only in the sums: of topics not in memory, the 10,000 largest are listed."),
    ("pulsar_active_connections", "gauge", "connections", "Connections of the binary protocol."),
    ("pulsar_connection_created_total_count", "counter", "connections",
     "Connections of the binary protocol since the start."),
    ("pulsar_connection_closed_total_count", "counter", "connections", "Those of them that have ended."),
    ("geminga_connections_refused_total", "counter", "connections",
     "Connections refused because of the connection limit."),
    ("geminga_tls_handshakes_failed_total", "counter", "handshakes", "TLS handshakes that failed."),
    ("geminga_tls_certificate_expiry_timestamp_seconds", "gauge", "seconds since 1970",
     "When the TLS certificate in use expires; absent without TLS."),
)  # fmt: skip
_STORE: Final = (
    ("geminga_store_healthy", "gauge", "0 or 1",
     "0: a write or sync failed, and nothing more is persisted until a restart. Raise an alarm."),
    ("pulsar_health", "gauge", "0 or 1", "The same, under Apache Pulsar's name."),
    ("geminga_store_appended_entries_total", "counter", "entries",
     "Entries written since the store was opened.", "store.appended_entries"),
    ("geminga_store_appended_bytes_total", "counter", "bytes",
     "Bytes written since the store was opened.", "store.appended_bytes"),
    ("geminga_store_syncs_total", "counter", "syncs",
     "Calls of fdatasync since the store was opened.", "store.syncs"),
    ("geminga_store_sync_seconds_total", "counter", "seconds",
     "Total duration of syncs; divided by geminga_store_syncs_total: the disk's mean "
     "latency.", "store.sync_seconds_total"),
    ("geminga_store_disk_bytes", "gauge", "bytes", "Size of the store's files.", "store.disk_bytes"),
    ("geminga_store_pending_writes", "gauge", "writes",
     "Writes that are not yet on disk.", "store.pending_writes"),
    ("geminga_disk_total_bytes", "gauge", "bytes",
     "Size of the disk, or ``--disk-limit``.", "disk.totalBytes"),
    ("geminga_disk_free_bytes", "gauge", "bytes",
     "Free space on the disk, or below ``--disk-limit``.", "disk.freeBytes"),
    ("geminga_disk_used_bytes", "gauge", "bytes",
     "Size of the data folder, preallocated space included.", "disk.usedBytes"),
    ("geminga_disk_low_water_bytes", "gauge", "bytes",
     "Publishing is refused while less than this is free.", "disk.lowWaterBytes"),
    ("geminga_disk_written_bytes_per_second", "gauge", "bytes/s",
     "Growth of the log.", "disk.writtenBytesPerSecond"),
    ("geminga_disk_seconds_to_low_water", "gauge", "seconds",
     "Time until the low-water mark is reached at the present growth; +Inf: never."),
    ("geminga_publishing_refused", "gauge", "0 or 1", "1: publishing is refused because the disk is full."),
    ("geminga_retention_overflows", "gauge", "0 or 1",
     "1: at the present write rate, the data that retention keeps does not fit on the "
     "disk.", "disk.retentionOverflows"),
    ("geminga_retention_gave_way_ledgers_total", "counter", "ledgers",
     "Acknowledged ledgers deleted before the end of their retention to free disk space.",
     "disk.gaveWayLedgers"),
    ("geminga_retention_gave_way_bytes_total", "counter", "bytes",
     "Bytes of the acknowledged ledgers deleted to free disk space.", "disk.gaveWayBytes"),
)  # fmt: skip
_OFFLOAD: Final = (
    ("geminga_offload_ledgers_total", "counter", "ledgers", "Ledgers moved to offload storage.", "ledgers"),
    ("geminga_offload_written_bytes_total", "counter", "bytes", "Bytes written to offload storage.", "bytes"),
    ("geminga_offload_failures_total", "counter", "tries",
     "Failed attempts to offload a ledger; they are retried.", "failures"),
    ("geminga_offload_read_bytes_total", "counter", "bytes",
     "Entry bytes read from offload storage.", "read_bytes"),
    ("geminga_offload_under_way", "gauge", "ledgers", "Ledgers being offloaded now.", "under_way"),
    ("geminga_offload_borrowed", "gauge", "0 or 1",
     "1: the offload storage belongs to another store, and this store, a copy of it, only reads "
     "there.", "is_borrowed"),
)  # fmt: skip
_TRANSACTIONS: Final = (
    ("active_count", "gauge", "Open transactions."),
    ("created_total", "counter", "Transactions begun since the start."),
    ("committed_total", "counter", "Transactions committed since the start."),
    ("aborted_total", "counter", "Transactions aborted since the start, also at their time limit."),
    ("timeout_total", "counter", "Transactions aborted since the start at their time limit."),
)
_PROCESS: Final = (
    ("process_start_time_seconds", "gauge", "seconds since 1970", "When the broker started."),
    ("process_cpu_seconds_total", "counter", "seconds", "CPU time of the process."),
    ("process_resident_memory_bytes", "gauge", "bytes", "Resident memory; Linux only."),
    ("process_virtual_memory_bytes", "gauge", "bytes", "Virtual memory; Linux only."),
    ("process_open_fds", "gauge", "descriptors", "Open file descriptors; Linux only."),
    ("process_max_fds", "gauge", "descriptors", "Limit of file descriptors; Linux only."),
)


def _all() -> Mapping[str, Metric]:
    groups = (
        (MetricScope.TOPIC, _TOPIC), (MetricScope.TOPIC, _WRITES), (MetricScope.TOPIC, _ACKS),
        (MetricScope.SUBSCRIPTION, _SUBSCRIPTION),
        (MetricScope.BROKER, _BROKER), (MetricScope.STORE, _STORE), (MetricScope.OFFLOAD, _OFFLOAD),
        (MetricScope.PROCESS, _PROCESS),
    )  # fmt: skip
    found = [
        Metric(name, of, kind, unit, text, "".join(source))
        for of, group in groups
        for name, kind, unit, text, *source in group
    ]
    found += [
        Metric("pulsar_topics_count", MetricScope.NAMESPACE, "gauge", "topics", "Topics, in memory or not."),
        Metric("geminga_namespace_msg_backlog", MetricScope.NAMESPACE, "gauge", "entries",
               "Sum of the backlogs of all its topics, in memory or not."),
        Metric("pulsar_version_info", MetricScope.PROCESS, "gauge", "1", "Always 1; see the labels.",
               labels=("version", "implementation")),
        Metric("geminga_store_damaged_things", MetricScope.STORE, "gauge", "resources",
               "Damaged resources not settled yet, by kind of loss.", labels=("lost",)),
        Metric("geminga_callback_failures_total", MetricScope.BROKER, "counter", "failures",
               "Isolated exceptions in the broker, by what failed; details are in the log. Raise an alarm.",
               labels=("kind",)),
        Metric("geminga_logins_failed_total", MetricScope.BROKER, "counter", "logins",
               "Credentials that were refused, by port: binary or web.", labels=("port",)),
    ]  # fmt: skip
    found += [
        Metric(
            f"pulsar_txn_{name}", MetricScope.BROKER, kind, "transactions", text, labels=("coordinator_id",)
        )
        for name, kind, text in _TRANSACTIONS
    ]
    return MappingProxyType({metric.name: metric for metric in found})


METRICS: Final = _all()
"""All metrics by name."""


def sources(of: MetricScope, prefix: str = "") -> tuple[tuple[str, str], ...]:
    """Return the metrics of a scope whose ``source`` is ``prefix`` and a field, with this field."""
    found = ((each.name, each.source) for each in METRICS.values() if each.of is of and each.source)
    return tuple(
        (name, source.removeprefix(prefix)) for name, source in found
        if source.startswith(prefix) and "." not in source.removeprefix(prefix)
    )  # fmt: skip
