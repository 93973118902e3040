"""``geminga namespaces``: namespaces, their policies and permissions."""

import click

from geminga.cli.common import Commands, confirm, emit, yes_option
from geminga.cli.connecting import operation
from geminga.cli.policies import add_permission_commands, add_policy_commands
from geminga.cli.tables import TableColumn, print_rows
from geminga.client.admin.sync import Namespaces
from geminga.client.cluster import Cluster

_NAMES = (TableColumn("namespace", "namespace"),)
namespace_argument = click.argument("namespace", metavar="TENANT/NAMESPACE")


@click.group("namespaces", cls=Commands)
def command() -> None:
    """List, create, delete and configure namespaces."""


@operation(command, "list")
@click.argument("tenant", required=False)
def list_namespaces(tenant: str | None, cluster: Cluster) -> None:
    """List the namespaces of TENANT, or of all tenants."""
    admin = cluster.admin()
    tenants = [tenant] if tenant is not None else admin.tenants.list()
    rows = [{"namespace": name} for each in tenants for name in admin.namespaces.list(each)]
    print_rows(rows, _NAMES)


@operation(command, "create", namespace_argument)
@click.option("--bundles", type=click.IntRange(1), help="Number of bundles: the units that brokers share.")
def create(namespace: str, bundles: int | None, cluster: Cluster) -> None:
    """Create a namespace."""
    cluster.admin().namespaces.create(namespace, bundles=bundles)
    emit({"namespace": namespace, "created": True}, f"created {namespace}")


@operation(command, "delete", namespace_argument)
@click.option("--force", is_flag=True, help="Delete its topics and messages too.")
@yes_option
def delete(namespace: str, force: bool, cluster: Cluster) -> None:
    """Delete a namespace."""
    confirm(f"Delete {namespace}{' with all topics and messages' if force else ''}?")
    cluster.admin().namespaces.delete(namespace, force=force)
    emit({"namespace": namespace, "deleted": True}, f"deleted {namespace}")


@operation(command, "unload", namespace_argument)
def unload(namespace: str, cluster: Cluster) -> None:
    """Close every topic of a namespace: clients reconnect, and a cluster may move the topics."""
    cluster.admin().namespaces.unload(namespace)
    emit({"namespace": namespace, "unloaded": True}, f"unloaded {namespace}")


@operation(command, "clear-backlog", namespace_argument)
@click.option("--subscription", "-s", help="Only subscriptions of this name.  [default: all]")
@yes_option
def clear_backlog(namespace: str, subscription: str | None, cluster: Cluster) -> None:
    """Acknowledge the backlog of all topics of a namespace."""
    which = f"subscriptions {subscription!r}" if subscription else "all subscriptions"
    confirm(f"Skip the backlog of {which} of {namespace}?")
    cluster.admin().namespaces.clear_backlog(namespace, subscription=subscription)
    emit({"namespace": namespace, "cleared": True}, f"cleared {namespace}")


add_permission_commands(command, "namespaces", click.argument("resource", metavar="TENANT/NAMESPACE"))
add_policy_commands(command, "namespaces", "TENANT/NAMESPACE", Namespaces)
