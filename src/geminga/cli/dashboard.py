"""``geminga dashboard``: dashboards of a broker's metrics, as files."""

from __future__ import annotations

import click


@click.group("dashboard")
def command() -> None:
    """Dashboards of a broker's metrics for other programs, as files."""


@command.command("grafana")
def grafana() -> None:
    """Print a dashboard for Grafana, which reads from Prometheus what a broker tells under /metrics.

    Import it, or put it where Grafana's provisioning looks: geminga dashboard grafana > geminga.json
    """
    from geminga.console import grafana

    click.echo(grafana.text(), nl=False)
