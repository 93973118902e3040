"""``geminga dashboard``: dashboards of a broker's metrics, as files."""

from importlib.resources import files

import click

from geminga.cli.common import Commands


@click.group("dashboard", cls=Commands)
def command() -> None:
    """Print dashboards of a broker's metrics, as files for other programs."""


@command.command("grafana")
def grafana() -> None:
    """Print a Grafana dashboard of the broker's metrics, which Prometheus scrapes from /metrics.

    Import it, or write it to Grafana's provisioning folder: geminga dashboard grafana > geminga.json
    """
    click.echo((files("geminga.console") / "dashboards/grafana.json").read_text(), nl=False)


@command.command("alerts")
def alerts() -> None:
    """Print alert rules for Prometheus, as a file.

    Name it among the rule_files of prometheus.yml: geminga dashboard alerts > geminga-alerts.json
    """
    click.echo((files("geminga.console") / "dashboards/alerts.json").read_text(), nl=False)
