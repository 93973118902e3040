"""PARTITIONED_METADATA, LOOKUP, and topic lists."""

from typing import Any

import pytest

from geminga.broker.commands import watchers
from geminga.broker.commands.lookup import WATCHERS_PER_CONNECTION_MAX
from geminga.broker.commands.topic_list import topics_hash
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import Command

P = "persistent://public/default/"


def create(harness: Any, *topics: str) -> None:
    for topic in topics:
        harness.actions.create(TopicName.parse(topic), lambda error: None)
    harness.poll()


def metadata(peer: Any, topic: str, **fields: Any) -> Any:
    return peer.request("partitionMetadata", topic=topic, **fields).command.partitionMetadataResponse


@pytest.mark.parametrize(
    ("topic", "flag", "expected"),
    [
        (P + "absent", True, 0),
        (P + "absent", False, pb.TopicNotFound),
        (P + "there", False, 0),
        (P + "parts", False, 3),
        (P + "parts-partition-2", False, 0),
        (P + "parts-partition-3", False, pb.TopicNotFound),
        ("non-persistent://public/default/x", True, 0),
        ("persistent://public/missing/x", True, pb.TopicNotFound),
        ("persistent://public/x", True, pb.InvalidTopicName),
        ("persistent://pulsar/system/transaction_coordinator_assign", False, 1),
    ],
)
def test_answers_have_the_partitions_or_an_error(harness, topic, flag, expected):
    create(harness, P + "there")
    harness.actions.create_partitioned(TopicName.parse(P + "parts"), 3, lambda error: None)
    body = metadata(harness.peer(), topic, metadata_auto_creation_enabled=flag)
    if body.response == pb.CommandPartitionedTopicMetadataResponse.Failed:
        assert body.error == expected
        assert body.HasField("message")
    else:
        assert body.partitions == expected
    assert not harness.actions.exists(TopicName.parse(P + "absent"))


def test_an_absent_topic_is_created_partitioned_by_policy(make_harness):
    harness = make_harness(auto_create_topic_kind="partitioned", auto_create_partitions=4)
    peer = harness.peer()
    assert metadata(peer, P + "new").partitions == 4
    assert metadata(peer, P + "new", metadata_auto_creation_enabled=False).partitions == 4
    assert metadata(peer, P + "other-partition-1").partitions == 0
    refused = peer.request("producer", topic=P + "unasked", producer_id=1).command.error
    assert refused.error == pb.NotAllowedError
    assert not harness.actions.exists(TopicName.parse(P + "unasked"))
    peer.producer("non-persistent://public/default/returned-to", producer_id=2)  # after a restart
    harness.restart()
    assert harness.actions.partitions(TopicName.parse(P + "new")) == 4


def test_without_auto_creation_an_absent_topic_is_not_found(make_harness):
    harness = make_harness(auto_create_topics=False)
    assert metadata(harness.peer(), P + "absent").error == pb.TopicNotFound


@pytest.mark.parametrize(
    ("settings", "url", "proxied"),
    [
        ({}, "pulsar://127.0.0.1:6650", False),
        ({"host": "0.0.0.0", "port": 7000}, "pulsar://localhost:7000", True),
        ({"host": "0.0.0.0", "advertised_address": "b.example"}, "pulsar://b.example:6650", False),
    ],
)
def test_lookups_give_an_address_that_can_be_reached(make_harness, settings, url, proxied):
    peer = make_harness(**settings).peer()
    body = peer.request("lookupTopic", topic=P + "any.*").command.lookupTopicResponse
    assert body.response == pb.CommandLookupTopicResponse.Connect
    assert (body.brokerServiceUrl, body.proxy_through_service_url, body.authoritative) == (url, proxied, True)


@pytest.mark.parametrize(
    ("topic", "code"),
    [("persistent://public/no/x", pb.TopicNotFound), ("bad://public/default/x", pb.InvalidTopicName)],
)
def test_lookups_of_unusable_topics_fail(harness, topic, code):
    body = harness.peer().request("lookupTopic", topic=topic).command.lookupTopicResponse
    assert (body.response, body.error) == (pb.CommandLookupTopicResponse.Failed, code)


def listed(peer: Any, **fields: Any) -> Any:
    fields = {"namespace": "public/default", **fields}
    return peer.request("getTopicsOfNamespace", **fields).command.getTopicsOfNamespaceResponse


def watch(peer: Any, pattern: str, id_: int = 1, **fields: Any) -> Any:
    fields = {"namespace": "public/default", "topics_pattern": pattern, "watcher_id": id_, **fields}
    return peer.request("watchTopicList", **fields).command


