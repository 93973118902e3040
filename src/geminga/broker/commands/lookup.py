"""Commands that find topics: PARTITIONED_METADATA, LOOKUP, and lists (framing.md sections 4 and 10)."""

from geminga.broker.commands.permissions import check_list, check_partitions
from geminga.broker.commands.session import Session
from geminga.broker.commands.topic_list import PATTERN_LENGTH_MAX, TopicsPattern, hash_in_steps, is_hidden
from geminga.broker.commands.watchers import TopicListWatcher
from geminga.broker.listeners import no_listener
from geminga.broker.runtime.cooperative import Job
from geminga.broker.runtime.refusal import Refused, check_stored
from geminga.broker.topics.prefetch import existence_of
from geminga.broker.topics.topic_registry import parse_topic
from geminga.errors import InvalidTopicName, StoreError
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb

WATCHERS_PER_CONNECTION_MAX = 1_000
_PARTITIONS, _LOOKUP = "partitionMetadataResponse", "lookupTopicResponse"


# --- partitions ---
def on_partitioned_metadata(session: Session, command: pb.BaseCommand) -> None:
    """Answer with the number of partitions of a topic; 0 if it is not partitioned."""
    body = command.partitionMetadata

    def known(error: StoreError | None) -> None:
        with session.answering_refusals(body.request_id, _PARTITIONS):
            check_stored(error)
            check_partitions(session, body)
            _answer_partitions(session, body, name)

    with session.answering_refusals(body.request_id, _PARTITIONS):
        name = parse_topic(body.topic)
        session.services.topics.bring(existence_of(name), session.later(known))


def _answer_partitions(session: Session, body: pb.CommandPartitionedTopicMetadata, name: TopicName) -> None:
    """Answer, after creating the topic if that is wanted. Raises `Refused`."""
    topics = session.services.topics
    policies = topics.policies(name)
    coordinators = topics.partitioned.coordinators(name)
    count = topics.partitioned.count(name) if coordinators is None else coordinators
    exists = count > 0 or coordinators is not None or topics.is_stored(name)
    if not exists and not (name.partition >= 0 and topics.partitioned.count(name.base) > name.partition):
        if not (body.metadata_auto_creation_enabled and policies.auto_create_topics):
            raise Refused(pb.TopicNotFound, "")
        count = 0 if name.partition >= 0 else policies.auto_create_partitions

    def created(error: StoreError | None) -> None:
        with session.answering_refusals(body.request_id, _PARTITIONS):
            check_stored(error)
            session.services.audit.command(session.log_fields, "create", str(name))
            _answer_count(session, body.request_id, count)

    if exists or not count:
        _answer_count(session, body.request_id, count)
    else:
        topics.check_room(name)
        topics.partitioned.create(name, count, None, session.scheduler.guarded("store", session, created))


def _answer_count(session: Session, request_id: int, count: int) -> None:
    success = pb.CommandPartitionedTopicMetadataResponse.Success
    session.answer(_PARTITIONS, partitions=count, request_id=request_id, response=success)


def on_lookup(session: Session, command: pb.BaseCommand) -> None:
    """Answer that this broker owns the topic. The name may be a pattern: Java looks it up before a watch."""
    body = command.lookupTopic
    settings = session.services.settings
    with session.answering_refusals(body.request_id, _LOOKUP):
        session.services.topics.policies(parse_topic(body.topic))
        addresses = settings.addresses(body.advertised_listener_name)
        if addresses is None:
            reason = no_listener(body.advertised_listener_name, settings.advertised_listeners)
            session.services.rate_limited_log.log("%s asks for a listener: %s", session.address, reason)
            raise Refused(pb.ServiceNotReady, reason)
        session.answer(
            _LOOKUP,
            brokerServiceUrl=addresses.pulsar,
            brokerServiceUrlTls=addresses.pulsar_tls,
            response=pb.CommandLookupTopicResponse.Connect,
            request_id=body.request_id,
            authoritative=True,
            proxy_through_service_url=settings.lookup_through_service_url,
        )


