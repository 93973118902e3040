"""Shared parts of the mirror tests: clusters, stored entries, and their comparison."""

from typing import Any

import geminga
from geminga.client.api.entry_reader import EntryReader
from geminga.mirror import Cluster, Mirror, MirrorSettings
from geminga.wire.metadata import parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb


def cluster(broker: Any) -> Cluster:
    return Cluster(service_url=broker.service_url, admin_url=broker.admin_url)


def mirror(source: Any, target: Any, *topics: str, **settings: Any) -> Mirror:
    given = {"discovery_seconds": 0.3, "subscription_seconds": 0.3, **settings}
    ends = [one if isinstance(one, Cluster) else cluster(one) for one in (source, target)]
    return Mirror(MirrorSettings(source=ends[0], target=ends[1], topics=topics or (".*",), **given))


def mirrored(source: Any, target: Any, *topics: str, **settings: Any) -> geminga.mirror.MirrorStatus:
    """Mirror what there is, and end."""
    status = mirror(source, target, *topics, once=True, **settings).run(signals=False)
    assert status.caught_up, status
    return status


def failure(source: Any, target: Any, **settings: Any) -> str:
    """Return why the first of the topics is not mirrored."""
    status = mirror(source, target, once=True, **settings).run(signals=False)
    assert not status.caught_up
    return status.failed[0]


def stored(client: geminga.Client, topic: str) -> list[tuple[pb.MessageMetadata, bytes]]:
    """The entries of a topic without partitions: metadata without what a mirror adds, and payload."""
    with EntryReader.open(client, topic, geminga.MessageId.earliest) as reader:
        newest = reader.last_message_id()
        found = []
        while newest.entry_id >= 0:
            raws = reader.read(1000, 60)
            assert raws, "no entry came"
            for raw in raws:
                parsed = parse_entry(raw.entry)
                metadata = parsed.metadata
                metadata.ClearField("replicated_from")
                metadata.DiscardUnknownFields()
                found.append((metadata, bytes(parsed.payload)))
            if (raws[-1].ledger_id, raws[-1].entry_id) >= (newest.ledger_id, newest.entry_id):
                break
        return found


def left(broker: Any, topic: str, subscription: str, **options: Any) -> list[bytes]:
    """Return the messages that a subscription of a Geminga broker still delivers: its whole backlog."""
    client = broker.client()
    consumer = client.subscribe(topic, subscription, **options)
    with geminga.Admin(broker.admin_url) as admin:
        count = admin.topics.stats(topic).subscriptions[subscription].messages_in_backlog
    assert count >= 0
    found = [consumer.receive(60_000).data() for _ in range(count)]
    client.close()
    return found
