"""``geminga explain``: why a consumer is stuck, on one screen, with what mends it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from geminga.cli.common import admin_url_option, emit, json_option
from geminga.client.admin import admin, topic_path
from geminga.ids import TopicName

QUIET_SHOWN_MAX = 3
"""Partitions of a topic on which nothing is wrong and that are named one by one."""


@click.command("explain")
@click.argument("topic")
@click.argument("subscription")
@admin_url_option
@json_option
def command(topic: str, subscription: str, admin_url: str, as_json: bool) -> None:
    """Say why SUBSCRIPTION does not receive the messages of TOPIC, and what mends it."""
    name = TopicName.parse(topic)
    path = f"{topic_path(name)}/subscription/{quote(subscription, safe='')}/explain"
    quiet = 0
    for found in admin(admin_url, "GET", path):
        if not as_json and not found["findings"]:
            quiet += 1
            if quiet > QUIET_SHOWN_MAX:
                continue
        emit(found, as_json=as_json, text=as_text(found))
    if quiet > QUIET_SHOWN_MAX:
        click.echo(f"({quiet - QUIET_SHOWN_MAX} more partitions with nothing to say)")


def as_text(found: dict[str, Any]) -> str:
    """One subscription for people."""
    facts = found["facts"]
    count = facts["consumers"]
    consumers = f"{count} {facts['type']} consumer{'s' if count > 1 else ''}" if count else "no consumers"
    lines = [
        f"{found['topic']}  {found['subscription']}: {found['summary']}",
        f"  {consumers}; {_backlog(facts)}",
        f"  oldest open message {facts['oldestOpenMessage']}, read up to {facts['readPosition']}, "
        f"{facts['entriesNotReadYet']} entries not read yet",
    ]
    if facts["redeliverUnackedAfterSeconds"]:
        lines.append(
            f"  unacknowledged messages are pushed again after {facts['redeliverUnackedAfterSeconds']:g} s: "
            f"{facts['messagesPushedAgain']} so far"
        )
    for finding in found["findings"]:
        lines.append(f"{'!' if finding['stops'] else '-'} {finding['kind']}: {finding['text']}")
        if finding["mend"]:
            lines.append(f"    {finding['mend']}")
    return "\n".join(lines)


def _backlog(facts: dict[str, Any]) -> str:
    if facts["messagesInBacklog"] < 0:
        return f"a backlog of {facts['entriesInBacklog']} entries"
    text = f"a backlog of {facts['messagesInBacklog']} messages, {facts['bytesInBacklog']} bytes"
    if facts["oldestBacklogMessageAgeSeconds"] >= 0:
        text += f", the oldest {facts['oldestBacklogMessageAgeSeconds']} s old"
    return text + f", {facts['ackHoles']} ack holes"
