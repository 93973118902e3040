"""``geminga namespaces``: namespaces, their policies and permissions."""

from __future__ import annotations

import click

from geminga.cli.common import Commands, confirm, emit, json_option, yes_option
from geminga.cli.connecting import ConnectingCommand, connecting
from geminga.cli.policies import add_policy_commands
from geminga.cli.tables import TableColumn, print_rows
from geminga.client.admin.sync.namespaces import ACTIONS, Namespaces
from geminga.client.cluster import Cluster

_NAMES = (TableColumn("namespace", "namespace"),)
namespace_argument = click.argument("namespace", metavar="TENANT/NAMESPACE")


@click.group("namespaces", cls=Commands)
def command() -> None:
    """List, create, delete and configure namespaces."""


@command.command("list", cls=ConnectingCommand)
@click.argument("tenant", required=False)
@connecting
@json_option
def list_namespaces(tenant: str | None, cluster: Cluster, as_json: bool) -> None:
    """List the namespaces of TENANT, or of all tenants."""
    admin = cluster.admin()
    tenants = [tenant] if tenant is not None else admin.tenants.list()
    rows = [{"namespace": name} for each in tenants for name in admin.namespaces.list(each)]
    print_rows(rows, _NAMES, as_json=as_json)


@command.command("create", cls=ConnectingCommand)
@namespace_argument
@click.option("--bundles", type=click.IntRange(1), help="Number of bundles: the units that brokers share.")
@connecting
@json_option
def create(namespace: str, bundles: int | None, cluster: Cluster, as_json: bool) -> None:
    """Create a namespace."""
    cluster.admin().namespaces.create(namespace, bundles=bundles)
    emit({"namespace": namespace, "created": True}, as_json=as_json, text=f"created {namespace}")


@command.command("delete", cls=ConnectingCommand)
@namespace_argument
@click.option("--force", is_flag=True, help="Delete its topics and messages too.")
@yes_option
@connecting
@json_option
def delete(namespace: str, force: bool, yes: bool, cluster: Cluster, as_json: bool) -> None:
    """Delete a namespace."""
    confirm(f"Delete {namespace}{' with all topics and messages' if force else ''}?", yes=yes)
    cluster.admin().namespaces.delete(namespace, force=force)
    emit({"namespace": namespace, "deleted": True}, as_json=as_json, text=f"deleted {namespace}")


@command.command("unload", cls=ConnectingCommand)
@namespace_argument
@connecting
@json_option
def unload(namespace: str, cluster: Cluster, as_json: bool) -> None:
    """Close every topic of a namespace: clients reconnect, and a cluster may move the topics."""
    cluster.admin().namespaces.unload(namespace)
    emit({"namespace": namespace, "unloaded": True}, as_json=as_json, text=f"unloaded {namespace}")


@command.command("clear-backlog", cls=ConnectingCommand)
@namespace_argument
@click.option("--subscription", "-s", help="Only subscriptions of this name.  [default: all]")
@yes_option
@connecting
@json_option
def clear_backlog(
    namespace: str, subscription: str | None, yes: bool, cluster: Cluster, as_json: bool
) -> None:
    """Acknowledge the backlog of all topics of a namespace."""
    which = f"subscriptions {subscription!r}" if subscription else "all subscriptions"
    confirm(f"Skip the backlog of {which} of {namespace}?", yes=yes)
    cluster.admin().namespaces.clear_backlog(namespace, subscription=subscription)
    emit({"namespace": namespace, "cleared": True}, as_json=as_json, text=f"cleared {namespace}")


@command.command("permissions", cls=ConnectingCommand)
@namespace_argument
@connecting
@json_option
def permissions(namespace: str, cluster: Cluster, as_json: bool) -> None:
    """List the permissions of each role in a namespace."""
    found = cluster.admin().namespaces.permissions(namespace)
    rows = [{"role": role, "actions": list(actions)} for role, actions in sorted(found.items())]
    print_rows(
        rows, (TableColumn("role", "role"), TableColumn("actions", "actions", ", ".join)), as_json=as_json
    )


@command.command("grant", cls=ConnectingCommand)
@namespace_argument
@click.argument("role")
@click.argument("actions", nargs=-1, required=True, type=click.Choice(ACTIONS))
@connecting
@json_option
def grant(namespace: str, role: str, actions: tuple[str, ...], cluster: Cluster, as_json: bool) -> None:
    """Allow ROLE these ACTIONS in a namespace, replacing its earlier permissions there."""
    cluster.admin().namespaces.grant(namespace, role, actions)
    text = f"{role} may {', '.join(actions)} in {namespace}"
    emit({"namespace": namespace, "role": role, "actions": actions}, as_json=as_json, text=text)


@command.command("revoke", cls=ConnectingCommand)
@namespace_argument
@click.argument("role")
@connecting
@json_option
def revoke(namespace: str, role: str, cluster: Cluster, as_json: bool) -> None:
    """Revoke all permissions of ROLE in a namespace."""
    cluster.admin().namespaces.revoke(namespace, role)
    emit({"namespace": namespace, "role": role, "actions": []}, as_json=as_json, text=f"{role} may nothing")


add_policy_commands(command, "namespaces", "TENANT/NAMESPACE", Namespaces)
