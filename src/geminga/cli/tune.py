"""``geminga tune``: advice for producer settings, and measurements of their effect."""

import click

from geminga.cli.common import LazyGroup

COMMANDS = {
    "advise": "Advise settings for a topic's traffic, with reasons and warnings.",
    "capacity": "Find the highest rate that a broker keeps within the latency budget, stock and advised.",
    "fleet": "Advise settings for all topics of a cluster, with the savings.",
    "prove": "Measure on a broker what the advised settings save.",
}
"""Help line of each sub-command."""


@click.group("tune", cls=LazyGroup, sections={"Commands": COMMANDS}, modules="geminga.cli.tune_")
def command() -> None:
    """Advise, measure and compare producer settings."""
