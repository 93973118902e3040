"""Commands of producers: PRODUCER, SEND, CLOSE_PRODUCER (framing.md section 5)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from geminga.broker.commands import transactions
from geminga.broker.commands.handles import Handles, PendingHandle
from geminga.broker.commands.permissions import check_producer
from geminga.broker.commands.session import Session
from geminga.broker.delivery.consumer import Consumer
from geminga.broker.entries.entry_facts import backlog_count_of, count_of, head_of
from geminga.broker.runtime.memory_backpressure import NAMED_BYTES_MAX, NAMED_BYTES_SMALL
from geminga.broker.runtime.peer import Peer
from geminga.broker.runtime.refusal import (
    HolderBusy,
    ProtocolViolation,
    Refused,
    check_stored,
    storage_refusal,
)
from geminga.broker.topics.prefetch import schemas_of
from geminga.broker.topics.producer import Producer
from geminga.broker.topics.quota import HOLD
from geminga.broker.topics.topic import Topic
from geminga.broker.topics.topic_registry import SUBSCRIPTION_NAME_MAX, check_length, parse_topic
from geminga.errors import CorruptPayload, StoreBusy, StoreError
from geminga.ids import TopicName, to_signed, to_unsigned
from geminga.ledger.api import Done
from geminga.wire.frames import SendFrame
from geminga.wire.metadata import checksum_matches
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.send_runs import SendRun

H = TypeVar("H", bound=Producer | Consumer)
_BLOCKED = {True: pb.ProducerBlockedQuotaExceededError, False: pb.ProducerBlockedQuotaExceededException}
"""Error for blocked producers by whether their clients keep the messages, or fail them."""
_TAKEN = frozenset((pb.ProducerBusy, pb.ProducerFenced, pb.ConsumerBusy, pb.ConsumerAssignError))
"""Refusals because of another client's producer or consumer."""
OPENING_SECONDS_MAX = 20.0
"""Longest wait of a producer or consumer, or of a search for a position, for a busy disk; clients wait for
30 s."""
OPENING_AGAIN_SECONDS = 0.05
METADATA_BYTES_MAX = 1024 * 16
"""Limit of the keys and values of a producer's or consumer's metadata, together."""


def pairs(items: object, what: str) -> dict[str, str]:
    """Return a producer's or consumer's metadata; raises `Refused` if it is too large."""
    found = {item.key: item.value for item in items}  # type: ignore[attr-defined]
    if sum(len(key) + len(value) for key, value in found.items()) > METADATA_BYTES_MAX:
        raise Refused(pb.MetadataError, f"The {what} metadata is larger than {METADATA_BYTES_MAX} bytes")
    return found


ATTEMPTS_MAX = 10_000
"""Producers and consumers of one connection that may be pending; they wait when the disk hangs."""
NAME_MAX = 8192
"""Longest name of a producer or consumer (dead letter producers have long ones)."""


def on_producer(session: Session, command: pb.BaseCommand) -> None:
    """Create a producer."""
    body = command.producer
    existing = session.producers.get(body.producer_id)
    if existing is not None:
        _answer(session, existing, body.request_id, ready=True)
    elif body.producer_id in session.producers.attempts:
        refused = Refused(pb.ServiceNotReady, "Producer is already present on the connection")
        session.refuse(body.request_id, refused)
    else:
        create = partial(_create, session, body)
        open_handle(session, session.producers, body.producer_id, body, create, _producers_of)


def _producers_of(topic: Topic, _body: pb.CommandProducer) -> Iterable[Producer]:
    return topic.access.producers.values()


