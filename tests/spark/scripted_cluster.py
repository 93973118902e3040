"""A cluster made of lists, for the planner and the tasks: no broker, no time, no Spark."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from geminga.errors import ConnectError, Timeout, TopicNotFound
from geminga.ids import MessageId, TopicName
from geminga.spark.cluster.clients import matching_topics
from geminga.spark.cluster.entry_samples import EntryCost, EntrySample, MeasuredEntry
from geminga.spark.offsets import Offset, Partition, partition_topic
from geminga.spark.options import ConnectionOptions, ReadOptions
from geminga.wire.columnar import message_counts
from geminga.wire.columnar_encoding import encode_table
from geminga.wire.metadata import RawEntry, build_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

TOPIC = "persistent://public/default/t"
ONE = (TOPIC, -1)
Place = tuple[int, int]


def options(**given: Any) -> ReadOptions:
    """Return options of a query that reads `TOPIC`."""
    given = {"topics": (TOPIC,), "poll_timeout_ms": 20, **given}
    return ReadOptions(connection=ConnectionOptions(service_url="pulsar://h"), **given)


def entry_bytes(values: list[bytes], publish_time: int = 1_700_000_000_000) -> bytes:
    """An entry with a batch of ``values``."""
    import pyarrow as pa

    (batch,) = encode_table(pa.table({"value": pa.array(values, pa.binary())}), max_messages=1 << 20)
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=publish_time, num_messages_in_batch=len(values)
    )
    return build_entry(metadata.SerializeToString(), bytes(batch.body))


@dataclass
class ScriptedCluster:
    """Topics as maps from position to entry; ``opened`` and ``closed`` count readers.

    ``silent`` partitions have entries that do not come; ``down`` is called before each answer and raises
    `ConnectError` as long as the broker is down. ``bytes_read``: bytes received from the broker.
    """

    topics: dict[Partition, dict[Place, bytes]] = field(default_factory=dict)
    compacted: dict[Partition, tuple[set[Place], Place]] = field(default_factory=dict)
    """Entries left by compaction, and its horizon; each read of the compacted view looks here."""
    trimmed: dict[Partition, Place] = field(default_factory=dict)
    """The topic's own entries up to here are gone."""
    gives_all: bool = True
    """False: as Apache Pulsar's broker, which keeps to itself what is no message."""
    silent: set[Partition] = field(default_factory=set)
    down: Callable[[], None] = lambda: None
    opened: int = 0
    closed: int = 0
    questions: int = 0
    rounds: int = 0
    bytes_read: int = 0

    def publish(
        self,
        partition: Partition,
        ledger: int,
        batches: list[list[bytes]],
        publish_time: int = 1_700_000_000_000,
    ) -> None:
        entries = self.topics.setdefault(partition, {})
        first = sum(1 for place in entries if place[0] == ledger)
        for number, values in enumerate(batches, first):
            entries[ledger, number] = entry_bytes(values, publish_time + number)

    def partitions(self, topics: Sequence[str]) -> list[list[Partition] | TopicNotFound]:
        self.down()
        return [self._of_topic(TopicName.parse(topic)) for topic in topics]

    def _of_topic(self, name: TopicName) -> list[Partition] | TopicNotFound:
        found = sorted(p for p in self.topics if p[0] == str(name.base) and name.partition in (-1, p[1]))
        return found or TopicNotFound(f"no topic {name}")

    def reach(self, topic: str) -> None:
        """Return at once: `down` decides about the requests that follow."""

    def topics_matching(self, pattern: str) -> list[str]:
        return matching_topics(pattern, [partition_topic(partition) for partition in self.topics])

    def watch(self, *, name: str, from_first: bool = False, compacted: bool = False) -> ScriptedWatch:
        return ScriptedWatch(self, compacted)

    def open(
        self,
        partition: Partition,
        start: MessageId,
        stop: Offset,
        *,
        queue_size: int,
        name: str,
        compacted: bool = False,
    ) -> ScriptedSource:
        self.down()
        self.opened += 1
        return ScriptedSource(self, partition, (start.ledger_id, start.entry_id), compacted)

    def places_from(self, partition: Partition, start: Place, *, compacted: bool = False) -> list[Place]:
        places = sorted(self.topics.get(partition, {}))
        if compacted and partition in self.compacted:
            left, horizon = self.compacted[partition]
            places = [place for place in places if place > horizon or place in left]
        else:
            places = [place for place in places if place > self.trimmed.get(partition, (-1, -1))]
        return places[bisect.bisect_left(places, start) :]

    def newest(self, partition: Partition, *, compacted: bool = False) -> MessageId:
        places = self.places_from(partition, (-1, -1), compacted=compacted)
        return MessageId(partition[1], *places[-1]) if places else MessageId.earliest

    def raw_entry(self, partition: Partition, place: Place) -> RawEntry:
        entry = self.topics[partition][place]
        self.bytes_read += len(entry)
        return RawEntry(partition_topic(partition), partition[1], *place, entry)