# --- lists ---
def on_topics_of_namespace(session: Session, command: pb.BaseCommand) -> Job:
    """Return a job that lists the topics of a namespace, possibly very many; empty if it does not exist."""
    body = command.getTopicsOfNamespace
    pattern: TopicsPattern | None = None
    if body.topics_pattern and len(body.topics_pattern) <= PATTERN_LENGTH_MAX:
        try:
            pattern = TopicsPattern(body.topics_pattern)
        except Refused:
            pass  # Java's expressions are not all ours: the client filters by itself.
    modes = pb.CommandGetTopicsOfNamespace
    services = session.services
    slices, names = services.slices, list[str]()
    size, size_max = 0, services.settings.max_message_size
    with session.answering_refusals(body.request_id):
        for persistent, asked in ((True, modes.PERSISTENT), (False, modes.NON_PERSISTENT)):
            if body.mode not in (asked, modes.ALL):
                continue
            walk = services.topics.walk(body.namespace, persistent=persistent)
            while not walk.is_over:
                for name in (yield from services.topics.turn_page(walk)):
                    if not is_hidden(name) and (pattern is None or pattern.matches(name)):
                        names.append(name)
                        size += len(name) + 4
                        if size > size_max:
                            raise _too_many(body.namespace, len(names))
                    if slices.should_yield:
                        yield None
        check_list(session, body)
        names.sort()
        found = yield from hash_in_steps(names, slices)
        changed = not body.topics_hash or body.topics_hash != found
        session.answer(
            "getTopicsOfNamespaceResponse",
            request_id=body.request_id,
            topics=names if changed else (),
            filtered=pattern is not None,
            topics_hash=found,
            changed=changed,
        )


def _too_many(namespace: str, count: int) -> Refused:
    return Refused(
        pb.NotAllowedError,
        f"The names of the first {count} topics of {namespace} fill a message: ask with a narrower pattern, "
        "or over the admin interface",
    )


def on_watch(session: Session, command: pb.BaseCommand) -> Job:
    """Answer with the matching topics now, and send their changes from then on."""
    body = command.watchTopicList
    with session.answering_refusals(body.request_id):
        if len(session.watchers) >= WATCHERS_PER_CONNECTION_MAX:
            raise Refused(pb.NotAllowedError, f"{WATCHERS_PER_CONNECTION_MAX} watchers on one connection")
        pattern = TopicsPattern(body.topics_pattern)
        try:
            namespace = TopicName.parse(f"persistent://{body.namespace}/x").namespace_name
        except InvalidTopicName as error:
            raise Refused(pb.InvalidTopicName, str(error)) from None
        existing = session.watchers.pop(body.watcher_id, None)
        if existing is not None:
            existing.close()
        services = session.services
        watched = services.watched.find(namespace, pattern)
        if watched is None:
            watched = services.watched.make(namespace, pattern)
            walk = services.topics.walk(namespace, persistent=True)
            try:
                while not walk.is_over:
                    page = yield from services.topics.turn_page(walk)
                    yield from watched.take(page)
                yield from watched.filled()
            finally:
                if not watched.is_filled:
                    watched.drop()
        try:
            check_list(session, body)
            if sum(map(len, watched.names)) > services.settings.max_message_size:
                raise _too_many(namespace, len(watched.names))
        except Refused:
            watched.drop_unwatched()
            raise
        session.watchers[body.watcher_id] = TopicListWatcher(watched, body.watcher_id, session.output.write)
        session.answer(
            "watchTopicListSuccess",
            request_id=body.request_id,
            watcher_id=body.watcher_id,
            topic=() if body.topics_hash == watched.hash else watched.names,
            topics_hash=watched.hash,
        )


def on_watch_close(session: Session, command: pb.BaseCommand) -> None:
    """Stop sending changes; SUCCESS even if the watcher is unknown."""
    body = command.watchTopicListClose
    watcher = session.watchers.pop(body.watcher_id, None)
    if watcher is not None:
        watcher.close()
    session.answer("success", request_id=body.request_id)
