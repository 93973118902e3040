"""``geminga tune advise``: settings for a topic's traffic."""

from __future__ import annotations

import click

from geminga.cli.common import Number
from geminga.tuning.formula import formula
from geminga.tuning.traffic import TrafficProfile


@click.command("advise")
@click.option("--rate", type=Number(0.001), required=True, help="Messages a second, all producers together.")
@click.option("--message-bytes", type=Number(1), required=True, help="Payload of a message, on the mean.")
@click.option("--partitions", type=click.IntRange(1), default=1, show_default=True)
@click.option("--producers", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--latency-budget",
    type=Number(2),
    default=50,
    show_default=True,
    help="Milliseconds that 99 of 100 messages may take from send to the consumer.",
)
def command(
    rate: float, message_bytes: float, partitions: int, producers: int, latency_budget: float
) -> None:
    """Settings for the producers of a topic."""
    profile = TrafficProfile(
        rate_messages_per_second=rate, message_bytes=message_bytes, partitions=partitions,
        producers=producers, latency_budget_seconds=latency_budget / 1000,
    )  # fmt: skip
    found = formula(profile)
    for choice in found.choices:
        click.echo(f"{choice.field} = {choice.value} {choice.unit}")
        click.echo(f"    {choice.rule}: {choice.why}")
