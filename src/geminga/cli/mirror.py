"""``geminga mirror``: copy topics with schemas and subscriptions to another cluster, continuously."""

import json
import sys
from typing import Any

import click

from geminga.cli.common import WordChoice, json_option, say, show_warnings, wants_json
from geminga.cli.connecting import ConnectingCommand, cluster_of_side, side_options
from geminga.cli.units import SIZE_IN_MIB

_REASONS_AT_ONCE = 10


@click.command("mirror", cls=ConnectingCommand)
@click.option(
    "--topics", multiple=True, required=True, metavar="PATTERN",
    help="[tenant/namespace/]topic, each part a regular expression; may be repeated.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Exit when the messages present at the start are mirrored.")
@click.option("--name", metavar="NAME", help="Name of this mirror.  [default: the source cluster's name]")
@click.option("--from-name", "source_name", metavar="NAME", help="The source cluster's name.")
@click.option(
    "--to-name", "target_name", metavar="NAME",
    help="The target cluster's name, for --forward.  [default: from the cluster]",
)  # fmt: skip
@click.option(
    "--forward", is_flag=True,
    help="Copy also messages of other clusters in the source, except those mirrored from the target.",
)  # fmt: skip
@click.option(
    "--no-subscriptions", "subscriptions", flag_value=False, default=True, help="Do not mirror subscriptions."
)
@click.option(
    "--no-policies", "policies", flag_value=False, default=True,
    help="Do not copy policies to newly created namespaces and topics.",
)  # fmt: skip
@click.option(
    "--on-mismatch", type=WordChoice(("stop", "continue", "restart")), default="stop", show_default=True,
    help="Action if the recorded progress does not fit source and target.",
)  # fmt: skip
@click.option(
    "--memory", "memory_bytes", type=SIZE_IN_MIB, default="256M", show_default=True,
    help="Memory for messages in flight; a plain number is in MiB.",
)  # fmt: skip
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Loopback port of Prometheus' /metrics.")
@json_option
@side_options("from", "to read")
@side_options("to", "to write")
def command(**given: Any) -> int:
    """Copy messages, schemas and subscriptions of topics to another cluster, continuously.

    Runs until Ctrl-C or SIGTERM. A restart resumes at the position recorded in the target. New topics and
    partitions are included.

    A message is copied only from the cluster where it was published (as in geo-replication), so mirrors may
    connect any clusters in both directions. In a chain A to B to C, the messages of A reach C only with a
    mirror from A to C, or with --forward on the second mirror.
    """
    import logging

    from geminga.mirror.mirror import Mirror
    from geminga.mirror.patterns import MirrorPattern
    from geminga.mirror.settings import MirrorSettings
    from geminga.mirror.status import MirrorStatus

    as_json = wants_json()
    source, target = cluster_of_side("from", given), cluster_of_side("to", given)
    settings = MirrorSettings(source=source, target=target, **given)
    show_warnings()
    if settings.target_name is not None and not settings.forward:
        say("geminga: --to-name has no effect without --forward: every message of another cluster is skipped")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.ERROR)
    is_terminal = sys.stderr.isatty()
    start, said = "\r\x1b[K" if is_terminal else "", set[str]()

    def print_reasons(status: MirrorStatus) -> None:
        """Print why topics are not mirrored, each reason once per outage, and the end of the outage."""
        reasons = dict.fromkeys([*status.warnings, *(one.error for one in status.partitions if one.error)])
        new = [reason for reason in reasons if reason not in said]
        for reason in new[:_REASONS_AT_ONCE]:
            say(f"{start}geminga: {reason}")
        if more := len(new[_REASONS_AT_ONCE:]):
            say(f"{start}geminga: and {more} more")
        if said - reasons.keys() and not any(one.error for one in status.partitions):
            say(f"{start}geminga: all topics are mirrored again")
        said.clear()
        said.update(reasons)

    def show(status: MirrorStatus) -> None:
        if as_json:
            click.echo(json.dumps(status.as_dict(), separators=(",", ":")))
            return
        print_reasons(status)
        if is_terminal:
            say(f"{start}{status.line()}", nl=False)

    status = Mirror(settings, show).run()
    if not as_json:
        say(f"{start}{status.line()}")
    for reason in status.failed:
        say(f"geminga: {reason}")
    for text in status.unmatched:
        say(f"geminga: --topics {text!r} matches no topic of the source")
    if settings.once:
        is_missing = any(MirrorPattern.parse(text).is_plain for text in status.unmatched)
        return 0 if status.caught_up and not is_missing else 1
    return 1 if status.failed else 0
