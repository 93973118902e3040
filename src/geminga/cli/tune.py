"""``geminga tune``: settings for a topic's producers, and the proof that they pay."""

from __future__ import annotations

import click

from geminga.cli.common import LazyGroup

COMMANDS = {
    "advise": ("geminga.cli.tune_advise", "Settings for a topic's traffic, with reasons and warnings."),
    "fleet": ("geminga.cli.tune_fleet", "Settings for every topic of a cluster, and what they save."),
    "prove": ("geminga.cli.tune_prove", "What they save, measured on a real broker."),
}
"""Name of each sub-command: its module (which holds a ``command``) and its line in the help."""


@click.group("tune", cls=LazyGroup, commands_by_name=COMMANDS)
def command() -> None:
    """Producer settings: advised, measured and proven."""
