"""A cluster made of lists, for the planner and the tasks: no broker, no time, no Spark."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from geminga.errors import TopicNotFound
from geminga.ids import MessageId, TopicName
from geminga.spark.cluster import matching_topics
from geminga.spark.offsets import Partition, partition_topic
from geminga.wire.columnar import encode_table
from geminga.wire.metadata import RawEntry, build_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

TOPIC = "persistent://public/default/t"
Place = tuple[int, int]


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
    """Topics as maps from place to entry; ``opened`` and ``closed`` count readers."""

    topics: dict[Partition, dict[Place, bytes]] = field(default_factory=dict)
    opened: int = 0
    closed: int = 0
    queue_sizes: list[int] = field(default_factory=list)

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

    def partitions(self, topic: str) -> list[Partition]:
        name = TopicName.parse(topic)
        found = sorted(p for p in self.topics if p[0] == str(name.base) and name.partition in (-1, p[1]))
        if not found:
            raise TopicNotFound(f"no topic {topic}")
        return found

    def topics_matching(self, pattern: str) -> list[str]:
        return matching_topics(pattern, [partition_topic(partition) for partition in self.topics])

    def open(self, partition: Partition, start: MessageId, *, queue_size: int, name: str) -> ScriptedSource:
        self.opened += 1
        self.queue_sizes.append(queue_size)
        return ScriptedSource(self, partition, (start.ledger_id, start.entry_id))


class ScriptedSource:
    def __init__(self, cluster: ScriptedCluster, partition: Partition, start: Place) -> None:
        self.cluster = cluster
        self.partition = partition
        self.next = start

    def read(self, max_entries: int, timeout: float) -> list[RawEntry]:
        entries = self.cluster.topics.get(self.partition, {})
        places = sorted(entries)
        first = bisect.bisect_left(places, self.next)
        found = places[first : first + min(max_entries, 7)]
        if found:
            self.next = (found[-1][0], found[-1][1] + 1)
        topic = partition_topic(self.partition)
        return [RawEntry(topic, self.partition[1], *place, entries[place]) for place in found]

    def last_message_id(self) -> MessageId:
        entries = self.cluster.topics.get(self.partition, {})
        return MessageId(self.partition[1], *max(entries)) if entries else MessageId.earliest

    def close(self) -> None:
        self.cluster.closed += 1
