"""Commands that find topics: PARTITIONED_METADATA, LOOKUP, and lists (framing.md sections 4 and 10)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from geminga.broker.commands import answers
from geminga.broker.commands.topic_list import PATTERN_LENGTH_MAX, TopicsPattern, is_hidden, topics_hash
from geminga.broker.refusal import Refused, storage_refusal
from geminga.broker.topics.loaded import parse_topic
from geminga.errors import StoreError
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb

if TYPE_CHECKING:
    from geminga.broker.commands.session import Session

WATCHERS_PER_CONNECTION_MAX = 1_000
WATCHED_TOPICS_MAX = 2_000_000
"""Topic names that all watchers of the broker hold together; clients fall back to asking again and again."""
_TRANSACTION_COORDINATORS = "persistent://pulsar/system/transaction_coordinator_assign"


# --- partitions ---
def on_partitioned_metadata(session: Session, command: pb.BaseCommand) -> None:
    """How many partitions a topic has; 0 for one that has none or may be created."""
    body = command.partitionMetadata
    request_id = body.request_id
    try:
        name = parse_topic(body.topic)
        broker = session.broker
        policies = broker.topics.policies(name)
        count = broker.topics.partition_count(name)
        if count or str(name) == _TRANSACTION_COORDINATORS or broker.topics.is_stored(name):
            session.output.write(answers.partitions(request_id, count))
            return
        if name.partition >= 0 and broker.topics.partition_count(name.base) > name.partition:
            session.output.write(answers.partitions(request_id, 0))
            return
        if not (body.metadata_auto_creation_enabled and policies.auto_create_topics):
            raise Refused(pb.TopicNotFound, "")
        count = policies.auto_create_partitions
        if not count or name.partition >= 0:
            session.output.write(answers.partitions(request_id, 0))
            return
    except Refused as refused:
        session.output.write(answers.partitions_failed(request_id, refused.code, refused.reason))
        return

    def created(error: StoreError | None) -> None:
        if error is None:
            session.output.write(answers.partitions(request_id, count))
        else:
            refused = storage_refusal(error)
            session.output.write(answers.partitions_failed(request_id, refused.code, refused.reason))

    try:
        broker.topics.create_partitions(name, count, None, created)
    except Refused as refused:
        session.output.write(answers.partitions_failed(request_id, refused.code, refused.reason))


def on_lookup(session: Session, command: pb.BaseCommand) -> None:
    """This broker owns every topic. The name may be a pattern: Java asks before it watches one."""
    body = command.lookupTopic
    try:
        name = parse_topic(body.topic)
        session.broker.topics.policies(name)
    except Refused as refused:
        session.output.write(answers.lookup_failed(body.request_id, refused.code, refused.reason))
        return
    settings = session.broker.settings
    session.output.write(
        answers.lookup(
            body.request_id, settings.service_url, through_service_url=settings.lookup_through_service_url
        )
    )


# --- lists ---
def on_topics_of_namespace(session: Session, command: pb.BaseCommand) -> None:
    """The topics of a namespace; empty for one that does not exist."""
    body = command.getTopicsOfNamespace
    modes = pb.CommandGetTopicsOfNamespace
    topics = session.broker.topics
    names: list[str] = []
    if body.mode in (modes.PERSISTENT, modes.ALL):
        names += topics.names(body.namespace, persistent=True)
    if body.mode in (modes.NON_PERSISTENT, modes.ALL):
        names += topics.names(body.namespace, persistent=False)
    names = [name for name in names if not is_hidden(name)]
    filtered = False
    if body.topics_pattern and len(body.topics_pattern) <= PATTERN_LENGTH_MAX:
        try:
            pattern = TopicsPattern(body.topics_pattern)
        except Refused:
            pass  # Java's expressions are not all ours: the client filters by itself.
        else:
            names = [name for name in names if pattern.matches(name)]
            filtered = True
    found = topics_hash(names)
    changed = not body.topics_hash or body.topics_hash != found
    session.output.write(
        answers.topics_of_namespace(
            body.request_id,
            names if changed else (),
            filtered=filtered,
            topics_hash=found,
            changed=changed,
        )
    )


class TopicListWatcher:
    """Tells one client when topics that match its pattern come and go."""

    __slots__ = ("_namespace", "_pattern", "_session", "_topics", "_watcher_id")

    def __init__(self, session: Session, watcher_id: int, namespace: str, pattern: TopicsPattern) -> None:
        self._session = session
        self._watcher_id = watcher_id
        self._namespace = namespace
        self._pattern = pattern
        names = session.broker.topics.names(namespace, persistent=True)
        self._topics = {sys.intern(name) for name in names if not is_hidden(name) and pattern.matches(name)}
        held = session.broker.watched_topics + len(self._topics)
        if held > WATCHED_TOPICS_MAX:
            raise Refused(pb.NotAllowedError, f"Watchers hold {held} topics; at most {WATCHED_TOPICS_MAX}")
        session.broker.watched_topics = held
        session.broker.add_watcher(namespace, self)

    @property
    def topics(self) -> list[str]:
        return sorted(self._topics)

    def changed(self, name: TopicName, exists: bool) -> None:
        """A topic of the namespace was created or deleted."""
        text = str(name)
        if not name.persistent or is_hidden(text) or not self._pattern.matches(text):
            return
        if exists == (text in self._topics):
            return
        if exists:
            self._topics.add(text)
            self._session.broker.watched_topics += 1
        else:
            self._topics.discard(text)
            self._session.broker.watched_topics -= 1
        self._session.output.write(
            answers.watch_update(
                self._watcher_id,
                [text] if exists else [],
                [] if exists else [text],
                topics_hash(self._topics),
            )
        )

    def close(self) -> None:
        self._session.broker.remove_watcher(self._namespace, self)
        self._session.broker.watched_topics -= len(self._topics)
        self._topics.clear()
        self._session.watchers.pop(self._watcher_id, None)


def on_watch(session: Session, command: pb.BaseCommand) -> None:
    """Answer with the matching topics now, and tell about changes from then on."""
    body = command.watchTopicList
    try:
        if len(session.watchers) >= WATCHERS_PER_CONNECTION_MAX:
            raise Refused(pb.NotAllowedError, f"{WATCHERS_PER_CONNECTION_MAX} watchers on one connection")
        pattern = TopicsPattern(body.topics_pattern)
        namespace = TopicName.parse(f"persistent://{body.namespace}/x").namespace_name
        existing = session.watchers.get(body.watcher_id)
        if existing is not None:
            existing.close()
        watcher = TopicListWatcher(session, body.watcher_id, namespace, pattern)
    except Refused as refused:
        session.refuse(body.request_id, refused)
        return
    except ValueError as error:
        session.refuse(body.request_id, Refused(pb.InvalidTopicName, str(error)))
        return
    session.watchers[body.watcher_id] = watcher
    found = topics_hash(watcher.topics)
    session.output.write(
        answers.watch_success(
            body.request_id,
            body.watcher_id,
            () if body.topics_hash == found else watcher.topics,
            found,
        )
    )


def on_watch_close(session: Session, command: pb.BaseCommand) -> None:
    """Stop telling; SUCCESS even when nothing was watched."""
    body = command.watchTopicListClose
    watcher = session.watchers.get(body.watcher_id)
    if watcher is not None:
        watcher.close()
    session.output.write(answers.success(body.request_id))
