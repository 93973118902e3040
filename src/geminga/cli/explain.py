"""``geminga explain``: why messages are not delivered, on one screen, with advice."""

from dataclasses import asdict, replace

import click

from geminga.cli.common import emit, json_option, wants_json
from geminga.cli.connecting import ConnectingCommand, as_pasted, connecting
from geminga.cli.units import backlog
from geminga.client.admin.types import Explanation, Finding
from geminga.client.cluster import Cluster
from geminga.diagnosis.commands import how_many
from geminga.diagnosis.conclude import Trouble, in_one_text

_BACKLOG = (
    "messagesInBacklog", "entriesInBacklog", "bytesInBacklog", "oldestBacklogMessageAgeSeconds", "ackHoles",
)  # fmt: skip
QUIET_SHOWN_MAX = 3
"""Partitions without findings that are printed one by one."""


@click.command("explain", cls=ConnectingCommand)
@click.argument("topic")
@click.argument("subscription", required=False)
@connecting
@json_option
def command(topic: str, subscription: str | None, cluster: Cluster) -> None:
    """Show why SUBSCRIPTION, by default each one, does not receive the messages of TOPIC, with advice.

    For Apache Pulsar the explanation uses its statistics, which hold less detail.
    """
    admin, quiet = cluster.admin(), 0
    names = [subscription] if subscription is not None else sorted(admin.topics.stats(topic).subscriptions)
    if not names and not wants_json():
        click.echo(f"{topic} has no subscription: its messages are stored only as long as retention says")
    for found in (one for name in names for one in admin.subscriptions.explain(topic, name)):
        if not wants_json() and not found.findings:
            quiet += 1
            if quiet > QUIET_SHOWN_MAX:
                continue
        found = replace(found, findings=tuple(map(_with_options, found.findings)))
        emit(asdict(found), as_text(found))
    if quiet > QUIET_SHOWN_MAX:
        click.echo(f"({quiet - QUIET_SHOWN_MAX} more partitions without findings)")


def _with_options(finding: Finding) -> Finding:
    """Return a finding whose commands have the connection options in use."""
    advice = tuple(replace(each, command=as_pasted(each.command)) for each in finding.advice)
    return replace(finding, advice=advice, mend=in_one_text((each.text, each.command) for each in advice))


def as_text(found: Explanation) -> str:
    """Return a subscription's explanation as text."""
    facts = found.facts
    count = facts["consumers"]
    consumers = how_many(count, f"{facts['type']} consumer") if count else "no consumers"
    unread = facts.get("entriesNotReadYet")
    lines = [
        f"{found.topic}  {found.subscription}: {found.summary}",
        f"  {consumers}; a backlog of {backlog(*(facts[name] for name in _BACKLOG))}",
        f"  oldest open message {facts['oldestOpenMessage']}, read up to {facts['readPosition']}"
        + (f", {how_many(unread, 'entry')} not read yet" if unread is not None else ""),
    ]
    if facts.get("redeliverUnackedAfterSeconds"):
        lines.append(
            f"  unacknowledged messages are redelivered after {facts['redeliverUnackedAfterSeconds']:g} s: "
            f"{facts['messagesPushedAgain']:,} so far"
        )
    for finding in found.findings:
        color = "red" if finding.level >= Trouble.STOPPED else "yellow"
        mark = click.style("!", fg=color, bold=True) if finding.stops else "-"
        lines.append(f"{mark} {finding.kind}: {finding.text}")
        for each in finding.advice:
            lines.append(f"    {each.text}: {each.command}" if each.command else f"    {each.text}")
    return "\n".join(lines)
