"""Commands that find topics: PARTITIONED_METADATA, LOOKUP, and lists (framing.md sections 4 and 10)."""

from __future__ import annotations

from geminga.broker.commands import answers
from geminga.broker.commands.session import Session
from geminga.broker.commands.topic_list import (
    PATTERN_LENGTH_MAX,
    TopicListWatcher,
    TopicsPattern,
    is_hidden,
    topics_hash,
)
from geminga.broker.refusal import Refused, storage_refusal
from geminga.broker.topics.loaded import parse_topic
from geminga.errors import StoreError
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb

WATCHERS_PER_CONNECTION_MAX = 1_000
_TRANSACTION_COORDINATORS = "persistent://pulsar/system/transaction_coordinator_assign"


# --- partitions ---
def on_partitioned_metadata(session: Session, command: pb.BaseCommand) -> None:
    """How many partitions a topic has; 0 for one that has none or may be created."""
    body = command.partitionMetadata
    request_id = body.request_id
    try:
        name = parse_topic(body.topic)
        topics = session.services.topics
        policies = topics.policies(name)
        count = topics.partition_count(name)
        if count or str(name) == _TRANSACTION_COORDINATORS or topics.is_stored(name):
            session.output.write(answers.partitions(request_id, count))
            return
        if name.partition >= 0 and topics.partition_count(name.base) > name.partition:
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
        topics.create_partitions(name, count, None, session.agenda.guarded("store", session, created))
    except Refused as refused:
        session.output.write(answers.partitions_failed(request_id, refused.code, refused.reason))


def on_lookup(session: Session, command: pb.BaseCommand) -> None:
    """This broker owns every topic. The name may be a pattern: Java asks before it watches one."""
    body = command.lookupTopic
    try:
        name = parse_topic(body.topic)
        session.services.topics.policies(name)
    except Refused as refused:
        session.output.write(answers.lookup_failed(body.request_id, refused.code, refused.reason))
        return
    settings = session.services.settings
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
    topics = session.services.topics
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
            del session.watchers[body.watcher_id]
        services = session.services
        names = services.topics.names(namespace, persistent=True)
        watcher = TopicListWatcher(
            services.watchers, session.output.write, body.watcher_id, namespace, pattern, names
        )
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
    watcher = session.watchers.pop(body.watcher_id, None)
    if watcher is not None:
        watcher.close()
    session.output.write(answers.success(body.request_id))
