"""Commands of a connected client: each is declared once. Any other command closes the connection."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from geminga.broker.commands import (
    answers,
    consuming,
    lookup,
    permissions,
    producing,
    schema_commands,
    transactions,
)
from geminga.broker.commands.permissions import NoPermissionNeeded, Permission, guarded
from geminga.broker.commands.session import CommandTable, Handler, Session
from geminga.wire.proto import pulsar_wire_pb2 as pb

Command = pb.BaseCommand
HANDSHAKE, HANDLE, TRANSACTION, *_ = NoPermissionNeeded


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """Declaration of a command."""

    handler: Handler | None
    """Handler; None for SEND, whose frames have their own handlers in `TABLE`."""
    needs: Permission | NoPermissionNeeded
    """Permission that the command needs, or the reason why it needs none."""
    before_connect: bool = False
    """Whether the command is allowed before CONNECT is answered."""
    quick: bool = False
    """Whether it is handled even when a turn's time is used up: quiet peers do not wait for others."""
    calm: bool = False
    """Whether it writes nothing: a peer that sends only such commands is read from although the store is
    behind."""


def _on_ping(session: Session, command: pb.BaseCommand) -> None:
    session.output.write(answers.PONG)


def _on_pong(session: Session, command: pb.BaseCommand) -> None:
    return


_MAY_PRODUCE = Permission("producer", permissions.check_producer)
_MAY_SUBSCRIBE = Permission("subscribe", permissions.check_consumer)
_MAY_LIST = Permission("getTopicsOfNamespace", permissions.check_list)
_MAY_WATCH = Permission("watchTopicList", permissions.check_list)
_MAY_REGISTER_SCHEMA = Permission(
    "getOrCreateSchema", permissions.check_registration, "getOrCreateSchemaResponse"
)
_MAY_READ_SCHEMA = Permission("getSchema", permissions.check_schema, "getSchemaResponse")
_MAY_LOOK_UP = Permission("lookupTopic", permissions.check_lookup, "lookupTopicResponse")
_MAY_READ_PARTITIONS = Permission(
    "partitionMetadata", permissions.check_partitions, "partitionMetadataResponse"
)

COMMANDS: Final[Mapping[int, CommandSpec]] = {
    Command.CONNECT: CommandSpec(Session.connect, HANDSHAKE, before_connect=True),
    Command.AUTH_RESPONSE: CommandSpec(Session.respond, HANDSHAKE),
    Command.PING: CommandSpec(_on_ping, HANDSHAKE, before_connect=True, quick=True, calm=True),
    Command.PONG: CommandSpec(_on_pong, HANDSHAKE, before_connect=True, quick=True, calm=True),
    Command.PARTITIONED_METADATA: CommandSpec(lookup.on_partitioned_metadata, _MAY_READ_PARTITIONS),
    Command.LOOKUP: CommandSpec(lookup.on_lookup, _MAY_LOOK_UP),
    Command.GET_TOPICS_OF_NAMESPACE: CommandSpec(lookup.on_topics_of_namespace, _MAY_LIST),
    Command.WATCH_TOPIC_LIST: CommandSpec(lookup.on_watch, _MAY_WATCH),
    Command.WATCH_TOPIC_LIST_CLOSE: CommandSpec(lookup.on_watch_close, HANDLE),
    Command.PRODUCER: CommandSpec(producing.on_producer, _MAY_PRODUCE),
    Command.SEND: CommandSpec(None, HANDLE, quick=True),
    Command.CLOSE_PRODUCER: CommandSpec(producing.on_close_producer, HANDLE),
    Command.SUBSCRIBE: CommandSpec(consuming.on_subscribe, _MAY_SUBSCRIBE),
    Command.FLOW: CommandSpec(consuming.on_flow, HANDLE, quick=True),
    Command.ACK: CommandSpec(consuming.on_ack, HANDLE, quick=True),
    Command.REDELIVER_UNACKNOWLEDGED_MESSAGES: CommandSpec(consuming.on_redeliver, HANDLE),
    Command.UNSUBSCRIBE: CommandSpec(consuming.on_unsubscribe, HANDLE),
    Command.SEEK: CommandSpec(consuming.on_seek, HANDLE),
    Command.GET_LAST_MESSAGE_ID: CommandSpec(consuming.on_last_message_id, HANDLE),
    Command.CONSUMER_STATS: CommandSpec(consuming.on_consumer_stats, HANDLE),
    Command.CLOSE_CONSUMER: CommandSpec(consuming.on_close_consumer, HANDLE),
    Command.GET_SCHEMA: CommandSpec(schema_commands.on_get_schema, _MAY_READ_SCHEMA),
    Command.GET_OR_CREATE_SCHEMA: CommandSpec(schema_commands.on_get_or_create_schema, _MAY_REGISTER_SCHEMA),
    Command.TC_CLIENT_CONNECT_REQUEST: CommandSpec(transactions.on_connect, TRANSACTION),
    Command.NEW_TXN: CommandSpec(transactions.on_begin, TRANSACTION),
    Command.ADD_PARTITION_TO_TXN: CommandSpec(transactions.on_add, TRANSACTION),
    Command.ADD_SUBSCRIPTION_TO_TXN: CommandSpec(transactions.on_add, TRANSACTION),
    Command.END_TXN: CommandSpec(transactions.on_end, TRANSACTION),
    Command.END_TXN_ON_PARTITION: CommandSpec(transactions.on_internal, NoPermissionNeeded.REFUSED),
    Command.END_TXN_ON_SUBSCRIPTION: CommandSpec(transactions.on_internal, NoPermissionNeeded.REFUSED),
}
"""Declaration of every command of clients."""


def _handlers() -> Iterator[tuple[int, Handler]]:
    for kind, spec in COMMANDS.items():
        if spec.handler is not None:
            needs, handler = spec.needs, spec.handler
            yield kind, handler if isinstance(needs, NoPermissionNeeded) else guarded(needs, handler)


def _kinds(field: str) -> frozenset[int]:
    """Return the commands that have a flag of `CommandSpec`."""
    return frozenset(kind for kind, spec in COMMANDS.items() if getattr(spec, field))


TABLE: Final = CommandTable(
    on_send=producing.on_send,
    on_send_run=producing.on_send_run,
    handlers=dict(_handlers()),
    before_connect=_kinds("before_connect"),
    quick=_kinds("quick"),
    calm=_kinds("calm"),
)