def test_a_list_has_the_topics_and_their_hash(harness):
    create(harness, P + "b", P + "a1", P + "a2", P + "__system", "non-persistent://public/default/n")
    peer = harness.peer()
    everything = [P + "a1", P + "a2", P + "b"]
    body = listed(peer)
    assert (list(body.topics), body.filtered, body.changed) == (everything, False, True)
    assert body.topics_hash == topics_hash(everything)
    again = listed(peer, topics_hash=body.topics_hash)
    assert (list(again.topics), again.changed) == ([], False)
    modes = pb.CommandGetTopicsOfNamespace
    assert list(listed(peer, mode=modes.NON_PERSISTENT).topics) == ["non-persistent://public/default/n"]
    assert len(listed(peer, mode=modes.ALL).topics) == 4
    body = listed(peer, topics_pattern=P + "a.*")
    assert (list(body.topics), body.filtered) == (everything[:2], True)
    assert not listed(peer, topics_pattern="x" * 60).filtered
    assert not listed(peer, topics_pattern="a(").filtered
    body = listed(peer, namespace="no/where")
    assert (list(body.topics), body.topics_hash) == ([], "00000000")


def test_a_watcher_is_notified_of_new_and_deleted_topics(harness):
    create(harness, P + "a1", P + "b1")
    peer = harness.peer()
    found = watch(peer, P + "a.*", 7).watchTopicListSuccess
    assert (found.watcher_id, list(found.topic)) == (7, [P + "a1"])
    assert found.topics_hash == topics_hash([P + "a1"])
    other = harness.producer(P + "a2")
    other.producer(P + "b2", producer_id=2)
    other.producer("non-persistent://public/default/a3", producer_id=3)
    update = peer.pop().command.watchTopicUpdate
    assert (list(update.new_topics), list(update.deleted_topics)) == ([P + "a2"], [])
    assert update.topics_hash == topics_hash([P + "a1", P + "a2"])
    harness.actions.delete(TopicName.parse(P + "a1"), False, lambda error: None)
    update = peer.pop().command.watchTopicUpdate
    assert (list(update.new_topics), list(update.deleted_topics)) == ([], [P + "a1"])
    harness.actions.create_partitioned(TopicName.parse(P + "a9"), 2, lambda error: None)
    assert [list(f.command.watchTopicUpdate.new_topics) for f in peer.frames] == [
        [P + "a9-partition-0"], [P + "a9-partition-1"],
    ]  # fmt: skip
    peer.frames.clear()
    assert peer.request("watchTopicListClose", watcher_id=7).type == Command.SUCCESS
    create(harness, P + "a4")
    assert not peer.frames


def test_a_known_list_is_not_sent_again(harness):
    create(harness, P + "a1")
    answer = watch(harness.peer(), P + "a.*", topics_hash=topics_hash([P + "a1"]))
    assert list(answer.watchTopicListSuccess.topic) == []


LISTED = {P + f"a{number:03}" for number in range(300)}


@pytest.fixture
def watching(harness):
    """A peer whose watcher has to wait for a long list, which is read in slices."""
    harness.advance_clock_on_read(0.001)
    create(harness, *sorted(LISTED))
    peer = harness.peer()
    fields = {"namespace": "public/default", "topics_pattern": ".*"}
    peer.command("watchTopicList", request_id=1, watcher_id=1, **fields)
    return peer


@pytest.fixture
def waiting(harness, monkeypatch):
    """Requests for the disk that are not answered."""
    found: list[Any] = []
    monkeypatch.setattr(harness.store, "bring", lambda wanted, then: found.append(then))
    return found


@pytest.mark.parametrize(
    ("namespace", "pattern", "code"),
    [
        ("public/default", "x" * 51, pb.NotAllowedError),
        ("public/default", "(", pb.NotAllowedError),
        ("public", "x", pb.InvalidTopicName),
    ],
)
def test_bad_requests_for_watchers_are_refused(harness, namespace, pattern, code):
    assert watch(harness.peer(), pattern, namespace=namespace).error.error == code


def test_watchers_are_limited_and_end_with_their_connection(harness):
    peer = harness.peer()
    for number in range(WATCHERS_PER_CONNECTION_MAX):
        assert watch(peer, ".*", number).type != Command.ERROR
    assert watch(peer, ".*", 99_999).error.error == pb.NotAllowedError
    peer.disconnect()
    assert not len(harness.broker.watched)
    create(harness, P + "a1")


def test_the_topics_held_by_watchers_are_limited(harness, monkeypatch):
    monkeypatch.setattr(watchers, "WATCHED_TOPICS_MAX", 5)
    create(harness, *(P + f"a{number}" for number in range(3)))
    peer = harness.peer()
    for number in (1, 2):  # the same list costs nothing more, another one does
        assert watch(peer, ".*", number).type == Command.WATCH_TOPIC_LIST_SUCCESS
    assert watch(peer, P + "a.*", 3).error.error == pb.NotAllowedError
    assert harness.broker.watched.held == 3
    create(harness, P + "a9")
    harness.actions.delete(TopicName.parse(P + "a0"), False, lambda error: None)
    peer.disconnect()
    assert harness.broker.watched.held == 0


