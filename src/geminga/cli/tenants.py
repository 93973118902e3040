"""``geminga tenants``: tenants."""

import click

from geminga.cli.common import Commands, confirm, emit, yes_option
from geminga.cli.connecting import operation
from geminga.cli.tables import TableColumn, print_rows
from geminga.client.cluster import Cluster

_COLUMNS = (
    TableColumn("tenant", "tenant"),
    TableColumn("administrators", "admin_roles", ", ".join),
    TableColumn("clusters", "allowed_clusters", ", ".join),
)


@click.group("tenants", cls=Commands)
def command() -> None:
    """List, create, change and delete tenants."""


@operation(command, "list")
def list_tenants(cluster: Cluster) -> None:
    """List the tenants with their admin roles and clusters."""
    admin = cluster.admin()
    rows = []
    for name in admin.tenants.list():
        info = admin.tenants.get(name)
        rows.append(
            {
                "tenant": name,
                "admin_roles": list(info.admin_roles),
                "allowed_clusters": list(info.allowed_clusters),
            }
        )
    print_rows(rows, _COLUMNS)


@operation(command, "create", "tenant")
@click.option("--admin-role", "roles", multiple=True, help="Role that administers it; may be repeated.")
@click.option(
    "--cluster", "clusters", multiple=True, help="Allowed cluster; may be repeated.  [default: all]"
)
def create(tenant: str, roles: tuple[str, ...], clusters: tuple[str, ...], cluster: Cluster) -> None:
    """Create TENANT."""
    cluster.admin().tenants.create(tenant, admin_roles=roles, allowed_clusters=clusters or None)
    emit({"tenant": tenant, "created": True}, f"created {tenant}")


@operation(command, "update", "tenant")
@click.option(
    "--admin-role", "roles", multiple=True,
    help="New admin role, replacing all present ones; may be repeated.",
)  # fmt: skip
@click.option("--cluster", "clusters", multiple=True, help="New allowed cluster, replacing all present ones.")
def update(tenant: str, roles: tuple[str, ...], clusters: tuple[str, ...], cluster: Cluster) -> None:
    """Change TENANT; fields without an option stay."""
    if not roles and not clusters:
        raise click.UsageError("give --admin-role or --cluster")
    cluster.admin().tenants.update(tenant, admin_roles=roles or None, allowed_clusters=clusters or None)
    emit({"tenant": tenant, "updated": True}, f"updated {tenant}")


@operation(command, "delete", "tenant")
@click.option("--force", is_flag=True, help="Delete its namespaces, topics and messages too.")
@yes_option
def delete(tenant: str, force: bool, cluster: Cluster) -> None:
    """Delete TENANT."""
    confirm(f"Delete {tenant}{' with all namespaces, topics and messages' if force else ''}?")
    cluster.admin().tenants.delete(tenant, force=force)
    emit({"tenant": tenant, "deleted": True}, f"deleted {tenant}")
