"""``geminga explain``: why messages are not delivered, on one screen, with advice."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import click

from geminga.cli.common import emit, how_many, json_option
from geminga.cli.connecting import ConnectingCommand, connecting
from geminga.client.admin.types import Explanation
from geminga.client.cluster import Cluster
from geminga.diagnosis.conclude import Trouble

QUIET_SHOWN_MAX = 3
"""Partitions of a topic on which nothing is wrong and that are named one by one."""


@click.command("explain", cls=ConnectingCommand)
@click.argument("topic")
@click.argument("subscription")
@connecting
@json_option
def command(topic: str, subscription: str, cluster: Cluster, as_json: bool) -> None:
    """Show why SUBSCRIPTION does not receive the messages of TOPIC, with advice.

    For an Apache Pulsar the conclusion is drawn from its statistics, which report less.
    """
    quiet = 0
    for found in cluster.admin().subscriptions.explain(topic, subscription):
        if not as_json and not found.findings:
            quiet += 1
            if quiet > QUIET_SHOWN_MAX:
                continue
        emit(dataclasses.asdict(found), as_json=as_json, text=as_text(found))
    if quiet > QUIET_SHOWN_MAX:
        click.echo(f"({quiet - QUIET_SHOWN_MAX} more partitions with nothing to say)")


def as_text(found: Explanation) -> str:
    """One subscription for people."""
    facts = found.facts
    count = facts["consumers"]
    consumers = f"{count} {facts['type']} consumer{'s' if count > 1 else ''}" if count else "no consumers"
    unread = facts.get("entriesNotReadYet")
    lines = [
        f"{found.topic}  {found.subscription}: {found.summary}",
        f"  {consumers}; {_backlog(facts)}",
        f"  oldest open message {facts['oldestOpenMessage']}, read up to {facts['readPosition']}"
        + (f", {unread} {'entry' if unread == 1 else 'entries'} not read yet" if unread is not None else ""),
    ]
    if facts.get("redeliverUnackedAfterSeconds"):
        lines.append(
            f"  unacknowledged messages are pushed again after {facts['redeliverUnackedAfterSeconds']:g} s: "
            f"{facts['messagesPushedAgain']} so far"
        )
    for finding in found.findings:
        color = "red" if finding.level >= Trouble.STOPPED else "yellow"
        mark = click.style("!", fg=color, bold=True) if finding.stops else "-"
        lines.append(f"{mark} {finding.kind}: {finding.text}")
        for each in finding.advice:
            lines.append(f"    {each.text}: {each.command}" if each.command else f"    {each.text}")
    return "\n".join(lines)


def _backlog(facts: Mapping[str, Any]) -> str:
    if facts["messagesInBacklog"] < 0:
        return f"a backlog of {facts['entriesInBacklog']} entries"
    text = f"a backlog of {how_many(facts['messagesInBacklog'])}, {facts['bytesInBacklog']} bytes"
    if facts["oldestBacklogMessageAgeSeconds"] >= 0:
        text += f", the oldest {facts['oldestBacklogMessageAgeSeconds']} s old"
    return text + f", {facts['ackHoles']} ack holes"
