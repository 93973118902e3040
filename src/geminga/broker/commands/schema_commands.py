"""Commands about schemas: GET_SCHEMA and GET_OR_CREATE_SCHEMA (framing.md section 11)."""

from geminga.broker.commands.permissions import check_registration, check_schema
from geminga.broker.commands.producing import when_loaded
from geminga.broker.commands.session import Session
from geminga.broker.rules.schemas import version_bytes
from geminga.broker.runtime.refusal import Refused, check_stored
from geminga.broker.topics.prefetch import schemas_of
from geminga.broker.topics.topic_registry import parse_topic
from geminga.errors import StoreError
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb

_SCHEMA, _CREATED = "getSchemaResponse", "getOrCreateSchemaResponse"


def on_get_schema(session: Session, command: pb.BaseCommand) -> None:
    """Answer with a version of a topic's schema, or the newest."""
    body = command.getSchema

    def at_hand(error: StoreError | None) -> None:
        with session.answering_refusals(body.request_id, _SCHEMA):
            check_stored(error)
            check_schema(session, body)
            _answer_schema(session, body, name)

    with session.answering_refusals(body.request_id, _SCHEMA):
        name = parse_topic(body.topic)
        if session.services.schemas.in_memory(name):
            at_hand(None)
        else:
            session.services.topics.bring(schemas_of(name), session.later(at_hand))


def _answer_schema(session: Session, body: pb.CommandGetSchema, name: TopicName) -> None:
    schemas = session.services.schemas
    if body.HasField("schema_version"):
        wanted = body.schema_version
        if len(wanted) != 8:
            raise Refused(
                pb.IncompatibleSchema, "Empty schema version" if not wanted else "Bad schema version"
            )
        version = int.from_bytes(wanted, "big")
        schema = schemas.get(name, version)
        found = None if schema is None else (version, schema)
    else:
        found = schemas.latest(name)
    if found is None:
        raise Refused(pb.TopicNotFound, f"Topic not found or no-schema {name}")
    version, schema = found
    session.answer(_SCHEMA, request_id=body.request_id, schema=schema, schema_version=version_bytes(version))


def on_get_or_create_schema(session: Session, command: pb.BaseCommand) -> None:
    """Answer with the version of a schema, registered if needed; Bytes (None) is not registered here."""
    body = command.getOrCreateSchema

    def loaded(error: StoreError | None) -> None:
        with session.answering_refusals(body.request_id, _CREATED):
            check_stored(error)
            check_registration(session, body)
            _find_or_create(session, body)

    when_loaded(session, body.topic, loaded, with_schema=True)


def _find_or_create(session: Session, body: pb.CommandGetOrCreateSchema) -> None:
    request_id = body.request_id
    schemas = session.services.schemas
    version, is_new = -1, False

    def durable(error: StoreError | None) -> None:
        with session.answering_refusals(request_id, _CREATED):
            check_stored(error)
            if is_new:
                session.services.audit.command(session.log_fields, "getOrCreateSchema", body.topic)
            session.answer(_CREATED, request_id=request_id, schema_version=version_bytes(version))

    name = parse_topic(body.topic)
    topic = session.services.topics.find(name)
    if topic is None:
        raise Refused(pb.TopicNotFound, f"Topic not found {name}")
    if body.schema.type == getattr(pb.Schema, "None"):
        session.answer(_CREATED, request_id=request_id, schema_version=b"")
        return
    done = session.scheduler.guarded("store", session, durable)
    version = schemas.find(name, body.schema)
    if version >= 0:
        schemas.when_durable(name, done)
        return
    version, is_new = len(schemas.versions(name)), True
    schemas.put(name, body.schema, auto_update=topic.policies.schema_auto_update, done=done)