def test_changes_of_a_long_list_are_sent_together(harness, monkeypatch):
    monkeypatch.setattr(watchers, "SHORT_LIST", 2)
    monkeypatch.setattr(watchers, "UPDATE_BYTES_MAX", 150)
    create(harness, *(P + f"a{number}" for number in range(3)))
    peers = [harness.peer(), harness.peer()]
    for peer in peers:
        watch(peer, P + "a.*")
        peer.frames.clear()
    create(harness, *(P + f"a{number}" for number in range(3, 13)), P + "b1")
    for gone in (P + "a0", P + "a12"):
        harness.actions.delete(TopicName.parse(gone), False, lambda error: None)
    assert [len(peer.frames) for peer in peers] == [0, 0]
    harness.advance(1.0)
    names = {P + f"a{number}" for number in range(1, 12)}
    for peer in peers:
        updates = [frame.command.watchTopicUpdate for frame in peer.frames]
        told = {P + "a0", P + "a1", P + "a2"}
        for update in updates:
            assert sum(map(len, update.new_topics)) < 250
            told = told - set(update.deleted_topics) | set(update.new_topics)
        assert len(updates) > 1
        assert told == names
        assert updates[-1].topics_hash == topics_hash(names)


@pytest.fixture
def other(harness):
    return harness.peer()


def test_a_topic_created_while_a_list_is_read_is_reported(harness, other, watching):
    assert watching.frames == []
    create(harness, P + "a000x", P + "z")
    other.disconnect()
    harness.run_slices()
    seen = set(watching.pop().command.watchTopicListSuccess.topic)
    for frame in watching.frames:
        seen |= set(frame.command.watchTopicUpdate.new_topics)
    assert seen == LISTED | {P + "a000x", P + "z"}


def test_a_client_that_disconnects_while_its_list_is_read_leaves_no_watcher(harness, watching):
    assert len(harness.broker.watched) == 1
    watching.disconnect()
    harness.run_slices()
    assert len(harness.broker.watched) == 0
    assert harness.broker.watched.held == 0


def test_a_list_that_fits_in_no_message_is_refused(make_harness):
    harness = make_harness(max_message_size=2048)
    create(harness, *(P + f"a{number}" for number in range(100)))
    peer = harness.peer()
    refused = peer.request("getTopicsOfNamespace", namespace="public/default")
    assert refused.command.error.error == pb.NotAllowedError
    assert "narrower pattern" in refused.command.error.message
    assert watch(peer, ".*").error.error == pb.NotAllowedError
    assert harness.broker.watched.held == 0
    assert len(watch(peer, P + "a1.*").watchTopicListSuccess.topic) == 11


def test_automatically_created_partitions_are_limited_and_made_in_slices(make_harness):
    harness = make_harness(partitions_max=500)
    harness.advance_clock_on_read(0.0005)
    wanted = {"allowAutoTopicCreation": True, "topicType": "partitioned"}
    peer = harness.peer()

    def ask(name: str, partitions: int) -> Any:
        document = {**wanted, "defaultNumPartitions": partitions}
        harness.broker.namespaces.set_policy("public", "default", "autoTopicCreationOverride", document)
        peer.command("partitionMetadata", topic=P + name, request_id=1, metadata_auto_creation_enabled=True)

    ask("many", 300_000)
    answer = peer.pop().command.partitionMetadataResponse
    assert answer.error == pb.NotAllowedError
    assert "partitions_max" in answer.message
    ask("some", 500)
    assert peer.frames == []
    harness.run_slices()
    harness.poll()
    assert peer.pop().command.partitionMetadataResponse.partitions == 500
    assert len(list(harness.actions.topics.walk("public/default", persistent=True))) == 500


def test_watching_again_under_the_same_id_replaces_the_watcher(harness):
    peer = harness.peer()
    for pattern in (P + "a.*", P + "b.*"):
        watch(peer, pattern)
    create(harness, P + "a1", P + "b1")
    assert [list(f.command.watchTopicUpdate.new_topics) for f in peer.frames] == [[P + "b1"]]


def test_a_client_waiting_for_a_list_gets_pongs(harness, waiting):
    peer = harness.peer()
    peer.command("getTopicsOfNamespace", namespace="public/default", request_id=1)
    peer.command("ping")
    harness.advance(35)
    assert len(peer.take(Command.PONG)) == 3
    assert not peer.is_closed
    while waiting:
        waiting.pop()(None)
    harness.poll()
    (answer,) = peer.take(Command.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    assert answer.command.getTopicsOfNamespaceResponse.request_id == 1
    assert len(peer.take(Command.PONG)) == 1, "the PING is answered behind it"
    harness.advance(65)
    assert len(peer.take(Command.PONG)) == 0


def test_a_disconnect_while_a_list_is_read_affects_no_other_client(harness, waiting):
    peer = harness.peer()
    peer.command("getTopicsOfNamespace", namespace="public/default", request_id=1)
    peer.disconnect()
    waiting.pop()(None)
    harness.poll()
    assert not any(harness.broker.scheduler.failures.values())
    assert harness.broker.slices.waiting == 0
