"""``geminga health``: is a broker alive, and does it take messages? For containers and scripts."""

from __future__ import annotations

import click

from geminga.cli.common import emit, json_option
from geminga.cli.connecting import ConnectingCommand, connecting
from geminga.client.cluster import Cluster
from geminga.errors import AdminNotFound


@click.command("health", cls=ConnectingCommand)
@click.option("--live", is_flag=True, help="Only whether it answers and its store works; not the disk.")
@click.option(
    "--timeout", "seconds", type=click.FloatRange(min=0.1), default=5.0, show_default=True,
    help="Seconds to wait for the answer.",
)  # fmt: skip
@connecting
@json_option
def command(live: bool, seconds: float, cluster: Cluster, as_json: bool) -> None:
    """Exit with 0 if the broker is ready to take messages, with 1 and the reason if it is not.

    Not ready: the broker does not answer, its store has stopped, or its disk is full. With Apache Pulsar
    the broker runs its own health check.
    """
    with cluster.admin(operation_timeout_seconds=seconds, retries=0) as admin:
        try:
            (admin.brokers.check_live if live else admin.brokers.check_ready)()
        except AdminNotFound:
            admin.brokers.check_health()
    found = "alive" if live else "ready"
    emit({"broker": cluster.admin_url, "status": found}, as_json=as_json, text=found)
