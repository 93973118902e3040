"""Observation of a live topic: rates from the broker's statistics, batches from stored entries.

The statistics are queried twice, some seconds apart. The newest entries of the busiest partitions are read by
a reader, which leaves no subscription behind. Their metadata show batch fill and compression; their messages,
unless encrypted, are the sample on which other settings are tried.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from geminga import Admin
from geminga.client.api.entry_reader import EntryReader
from geminga.client.cluster import Cluster
from geminga.config import check_seconds
from geminga.entries import parse_entry
from geminga.errors import CorruptPayload, InvalidConfiguration
from geminga.ids import MessageId, TopicName
from geminga.producer.settings import CompressionType
from geminga.tuning.measuring.broker_view import BrokerView, PublishedCounts
from geminga.tuning.sample import SAMPLE_MESSAGES_MAX, Sample
from geminga.tuning.traffic import TrafficProfile
from geminga.wire.batch import decode_batch
from geminga.wire.compression import decompress

PARTITIONS_SAMPLED_MAX = 8
ENTRIES_SAMPLED_MAX = 100
"""Entries read from each of these partitions."""
READ_SECONDS_MAX = 5.0
UNCOMPRESSED_BYTES_MAX = 64 << 20
KEYED_SHARE = 0.5
"""Share of messages with a key above which a topic counts as keyed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledEntry:
    """Facts of a stored entry, from its metadata."""

    uncompressed_bytes: int
    compressed_bytes: int
    compression: CompressionType


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicObservation:
    """Observation of a topic over some seconds."""

    topic: str
    service_url: str
    broker: str
    seconds: float
    profile: TrafficProfile
    entries_per_second: float
    entries_per_second_by_partition: dict[int, float]
    stored_bytes_per_second: float
    batch_fill: float
    compression: CompressionType
    """Codec of most sampled entries."""
    compression_ratio: float
    """Uncompressed batch bytes divided by stored bytes."""
    producers: int
    sample: Sample | None = field(repr=False)
    """Sample of messages; None if none could be read: the topic is empty, or all is encrypted."""
    notes: tuple[str, ...] = ()


def observe(
    service_url: str,
    admin_url: str | None,
    topic: str,
    *,
    seconds: float = 5.0,
    latency_budget_seconds: float = 0.05,
    cluster: Cluster | None = None,
) -> TopicObservation:
    """Observe a topic for some seconds and read a sample. ``cluster``: authentication and TLS.

    Raises `TopicNotFound`, the broker's error, and `InvalidConfiguration` for a topic without published
    messages.
    """
    check_seconds("seconds", seconds, 0.1, 600)
    name = TopicName.parse(topic).base
    view = BrokerView(service_url, admin_url, cluster=cluster)
    partitions = view.admin.topics.partitions(name)
    first, last, elapsed = _watched(view, name, partitions, seconds)
    messages, entries = last.messages - first.messages, last.entries - first.entries
    sampled, contents, keys = _sample(view, name, partitions, last)
    mean, variation = _message_sizes(contents, (last.bytes_in - first.bytes_in) / messages)
    profile = TrafficProfile(
        rate_messages_per_second=messages / elapsed,
        message_bytes=mean,
        message_bytes_variation=variation,
        partitions=max(1, partitions),
        producers=max(1, last.producers),
        subscriptions=last.subscriptions,
        keys=keys,
        latency_budget_seconds=latency_budget_seconds,
        name=str(name),
    )
    codec, ratio = _compression(sampled)
    return TopicObservation(
        topic=str(name),
        service_url=service_url,
        broker=view.title,
        seconds=elapsed,
        profile=profile,
        entries_per_second=entries / elapsed,
        entries_per_second_by_partition={
            number: (count - first.by_partition.get(number, (0, 0))[1]) / elapsed
            for number, (_, count) in sorted(last.by_partition.items())
        },
        stored_bytes_per_second=(last.bytes_in - first.bytes_in) / elapsed,
        batch_fill=messages / entries,
        compression=codec,
        compression_ratio=ratio,
        producers=last.producers,
        sample=Sample(contents, f"{len(contents)} messages of {name}") if contents else None,
        notes=_notes(sampled, contents),
    )


def _watched(
    view: BrokerView, name: TopicName, partitions: int, seconds: float
) -> tuple[PublishedCounts, PublishedCounts, float]:
    """Return the counts before and after ``seconds``, and the seconds that passed."""
    first, started = view.counts(name, partitions), time.monotonic()
    time.sleep(seconds)
    last, elapsed = view.counts(name, partitions), time.monotonic() - started
    if last.messages <= first.messages or last.entries <= first.entries:
        raise InvalidConfiguration(
            f"nothing was published to {name} within {elapsed:.1f} s: watch it for longer (--watch), or give "
            "the traffic in numbers"
        )
    return first, last, elapsed


