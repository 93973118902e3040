"""``geminga dashboard``: dashboards of a broker's metrics, as files."""

from __future__ import annotations

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
    from geminga.console import grafana

    click.echo(grafana.text(), nl=False)


@command.command("alerts")
def alerts() -> None:
    """Print alert rules for Prometheus, as a file.

    Name it among the rule_files of prometheus.yml: geminga dashboard alerts > geminga-alerts.json
    """
    from geminga.console import alerts

    click.echo(alerts.text(), nl=False)