@dataclass
class ScriptedWatch:
    cluster: ScriptedCluster
    compacted: bool = False

    def newest(self, partitions: Iterable[Partition]) -> dict[Partition, MessageId]:
        self.cluster.down()
        found = {}
        for partition in partitions:
            found[partition] = self.cluster.newest(partition)
            if self.compacted and found[partition].entry_id < 0:
                found[partition] = self.cluster.newest(partition, compacted=True)
        return found

    def first(self, places: Sequence[tuple[Partition, MessageId]]) -> list[RawEntry | None]:
        self.cluster.down()
        self.cluster.rounds += 1
        self.cluster.questions += len(places)
        return [self._first(partition, (place.ledger_id, place.entry_id)) for partition, place in places]

    def _first(self, partition: Partition, start: Place) -> RawEntry | None:
        found = self.cluster.places_from(partition, start)
        if not found:
            return None
        if partition in self.cluster.silent:
            raise Timeout(f"the first entry at {start} did not come")
        return self.cluster.raw_entry(partition, found[0])

    def sample(self, samples: Sequence[EntrySample]) -> list[tuple[list[MeasuredEntry], bool]]:
        self.cluster.down()
        return [self._sample(sample) for sample in samples]

    def _sample(self, sample: EntrySample) -> tuple[list[MeasuredEntry], bool]:
        seen: list[MeasuredEntry] = []
        cost = EntryCost()
        for place in self.cluster.places_from(sample.partition, sample.start[:2]):
            at = Offset.after_entry(*place)
            if at > sample.end:
                break
            if at <= sample.start:
                continue
            entry = self.cluster.raw_entry(sample.partition, place)
            (rows,) = message_counts([entry])
            one = EntryCost(1, rows, len(entry.entry))
            seen.append(MeasuredEntry(at, one))
            cost += one
            if at == sample.end or not sample.wants_more(cost):
                return seen, at == sample.end
        return seen, True

    def close(self) -> None:
        pass


class Outage:
    """A broker that is down for the first ``questions`` requests, with a clock that only waiting moves."""

    def __init__(self, questions: int) -> None:
        self.left = questions
        self.now = 0.0

    def __call__(self) -> None:
        if self.left:
            self.left -= 1
            raise ConnectError("connection refused")

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class ScriptedSource:
    def __init__(self, cluster: ScriptedCluster, partition: Partition, start: Place, compacted: bool) -> None:
        self.compacted = compacted
        self.cluster = cluster
        self.partition = partition
        self.next = start

    def read(self, max_entries: int, timeout: float) -> list[RawEntry]:
        self.cluster.down()
        if self.partition in self.cluster.silent:
            return []
        places = self.cluster.places_from(self.partition, self.next, compacted=self.compacted)
        found = places[: min(max_entries, 7)]
        if found:
            self.next = (found[-1][0], found[-1][1] + 1)
        return [self.cluster.raw_entry(self.partition, place) for place in found]

    @property
    def gives_all(self) -> bool:
        return self.cluster.gives_all

    def last_message_id(self) -> MessageId:
        self.cluster.down()
        return self.cluster.newest(self.partition, compacted=self.compacted)

    def close(self) -> None:
        self.cluster.closed += 1
