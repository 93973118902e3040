"""Commands of a connected client and their handlers. Any other command closes the connection."""

from __future__ import annotations

from geminga.broker.commands import answers, consuming, lookup, producing, schema_commands
from geminga.broker.commands.session import CommandTable, Handler, Session
from geminga.broker.refusal import Refused
from geminga.wire.proto import pulsar_wire_pb2 as pb

Command = pb.BaseCommand


def _on_ping(session: Session, command: pb.BaseCommand) -> None:
    session.output.write(answers.PONG)


def _on_pong(session: Session, command: pb.BaseCommand) -> None:
    return


def _on_transaction(session: Session, command: pb.BaseCommand) -> None:
    """Refuse requests about transactions, which this broker does not have."""
    body = getattr(command, TRANSACTION_BODIES[command.type])
    session.refuse(body.request_id, Refused(pb.NotAllowedError, "Transactions are not enabled."))


TRANSACTION_BODIES = {
    Command.TC_CLIENT_CONNECT_REQUEST: "tcClientConnectRequest",
    Command.NEW_TXN: "newTxn",
    Command.ADD_PARTITION_TO_TXN: "addPartitionToTxn",
    Command.ADD_SUBSCRIPTION_TO_TXN: "addSubscriptionToTxn",
    Command.END_TXN: "endTxn",
    Command.END_TXN_ON_PARTITION: "endTxnOnPartition",
    Command.END_TXN_ON_SUBSCRIPTION: "endTxnOnSubscription",
}

HANDLERS: dict[int, Handler] = {
    Command.CONNECT: Session.connect,
    Command.AUTH_RESPONSE: Session.respond,
    Command.PING: _on_ping,
    Command.PONG: _on_pong,
    Command.PARTITIONED_METADATA: lookup.on_partitioned_metadata,
    Command.LOOKUP: lookup.on_lookup,
    Command.GET_TOPICS_OF_NAMESPACE: lookup.on_topics_of_namespace,
    Command.WATCH_TOPIC_LIST: lookup.on_watch,
    Command.WATCH_TOPIC_LIST_CLOSE: lookup.on_watch_close,
    Command.PRODUCER: producing.on_producer,
    Command.CLOSE_PRODUCER: producing.on_close_producer,
    Command.SUBSCRIBE: consuming.on_subscribe,
    Command.FLOW: consuming.on_flow,
    Command.ACK: consuming.on_ack,
    Command.REDELIVER_UNACKNOWLEDGED_MESSAGES: consuming.on_redeliver,
    Command.UNSUBSCRIBE: consuming.on_unsubscribe,
    Command.SEEK: consuming.on_seek,
    Command.GET_LAST_MESSAGE_ID: consuming.on_last_message_id,
    Command.CONSUMER_STATS: consuming.on_consumer_stats,
    Command.CLOSE_CONSUMER: consuming.on_close_consumer,
    Command.GET_SCHEMA: schema_commands.on_get_schema,
    Command.GET_OR_CREATE_SCHEMA: schema_commands.on_get_or_create_schema,
    **dict.fromkeys(TRANSACTION_BODIES, _on_transaction),
}

TABLE = CommandTable(
    on_send=producing.on_send,
    on_send_run=producing.on_send_run,
    on_single_ack=consuming.on_single_ack,
    handlers=HANDLERS,
)