def open_handle(
    session: Session,
    handles: Handles[H],
    handle_id: int,
    body: Any,
    create: Callable[[PendingHandle[H]], None],
    in_the_way: Callable[[Topic, Any], Iterable[Producer | Consumer]],
) -> None:
    """Create a producer or consumer when its topic is in memory, or answer with the error.

    Before a name or an exclusive subscription counts as taken, its holder's connection is probed. Handles
    ``in_the_way`` whose connections have ended are waited for. ``create`` is called again while entries that
    it needs are being read, for at most `OPENING_SECONDS_MAX`.
    """
    name = body.producer_name if isinstance(body, pb.CommandProducer) else body.consumer_name
    named_bytes = len(name) + sum(len(each.key) + len(each.value) for each in body.metadata)
    if may_open(session, body.request_id, named_bytes):
        deadline = session.scheduler.now + OPENING_SECONDS_MAX
        attempt = handles.begin(handle_id, named_bytes)
        opening = _Opening(session, handles, handle_id, body, create, in_the_way, attempt, deadline)
        when_loaded(session, body.topic, opening.loaded, with_schema=body.HasField("schema"))


@dataclass(slots=True, eq=False)
class _Opening(Generic[H]):
    """Attempt of `open_handle`. A function that calls itself later would be a reference cycle."""

    session: Session
    handles: Handles[H]
    handle_id: int
    body: Any
    create: Callable[[PendingHandle[H]], None]
    in_the_way: Callable[[Topic, Any], Iterable[Producer | Consumer]]
    attempt: PendingHandle[H]
    deadline: float

    def loaded(self, error: StoreError | None) -> None:
        """Continue when the topic is in memory, or cannot be read."""
        if error is None:
            self.try_once(probing=True)
        elif self.handles.is_current(self.handle_id, self.attempt):
            self._fail(storage_refusal(error))

    def try_once(self, *, probing: bool) -> None:
        session, scheduler = self.session, self.session.scheduler
        if session.has_gone or not self.handles.is_current(self.handle_id, self.attempt):
            return
        try:
            self.create(self.attempt)
        except StoreError as error:
            if isinstance(error, StoreBusy) and scheduler.now < self.deadline:
                scheduler.after(OPENING_AGAIN_SECONDS, partial(self.try_once, probing=probing), session)
            else:
                self._fail(storage_refusal(error))
        except Refused as refused:
            holder = refused.holder if probing and isinstance(refused, HolderBusy) else None
            if holder is None and refused.code in _TAKEN:
                topic = session.services.topics.in_memory(parse_topic(self.body.topic))
                holder = None if topic is None else _gone_among(session, self.in_the_way(topic, self.body))
            if holder is not None and holder is not session:
                holder.probe(partial(self.try_once, probing=False))
            else:
                self._fail(refused)

    def _fail(self, refused: Refused) -> None:
        self.handles.abandon(self.handle_id)
        self.session.refuse(self.body.request_id, refused)


def may_open(session: Session, request_id: int, named_bytes: int) -> bool:
    """Return whether the connection may have another producer or consumer; else answer with the error."""
    total = session.services.backpressure.named_bytes
    attempts = len(session.producers.attempts) + len(session.consumers.attempts)
    if session.handle_count >= session.services.settings.handles_per_connection_max:
        refused = Refused(pb.NotAllowedError, "Too many producers and consumers on this connection")
    elif attempts >= ATTEMPTS_MAX:
        refused = Refused(
            pb.ServiceNotReady, f"{attempts} producers and consumers are being created already: try again"
        )
    elif named_bytes > NAMED_BYTES_SMALL and total + named_bytes > NAMED_BYTES_MAX:
        # A consumer whose connection was lost stays alive: it tries again until others have left.
        refused = Refused(
            pb.ServiceNotReady,
            f"Names and metadata have {named_bytes} bytes, those of all producers and consumers {total}; "
            f"at most {NAMED_BYTES_MAX} together: try again",
        )
    else:
        return True
    session.refuse(request_id, refused)
    return False


def when_loaded(session: Session, topic: str, then: Done, *, with_schema: bool) -> None:
    """Call ``then`` when the topic, if it exists, and its schema are in memory."""
    then = session.later(then)
    topics, schemas = session.services.topics, session.services.schemas
    try:
        name = parse_topic(topic)
    except Refused:
        then(None)  # it is refused there
        return
    is_loaded = not name.persistent or topics.in_memory(name) is not None
    if is_loaded and with_schema and not schemas.in_memory(name):
        topics.bring(schemas_of(name), then)
    else:
        topics.loader.prepare(name, then)


