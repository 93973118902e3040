"""``geminga tail``: print a topic's messages as they are published."""

import datetime as dt

import click

from geminga.cli.common import json_option, show_warnings
from geminga.cli.connecting import ConnectingCommand, check_exists, connecting
from geminga.cli.consume import open_reader, print_messages, schema_arguments
from geminga.cli.peek import PrintFilter, decode_option, filter_options
from geminga.cli.units import SPAN, WHERE, Where
from geminga.client.cluster import Cluster
from geminga.ids import MessageId


@click.command("tail", cls=ConnectingCommand)
@click.argument("topic")
@click.option(
    "--since", "--from", "where", type=WHERE, metavar="WHERE", default=MessageId.latest,
    help="Start: '10m ago', a time, earliest or LEDGER:ENTRY.  [default: now]",
)  # fmt: skip
@click.option("--count", "-n", type=click.IntRange(1), help="Stop after this many messages.")
@filter_options
@decode_option
@click.option("--for", "span", type=SPAN, metavar="TIME", help="Stop after this time.  [default: at Ctrl-C]")
@connecting
@json_option
def command(
    topic: str,
    where: Where,
    count: int | None,
    only: PrintFilter,
    decode: bool,
    span: dt.timedelta | None,
    cluster: Cluster,
) -> None:
    """Print new messages of TOPIC as they are published, one per line, until Ctrl-C.

    Uses a reader: creates no durable subscription and acknowledges nothing.
    """
    show_warnings()
    seconds = None if span is None else span.total_seconds()
    with cluster.client() as client:
        check_exists(client, topic)
        reader = open_reader(client, topic, where, **schema_arguments(decode))
        print_messages(reader.read_next, only, count, idle_ms=None, seconds=seconds, decode=decode)
