"""``geminga health``: check that a broker is alive and accepts messages, for containers and scripts."""

import contextlib

import click

from geminga.cli.common import SECONDS, emit, json_option
from geminga.cli.connecting import ConnectingCommand, connecting
from geminga.client.cluster import Cluster
from geminga.errors import AdminNotFound


@click.command("health", cls=ConnectingCommand)
@click.option("--live", is_flag=True, help="Check that broker and store work, not the disk's space.")
@click.option(
    "--timeout", "seconds", type=SECONDS, default="5s", show_default=True,
    help="Seconds to wait for a response.",
)  # fmt: skip
@connecting
@json_option
def command(live: bool, seconds: float, cluster: Cluster) -> None:
    """Exit with 0 if the broker accepts messages, else print the reason and exit with 1.

    A broker is not ready if it does not answer, its store has stopped, or its disk is full. Apache Pulsar
    runs its own health check.
    """
    with cluster.admin(operation_timeout_seconds=seconds, retries=0) as admin:
        try:
            (admin.brokers.check_live if live else admin.brokers.check_ready)()
        except AdminNotFound:
            admin.brokers.check_health()
    found = "alive" if live else "ready"
    with contextlib.suppress(OSError):  # output that cannot be written says nothing about the broker
        emit({"broker": cluster.admin_url, "status": found}, found)