def _message_sizes(contents: Sequence[bytes], bytes_each: float) -> tuple[float, float]:
    """Return mean and variation of the sampled sizes; without a sample, the mean of the stored bytes."""
    sizes = [len(content) for content in contents]
    mean = statistics.fmean(sizes) if sizes else max(1.0, bytes_each)
    variation = min(10.0, statistics.pstdev(sizes) / mean) if sizes and mean else 0.0
    return max(1.0, mean), variation


def _sample(
    view: BrokerView, name: TopicName, partitions: int, counts: PublishedCounts
) -> tuple[list[SampledEntry], list[bytes], int]:
    """Return entries, messages, and the number of distinct keys (0: most messages have no key)."""
    busiest = sorted(counts.by_partition, key=lambda number: -counts.by_partition[number][0])
    entries: list[SampledEntry] = []
    contents: list[bytes] = []
    keys: list[str] = []
    with view.cluster.client() as client:
        for number in busiest[:PARTITIONS_SAMPLED_MAX]:
            one = name.partition_name(number) if partitions else name
            start = _some_entries_back(view.admin, one)
            if start is None:
                continue
            with EntryReader.open(client, str(one), start) as reader:
                for raw in _newest(reader):
                    entry, messages, of_entry = _opened(bytes(raw))
                    entries.append(entry)
                    if len(contents) < SAMPLE_MESSAGES_MAX:
                        contents += messages
                        keys += of_entry
    keyed = bool(contents) and len(keys) >= KEYED_SHARE * len(contents)
    return entries, contents, len(set(keys)) if keyed else 0


def _some_entries_back(admin: Admin, topic: TopicName) -> MessageId | None:
    """Return a position some entries before the end; None for an empty topic."""
    ledger, _, entry = admin.topics.internal_stats(topic).last_confirmed_entry.partition(":")
    if not ledger.lstrip("-").isdigit() or int(ledger) < 0 or int(entry) < 0:
        return None
    return MessageId(-1, int(ledger), max(0, int(entry) - ENTRIES_SAMPLED_MAX + 1), -1)


def _newest(reader: EntryReader) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + READ_SECONDS_MAX
    while len(found) < ENTRIES_SAMPLED_MAX and reader.has_message_available():
        got = reader.read(ENTRIES_SAMPLED_MAX - len(found), max(0.0, deadline - time.monotonic()))
        if not got:
            break
        found += [row.entry for row in got]
    return found


def _opened(raw: bytes) -> tuple[SampledEntry, list[bytes], list[str]]:
    """Return an entry's facts, messages and keys; no messages and keys if they cannot be read."""
    entry = parse_entry(raw, verify=False)
    metadata = entry.metadata
    count = metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 1
    encrypted = bool(metadata.encryption_keys)
    contents: list[bytes] = []
    keys: list[str] = []
    uncompressed = metadata.uncompressed_size or len(entry.payload)
    if not encrypted and not metadata.HasField("chunk_id"):
        try:
            body = decompress(
                metadata.compression, entry.payload, metadata.uncompressed_size, limit=UNCOMPRESSED_BYTES_MAX
            )
            if metadata.HasField("num_messages_in_batch"):
                singles = decode_batch(body, count)
                contents = [single.payload for single in singles]
                keys = [single.partition_key for single in singles if single.partition_key is not None]
            else:
                contents = [body]
                keys = [metadata.partition_key] if metadata.HasField("partition_key") else []
        except CorruptPayload:
            contents, keys = [], []
    sampled = SampledEntry(
        uncompressed_bytes=uncompressed,
        compressed_bytes=len(entry.payload),
        compression=CompressionType(metadata.compression),
    )
    return sampled, contents, keys


def _compression(entries: Sequence[SampledEntry]) -> tuple[CompressionType, float]:
    if not entries:
        return CompressionType.NONE, 1.0
    codecs = [entry.compression for entry in entries]
    codec = max(set(codecs), key=codecs.count)
    before = sum(entry.uncompressed_bytes for entry in entries)
    return codec, before / max(1, sum(entry.compressed_bytes for entry in entries))


def _notes(entries: Sequence[SampledEntry], contents: Sequence[bytes]) -> tuple[str, ...]:
    found = []
    if not entries:
        found.append("no entry could be read: what messages look like is made up")
    elif not contents:
        found.append("the messages are encrypted: how they compress is made up")
    codecs = {entry.compression.name for entry in entries}
    if len(codecs) > 1:
        found.append(f"producers use several codecs: {', '.join(sorted(codecs))}")
    return tuple(found)
