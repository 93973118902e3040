"""Stats have the shape that Pulsar's tools read."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from geminga.broker.admin import http, metrics
from geminga.broker.admin.hole_map import hole_map
from geminga.broker.admin.http import json_pieces
from geminga.broker.admin.partitioned import MergedStats
from geminga.broker.runtime.cooperative import at_once
from geminga.diagnosis.commands import iso_time
from geminga.ids import TopicName
from tests.broker.conftest import NAME, TOPIC, entry_bytes


def words(text: str) -> set[str]:
    return set(text.split())


# The fields of Apache Pulsar 4.0.4's answers.
TOPIC_FIELDS = words("""
msgRateIn msgThroughputIn msgRateOut msgThroughputOut bytesInCounter msgInCounter
systemTopicBytesInCounter bytesOutCounter msgOutCounter bytesOutInternalCounter averageMsgSize
msgChunkPublished storageSize backlogSize backlogQuotaLimitSize backlogQuotaLimitTime
oldestBacklogMessageAgeSeconds publishRateLimitedTimes earliestMsgPublishTimeInBacklogs
offloadedStorageSize lastOffloadLedgerId lastOffloadSuccessTimeStamp lastOffloadFailureTimeStamp
ongoingTxnCount abortedTxnCount committedTxnCount publishers waitingPublishers subscriptions
replication deduplicationStatus nonContiguousDeletedMessagesRanges
nonContiguousDeletedMessagesRangesSerializedSize delayedMessageIndexSizeInBytes compaction
ownerBroker
""")
PUBLISHER_FIELDS = words("""
accessMode msgRateIn msgThroughputIn averageMsgSize chunkedMessageRate producerId
supportsPartialProducer producerName address connectedSince clientVersion metadata
""")
SUBSCRIPTION_FIELDS = words("""
msgRateOut msgThroughputOut bytesOutCounter msgOutCounter msgRateRedeliver messageAckRate
chunkedMessageRate msgBacklog backlogSize earliestMsgPublishTimeInBacklog msgBacklogNoDelayed
blockedSubscriptionOnUnackedMsgs msgDelayed msgInReplay unackedMessages type msgRateExpired
totalMsgExpired lastExpireTimestamp lastConsumedFlowTimestamp lastConsumedTimestamp
lastAckedTimestamp lastMarkDeleteAdvancedTimestamp consumers isDurable isReplicated
allowOutOfOrderDelivery consumersAfterMarkDeletePosition drainingHashesCount
drainingHashesClearedTotal drainingHashesUnackedMessages nonContiguousDeletedMessagesRanges
nonContiguousDeletedMessagesRangesSerializedSize delayedMessageIndexSizeInBytes
subscriptionProperties filterProcessedMsgCount filterAcceptedMsgCount filterRejectedMsgCount
filterRescheduledMsgCount durable replicated
""")
CONSUMER_FIELDS = words("""
msgRateOut msgThroughputOut bytesOutCounter msgOutCounter msgRateRedeliver messageAckRate
chunkedMessageRate consumerName availablePermits unackedMessages avgMessagesPerEntry
blockedConsumerOnUnackedMsgs drainingHashesCount address connectedSince clientVersion
lastAckedTimestamp lastConsumedTimestamp lastConsumedFlowTimestamp metadata lastAckedTime
lastConsumedTime
""")
CURSOR_FIELDS = words("""
markDeletePosition readPosition waitingReadOp pendingReadOps messagesConsumedCounter cursorLedger
cursorLedgerLastEntry individuallyDeletedMessages lastLedgerSwitchTimestamp state active
numberOfEntriesSinceFirstNotAckedMessage totalNonContiguousDeletedMessagesRange
subscriptionHavePendingRead subscriptionHavePendingReplayRead properties
""")


def prepared(harness: Any) -> Any:
    """The situation of the recorded answer: five messages, three subscriptions, two acknowledged."""
    producer = harness.peer(client="Pulsar-CPP-v4.2.0")
    producer.producer(TOPIC, producer_name="prod")
    for subscription, kind, name in (
        ("shared", "Shared", "cA"), ("ks", "Key_Shared", "cB"), ("fo", "Failover", "cC"),
    ):  # fmt: skip
        peer = harness.consumer(TOPIC, subscription, kind=kind, consumer_name=name)
        if subscription == "shared":
            shared = peer
    for sequence_id in range(5):
        producer.send(sequence_id)
    shared.ack((0, 0), (0, 1))
    return harness.actions


def test_topic_stats_have_the_fields_of_pulsar(harness):
    stats = prepared(harness).stats(NAME)
    assert set(stats) >= TOPIC_FIELDS
    [publisher] = stats["publishers"]
    assert set(publisher) >= PUBLISHER_FIELDS
    assert (publisher["producerName"], publisher["accessMode"]) == ("prod", "Shared")
    assert publisher["clientVersion"] == "Pulsar-CPP-v4.2.0"
    for subscription in stats["subscriptions"].values():
        assert set(subscription) >= SUBSCRIPTION_FIELDS
        [consumer] = subscription["consumers"]
        assert set(consumer) >= CONSUMER_FIELDS
    assert (stats["msgInCounter"], stats["msgOutCounter"]) == (5, 15)
    assert stats["deduplicationStatus"] == "Disabled"
    found = stats["subscriptions"]
    assert [found[each]["msgBacklog"] for each in ("shared", "ks", "fo")] == [3, 5, 5]
    assert [found[each]["unackedMessages"] for each in ("shared", "ks", "fo")] == [3, 5, 0]
    assert found["shared"]["backlogSize"] * 5 == stats["storageSize"] * 3
    assert found["shared"]["consumers"][0]["availablePermits"] == 995
    assert found["ks"]["keySharedMode"] == "AUTO_SPLIT"
    assert found["ks"]["consumers"][0]["keyHashRangeArrays"] == [[1, 65535]]
    assert found["fo"]["activeConsumerName"] == "cC"


def test_stats_of_key_shared_consumers_are_made_in_one_pass(harness, lines_run):
    lines = []
    for topic, count in (("few", 10), ("many", 100)):
        for number in range(count):
            harness.peer().subscribe(topic, kind="Key_Shared", consumer_name=f"c{number}")
        name = TopicName.parse(topic)
        lines.append(lines_run(lambda name=name: harness.actions.stats(name)))
        [subscription] = harness.actions.stats(name)["subscriptions"].values()
        ranges = [each for consumer in subscription["consumers"] for each in consumer["keyHashRangeArrays"]]
        assert sum(end - start + 1 for start, end in ranges) == (1 << 16) - 1
    assert lines[1] < 12 * lines[0]


def longest_step(steps: Any, lines_run: Callable[..., int]) -> int:
    """The most lines of Python that one of the steps runs."""
    lines, ended = list[int](), list[bool]()
    while not any(ended):
        lines.append(lines_run(lambda: ended.append(next(steps, steps) is steps)))
    return max(lines)


def test_stats_of_many_subscriptions_and_consumers_are_made_in_short_steps(harness, lines_run):
    found: dict[str, list[int]] = {}
    for topic, count in (("few", 10), ("many", 300)):
        name = TopicName.parse(topic)
        for number in range(count):
            harness.peer().subscribe(topic, "shared", kind="Shared", consumer_name=f"c{number}")
            harness.peer().subscribe(topic, f"s{number}")
        actions = harness.actions
        found[topic] = [
            longest_step(steps, lines_run)
            for steps in (
                actions.stats_steps(name),
                actions.stats_among_all(name),
                actions.internal_stats(name),
                metrics.TopicMetrics(metrics.Exposition()).add(name, actions.stats(name)),
                json_pieces(actions.stats(name)),
            )
        ]
    sums = 12 * 300  # added up in one step, a dozen lines for each member; its statistics take 100 and more
    assert all(many < 3 * few + sums for few, many in zip(*found.values(), strict=True)), found


def test_stats_leave_out_consumers_that_leave_meanwhile(harness):
    peers = [harness.peer() for _ in range(3)]
    for number, peer in enumerate(peers):
        peer.subscribe(TOPIC, "shared", kind="Shared", consumer_name=f"c{number}")
        peer.subscribe(TOPIC, f"reader{number}", consumer_id=2, durable=False)
    steps = harness.actions.stats_steps(NAME)
    for _ in range(3):
        next(steps)
    peers[0].disconnect()
    stats = at_once(steps)
    assert set(stats["subscriptions"]) == {"shared", "reader1", "reader2"}
    assert [each["consumerName"] for each in stats["subscriptions"]["shared"]["consumers"]] == ["c1", "c2"]


def test_messages_of_a_subscription_that_is_deleted_meanwhile_count_once(harness):
    """A counter that fell by the next scrape would look like a restart to Prometheus, a peak of the rate."""
    peers = [harness.peer() for _ in "ab"]
    for name, peer in zip("ab", peers, strict=True):
        peer.subscribe(TOPIC, name, durable=False)
    peers[0].producer(TOPIC)
    peers[0].publish(3)
    steps = harness.actions.stats_steps(NAME)
    for _ in range(3):
        next(steps)
    peers[0].disconnect()
    stats = at_once(steps)
    assert set(stats["subscriptions"]) == {"b"}
    assert stats["msgOutCounter"] == 6


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"a": [1, {"b": ["\u00e9", None]}]},
        [[]] * 200,
        {"a": {f"{n}": [n] * 2 * n for n in range(101)}, "c": 1.5},
    ],
)
def test_pieces_of_json_make_the_document(document):
    assert "".join(json_pieces(document)) == json.dumps(document, separators=(",", ":"))


def test_internal_stats_have_the_fields_of_pulsar(harness):
    topics = prepared(harness)
    stats = at_once(topics.internal_stats(NAME))
    assert (stats["numberOfEntries"], stats["lastConfirmedEntry"]) == (5, "0:4")
    assert stats["state"] == "LedgerOpened"
    assert [ledger["entries"] for ledger in stats["ledgers"]] == [5]
    for cursor in stats["cursors"].values():
        assert set(cursor) >= CURSOR_FIELDS
    shared, key_shared = stats["cursors"]["shared"], stats["cursors"]["ks"]
    assert (shared["markDeletePosition"], shared["readPosition"]) == ("0:1", "0:5")
    assert key_shared["markDeletePosition"] == "0:-1"
    assert shared["numberOfEntriesSinceFirstNotAckedMessage"] == 4
    topics.topics.find(NAME).subscriptions["shared"].cursor.acknowledge(3)
    shown = at_once(topics.internal_stats(NAME))["cursors"]["shared"]["individuallyDeletedMessages"]
    assert shown == "[(0:2..0:3]]"


def test_rates_are_per_second(harness):
    topics = prepared(harness)
    harness.advance(2)
    stats = topics.stats(NAME)
    assert (stats["msgRateIn"], stats["msgRateOut"]) == (2.5, 7.5)


def test_counters_keep_the_messages_of_closed_consumers(harness):
    producer = harness.producer(TOPIC)
    for subscription, durable in (("s", True), ("reader", False)):
        peer = harness.consumer(TOPIC, subscription, durable=durable)
        producer.send(0)
        peer.disconnect()
    assert harness.actions.stats(NAME)["msgOutCounter"] == 3


def test_times_are_written_in_utc_with_milliseconds():
    assert iso_time(0) == "1970-01-01T00:00:00.000Z"
    assert iso_time(1_795_222_002_051) == "2026-11-21T00:46:42.051Z"


def merged_stats(parts: list[dict[str, Any]]) -> dict[str, Any]:
    merged = MergedStats()
    for part in parts:
        merged.add(part)
    return merged.finish()


def partition_stats(number: int) -> dict[str, Any]:
    """Stats of a partition with a producer and a consumer of its own, and with one of each on all."""
    return {
        "msgInCounter": 1, "bytesInCounter": 5, "averageMsgSize": 5.0, "replication": {}, "ownerBroker": "b",
        "publishers": [
            {"producerName": name, "producerId": number, "msgRateIn": 1.5} for name in ("all", f"p{number}")
        ],
        "subscriptions": {
            "s": {
                "type": "Shared", "blockedSubscriptionOnUnackedMsgs": number == 3,
                "lastAckedTimestamp": number,
                "messagesInBacklog": 10,
                "consumers": [
                    {"consumerName": name, "availablePermits": number, "msgOutCounter": 2}
                    for name in ("all", f"c{number}")
                ],
            }
        },
    }  # fmt: skip


def test_stats_of_partitions_are_merged_by_name():
    parts = [partition_stats(number) for number in range(6)]
    before = json.dumps(parts)
    merged = merged_stats(parts)
    assert json.dumps(parts) == before
    assert (merged["msgInCounter"], merged["averageMsgSize"], "ownerBroker" in merged) == (6, 5.0, False)
    assert [each["producerName"] for each in merged["publishers"]] == ["all", *(f"p{n}" for n in range(6))]
    assert merged["publishers"][0] == {
        "producerName": "all", "producerId": 0, "msgRateIn": 9.0, "partitions": 6,
    }  # fmt: skip
    found = merged["subscriptions"]["s"]
    assert (found["type"], found["blockedSubscriptionOnUnackedMsgs"], found["lastAckedTimestamp"]) == (
        "Shared", True, 5,
    )  # fmt: skip
    assert found["messagesInBacklog"] == 60
    assert found["consumers"][0] == {
        "consumerName": "all", "availablePermits": 0, "msgOutCounter": 12, "partitions": 6,
    }  # fmt: skip
    assert found["consumers"][1]["partitions"] == 1
    assert merged_stats([]) == {"subscriptions": {}, "publishers": []}


def test_producers_named_by_the_broker_are_merged_by_connection():
    """A client without a producer name receives another name on each partition."""
    names = [("b-1-{}0", "/a:1"), ("b-1-{}1", "/a:1"), ("b-1-{}2", "/b:1"), ("etl-2026-{}", "/a:1")]
    parts: list[dict[str, Any]] = [
        {
            "publishers": [
                {"producerName": name.format(part), "address": at, "isNameGenerated": name[0] == "b", "n": 1}
                for name, at in names
            ]
        }
        for part in range(3)
    ]
    assert [tuple(each.values()) for each in merged_stats(parts)["publishers"]] == [
        *((name.format(0), at, True, 3, 3) for name, at in names[:3]),
        *((f"etl-2026-{part}", "/a:1", False, 1, 1) for part in range(3)),
    ]  # fmt: skip


def test_entries_read_ahead_of_their_first_delivery_are_counted_apart(harness):
    """Key_Shared: entries to be redelivered wait beside others that no consumer received yet."""
    full = harness.consumer(TOPIC, "s", kind="Key_Shared", permits=1, consumer_name="full")
    other = harness.consumer(TOPIC, "s", kind="Key_Shared", permits=1000, consumer_name="other")
    producer = harness.producer(TOPIC)
    for number in range(40):
        producer.send(number, entry_bytes(b"x", partition_key=f"k{number}"))
    topic, subscription = harness.actions.cursors.found(NAME, "s")

    def counts() -> tuple[int, int]:
        found = harness.actions.stats(NAME)["subscriptions"]["s"]
        return found["msgInReplay"], found["entriesReadAhead"]

    def mapped(name: str) -> list[int]:
        entries = hole_map(topic, subscription, 0, 40, 512)["entries"]
        return [each["offset"] for each in entries if name in each]

    (first,) = full.messages()
    waiting = 39 - len(other.messages())
    assert waiting > 5
    assert counts() == (waiting, waiting)
    assert (len(mapped("ahead")), mapped("again"), mapped("sent")) == (waiting, [], [])
    subscription.redeliver_unacknowledged("full")
    assert counts() == (waiting + 1, waiting)
    assert mapped("again") == [first.entry_id]
    subscription.skip_to(20)
    assert counts() == (len(mapped("again")) + len(mapped("ahead")), len(mapped("ahead")))
    full.command("flow", consumer_id=1, messagePermits=1000)
    assert counts() == (0, 0)


def test_stats_of_partitions_are_merged_in_proportion_to_their_number(lines_run):
    parts = [partition_stats(number) for number in range(300)]
    few, many = (lines_run(lambda count=count: merged_stats(parts[:count])) for count in (30, 300))
    assert many < 12 * few


def test_merged_stats_name_the_subscription_that_waits_longest():
    parts: list[dict[str, Any]] = [
        {"oldestBacklogMessageAgeSeconds": -1},
        {"oldestBacklogMessageAgeSeconds": 9, "oldestBacklogMessageSubscriptionName": "slow"},
        {"oldestBacklogMessageAgeSeconds": 3, "oldestBacklogMessageSubscriptionName": "quick"},
    ]
    for order in (parts, parts[::-1]):
        merged = merged_stats(order)
        assert merged["oldestBacklogMessageAgeSeconds"] == 9
        assert merged["oldestBacklogMessageSubscriptionName"] == "slow"
    assert "oldestBacklogMessageSubscriptionName" not in merged_stats(parts[:1])


async def test_a_long_answer_leaves_half_of_the_time_to_others(monkeypatch):
    """Beside a scrape of 5,000 topics a publish took 0.6 s: the thread that syncs got no interpreter."""
    pauses, clock = [], itertools.count(0.0, http.STEP_SECONDS / 4)

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(http.time, "monotonic", clock.__next__)
    monkeypatch.setattr(http.asyncio, "sleep", pause)
    assert [each async for each in http.stepwise(range(100))] == list(range(100))
    assert sum(pauses) >= 100 * http.STEP_SECONDS / 4 / 2


async def test_long_answers_at_once_share_half_of_the_time(monkeypatch):
    now, resumed = 0.0, []

    async def pause(seconds: float) -> None:
        resumed.append(now + seconds)

    monkeypatch.setattr(http.time, "monotonic", lambda: now)
    monkeypatch.setattr(http.asyncio, "sleep", pause)
    answers = [http.stepwise(range(20)) for _ in range(4)]
    for _ in range(20):
        for answer in answers:
            await anext(answer)
            now += http.STEP_SECONDS / 8
    assert len(resumed) > 20
    assert all(later - earlier >= 1.99 * http.STEP_SECONDS for earlier, later in itertools.pairwise(resumed))