def find_or_create(session: Session, name: TopicName, *, may_create: bool = True) -> Topic:
    """Return the topic, created if that is allowed. Raises `Refused`."""
    topics = session.services.topics
    found = topics.find(name)
    topic = found or topics.find_or_create(name, may_create=may_create)
    if found is None:
        session.services.audit.command(session.log_fields, "create", topic.text)
    return topic


def _gone_among(session: Session, handles: Iterable[Producer | Consumer]) -> Peer | None:
    """Return the first disconnected peer that still has one of these handles, until they are closed."""
    gone = session.services.gone
    return next((each.peer for each in handles if each.peer in gone), None) if gone else None


def _create(session: Session, body: pb.CommandProducer, attempt: PendingHandle[Producer]) -> None:
    services = session.services
    check_producer(session, body)
    check_length("producer's name", body.producer_name, NAME_MAX)
    check_length("initial subscription's name", body.initial_subscription_name, SUBSCRIPTION_NAME_MAX)
    name = parse_topic(body.topic)
    refusal = services.disk.refusal
    if refusal and name.persistent:
        # Before the topic is made, if it is not there: its record would take room, too.
        holds = services.settings.disk_full_action == HOLD
        raise Refused(_BLOCKED[holds], f"Cannot create producer on topic {name}: {refusal}")
    topic = find_or_create(session, name)
    _check_topic(session, topic, body)
    if body.initial_subscription_name:
        topic.initial_subscription(body.initial_subscription_name)
    schema_version = b""
    if body.HasField("schema"):
        schema_version = services.schemas.add_for_producer(topic.name, topic.policies, body.schema)
    elif topic.policies.schema_validation_enforced and services.schemas.latest(topic.name) is not None:
        raise Refused(pb.IncompatibleSchema, "Producers cannot connect or send message without a schema")
    producer = Producer(
        session,
        topic,
        producer_id=body.producer_id,
        name=body.producer_name or next(services.producer_names),
        epoch=body.epoch,
        user_provided_name=body.user_provided_producer_name and bool(body.producer_name),
        access_mode=body.producer_access_mode,
        topic_epoch=body.topic_epoch if body.HasField("topic_epoch") else None,
        encrypted=body.encrypted,
        metadata=pairs(body.metadata, "producer"),
        schema_version=schema_version,
        now=services.scheduler.now,
        connected_since_ms=services.scheduler.now_ms,
    )
    topic.used()
    _open(session, body, attempt, topic, producer)


def _open(
    session: Session,
    body: pb.CommandProducer,
    attempt: PendingHandle[Producer],
    topic: Topic,
    producer: Producer,
) -> None:
    """Have the topic admit a producer; answer its client when the schema and earlier entries are durable."""
    handles, guarded = session.producers, partial(session.scheduler.guarded, "store", session)
    when_schema_durable = partial(session.services.schemas.when_durable, topic.name)

    def admitted(refused: Refused | None) -> None:
        if refused is None:
            when_schema_durable(guarded(schema_stored))
        else:
            enter(refused)

    def schema_stored(error: StoreError | None) -> None:
        """Wait for pending entries of an earlier producer of this name: the answer counts their ids."""
        if error is None and topic.has_pending(producer.name):
            try:
                # The record's report follows those of the entries.
                topic.save_record(guarded(stored))
                return
            except StoreError as stopped:
                error = stopped
        stored(error)

    def stored(error: StoreError | None) -> None:
        try:
            check_stored(error)
            check_producer(session, body)
            enter(None)
        except Refused as refused:
            topic.remove_producer(producer)
            enter(refused)

    def enter(refused: Refused | None) -> None:
        if not handles.is_current(producer.producer_id, attempt):  # it, or the connection, ended meanwhile
            topic.remove_producer(producer)
            return
        if refused is None and producer.removed:
            refused = Refused(pb.ServiceNotReady, "The topic was closed meanwhile: try again")
        if refused is not None:
            handles.abandon(producer.producer_id)
            session.refuse(body.request_id, refused)
        else:
            handles.opened(producer.producer_id, producer)
            _answer(session, producer, body.request_id, ready=True)

    def queued(_error: StoreError | None) -> None:
        """Answer that the producer waits for exclusive access."""
        if handles.is_current(producer.producer_id, attempt):
            _answer(session, producer, body.request_id, ready=False)

    is_in = topic.access.add(producer, admitted)
    attempt.entered = producer
    if not is_in:
        attempt.is_waiting = True
        when_schema_durable(guarded(queued))


