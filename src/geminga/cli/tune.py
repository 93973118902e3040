"""``geminga tune``: advice for producer settings, and measurements of their effect."""

from __future__ import annotations

import click

from geminga.cli.common import LazyGroup

COMMANDS = {
    "advise": (
        "geminga.cli.tune_advise",
        "Advise settings for a topic's traffic, with reasons and warnings.",
    ),
    "capacity": (
        "geminga.cli.tune_capacity",
        "Find the highest rate that a broker keeps within the latency budget, before and after.",
    ),
    "fleet": ("geminga.cli.tune_fleet", "Advise settings for all topics of a cluster, with the savings."),
    "prove": ("geminga.cli.tune_prove", "Measure on a broker what the advised settings save."),
}
"""Name of each sub-command: its module (which holds a ``command``) and its line in the help."""


@click.group("tune", cls=LazyGroup, sections={"Commands": COMMANDS})
def command() -> None:
    """Advise, measure and compare producer settings."""
