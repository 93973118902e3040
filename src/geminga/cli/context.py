"""``geminga context``: named clusters."""

import dataclasses
from typing import Any

import click

from geminga.cli.common import Commands, emit, json_option, say
from geminga.cli.connecting import ConnectingCommand, cluster_of, connection_options
from geminga.cli.contexts import Contexts, contexts_file, read_contexts, write_contexts
from geminga.cli.tables import TableColumn, print_rows
from geminga.client.cluster import Cluster

_COLUMNS = (
    TableColumn("", "current", lambda current: "*" if current else ""),
    TableColumn("context", "context"),
    TableColumn("service url", "service_url"),
    TableColumn("admin url", "admin_url"),
    TableColumn("shows", "authentication"),
)
_TLS = ("tls_trust_certs_file_path", "tls_allow_insecure_connection", "tls_validate_hostname")
_YES = {True: "yes", False: "no"}


@click.group("context", cls=Commands)
def command() -> None:
    """Manage named clusters: addresses, token and TLS, in a file that only you can read."""


@command.command("list")
@json_option
def list_contexts() -> None:
    """List the contexts; the current one has a star. Secrets are not shown."""
    contexts = read_contexts()
    rows = [_row(name, contexts) for name in sorted(contexts.by_name)]
    print_rows(rows, _COLUMNS, "no context yet: geminga context set NAME --url pulsar://host:6650")


@command.command("show")
@click.argument("name", required=False)
@json_option
def show(name: str | None) -> None:
    """Show a context, by default the current one. Secrets are not shown."""
    contexts = read_contexts()
    chosen = name or contexts.current
    if chosen is None:
        raise click.UsageError("there is no current context: name one")
    row = _row(chosen, contexts)
    shown = {field.replace("_", " "): value for field, value in row.items() if value not in (None, "")}
    text = "\n".join(f"{field}: {_YES.get(value, value)}" for field, value in shown.items())
    emit(row, text)


@command.command("set", cls=ConnectingCommand)
@click.argument("name")
@connection_options
@json_option
def set_context(name: str, **options: Any) -> None:
    """Create or replace the context NAME; the first context becomes the current one.

    A token of --token-file is read from that file at each use; a token of --token is stored in the file of
    contexts, mode 0600.
    """
    if not name or any(c.isspace() for c in name):
        raise click.BadParameter(f"{name!r} is not a name: it is empty or has spaces", param_hint="NAME")
    if options["context"] is not None or not (options["service_url"] or options["admin_url"]):
        raise click.UsageError("give the addresses: --url, --admin-url or both")
    cluster = cluster_of(options)
    contexts = read_contexts()
    by_name = {**contexts.by_name, name: cluster.as_dict()}
    write_contexts(Contexts(contexts.current or name, by_name))
    row = _row(name, read_contexts())
    emit(row, f"{name}: {cluster.service_url}, kept in {contexts_file()}")


@command.command("use")
@click.argument("name", required=False)
@json_option
def use(name: str | None) -> None:
    """Make NAME the current context; without NAME, unset the current context."""
    contexts = read_contexts()
    if name is not None:
        contexts.get(name)
    write_contexts(dataclasses.replace(contexts, current=name))
    emit({"current": name}, f"current context: {name or 'none'}")


@command.command("delete")
@click.argument("name")
@json_option
def delete(name: str) -> None:
    """Delete the context NAME. Without a current context, commands go to the broker on this machine."""
    contexts = read_contexts()
    contexts.get(name)
    left = {other: fields for other, fields in contexts.by_name.items() if other != name}
    was_current = contexts.current == name
    write_contexts(Contexts(None if was_current else contexts.current, left))
    emit({"context": name, "deleted": True}, f"deleted {name}")
    if was_current:
        say(
            f"{name} was the current context: commands now go to {Cluster().service_url}, unless you choose "
            "another with `geminga context use NAME`"
        )


def _row(name: str, contexts: Contexts) -> dict[str, Any]:
    """Return a context without its secrets."""
    cluster = Cluster.from_dict(contexts.get(name))
    return {
        "current": name == contexts.current,
        "context": name,
        "service_url": cluster.service_url,
        "admin_url": cluster.admin_url,
        "authentication": _shows(cluster),
        **{name: getattr(cluster, name) for name in _TLS},
    }


def _shows(cluster: Cluster) -> str:
    """Return the kind of authentication, with its file or variable; never the token itself."""
    kind, parameters = cluster.auth_plugin, cluster.auth_params or ""
    if kind is None:
        return ""
    return f"{kind} ({parameters})" if parameters.startswith(("file:", "env:", "tlsCertFile:")) else kind
