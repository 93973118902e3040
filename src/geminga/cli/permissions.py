"""Permission commands of both ``namespaces`` and ``topics``: ``permissions``, ``grant``, ``revoke``."""

from __future__ import annotations

from typing import Any

import click

from geminga.cli.common import WordChoice, emit
from geminga.cli.connecting import operation
from geminga.cli.tables import TableColumn, print_rows
from geminga.client.admin.aio.namespaces import ACTIONS
from geminga.client.cluster import Cluster

_COLUMNS = (TableColumn("role", "role"), TableColumn("actions", "actions", ", ".join))


def add_permission_commands(group: click.Group, kind: str, argument: Any) -> None:
    """Add the permission commands to ``group``. ``kind``: admin client's part; ``argument``: ``resource``."""

    @operation(group, "permissions", argument)
    def permissions(resource: str, cluster: Cluster) -> None:
        """List the permissions of each role."""
        found = getattr(cluster.admin(), kind).permissions(resource)
        rows = [{"role": role, "actions": list(actions)} for role, actions in sorted(found.items())]
        print_rows(rows, _COLUMNS)

    @operation(group, "grant", argument, "role")
    @click.argument("actions", nargs=-1, required=True, type=WordChoice(ACTIONS))
    def grant(resource: str, role: str, actions: tuple[str, ...], cluster: Cluster) -> None:
        """Allow ROLE these ACTIONS, replacing its earlier permissions here."""
        getattr(cluster.admin(), kind).grant(resource, role, actions)
        text = f"{role} may {', '.join(actions)} in {resource}"
        emit({kind[:-1]: resource, "role": role, "actions": actions}, text)

    @operation(group, "revoke", argument, "role")
    def revoke(resource: str, role: str, cluster: Cluster) -> None:
        """Revoke the permissions that ROLE was granted here."""
        getattr(cluster.admin(), kind).revoke(resource, role)
        text = f"{role}: permissions revoked"
        emit({kind[:-1]: resource, "role": role, "actions": []}, text)