def _check_topic(session: Session, topic: Topic, body: pb.CommandProducer) -> None:
    if topic.terminated:
        raise Refused(pb.TopicTerminatedError, "Topic was already terminated")
    policies = topic.policies
    if policies.encryption_required and not body.encrypted:
        raise Refused(pb.MetadataError, "Encryption is required in the namespace: the producer must encrypt")
    limit = policies.max_producers_per_topic
    if limit and len(topic.access.producers) >= limit:
        raise Refused(pb.ProducerBusy, f"Topic '{topic.text}' reached max producers limit: {limit}")
    quota = topic.check_quota()
    if quota is not None:
        raise Refused(
            _BLOCKED[quota.action == HOLD], f"Cannot create producer on topic {topic.text}: {quota}"
        )


def _answer(session: Session, producer: Producer, request_id: int, *, ready: bool) -> None:
    session.answer(
        "producer_success",
        request_id=request_id,
        producer_name=producer.name,
        # Sequence ids are unsigned in SEND and signed here.
        last_sequence_id=to_signed(to_unsigned(producer.topic.last_sequence_id(producer.name))),
        schema_version=producer.schema_version,
        topic_epoch=producer.topic_epoch if ready and producer.access_mode != pb.Shared else None,
        producer_ready=ready,
    )


def on_send(session: Session, frame: SendFrame) -> None:
    """Store an entry; its receipt follows when it is durable."""
    producer = session.producers.get(frame.producer_id)
    if producer is None:
        if session.was_recently_closed(frame.producer_id):
            return  # its client looks the topic up again
        raise ProtocolViolation(f"SEND of the unknown producer {frame.producer_id}")
    if producer.is_closing:
        return
    try:
        is_intact = checksum_matches(frame.entry) is not False
    except CorruptPayload:
        is_intact = False  # it ends inside its checksum
    if not is_intact:
        producer.send_retriable_error(
            frame.highest_sequence_id or frame.sequence_id, pb.ChecksumError, "Checksum failed on the broker"
        )
        return
    counted = None
    if frame.num_messages != 1:
        if frame.num_messages < 1:
            raise ProtocolViolation(f"SEND with {frame.num_messages} messages")
        # Permits count the messages that consumers see, by the entry's own metadata.
        head = head_of(frame.entry)
        frame.num_messages, counted = count_of(head), backlog_count_of(head)
    highest = frame.highest_sequence_id
    if highest and highest < frame.sequence_id:
        producer.error(
            highest, pb.MetadataError, f"Sequence ids {frame.sequence_id}..{highest} run backwards"
        )
        return
    if frame.txnid_most_bits or frame.txnid_least_bits:
        transactions.publish(session, producer, frame, counted)
        return
    producer.topic.publish(producer, frame, counted)


def on_send_run(session: Session, run: SendRun) -> None:
    """Store consecutive entries; if one is faulty, handle them one by one to find it."""
    producer = session.producers.get(run.producer_id)
    if producer is not None and run.is_intact and not producer.is_closing:
        producer.topic.publish_run(producer, run)
        return
    for frame in run.frames():
        on_send(session, frame)


def on_close_producer(session: Session, command: pb.BaseCommand) -> None:
    """Close a producer; SUCCESS follows the receipts of its earlier entries."""
    body = command.close_producer
    producer_id, request_id = body.producer_id, body.request_id
    producer = session.producers.take(producer_id)
    if producer is None:
        session.answer("success", request_id=request_id)
        return
    closing = producer

    def drained() -> None:
        session.producers.closing.pop(closing, None)
        session.answer("success", request_id=request_id)
        closing.topic.remove_producer(closing)

    if closing.pending:
        session.producers.closing[closing] = None
        closing.on_drained = drained
    else:
        drained()
