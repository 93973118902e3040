"""``geminga schemas``: schemas of topics."""

import importlib
import json
import sys
from typing import IO, Any

import click

from geminga.cli.common import Commands, WordChoice, confirm, emit, with_options, yes_option
from geminga.cli.connecting import operation
from geminga.cli.tables import TableColumn, print_rows
from geminga.client.cluster import Cluster
from geminga.errors import AdminNotFound, PulsarException, TopicNotFound
from geminga.schema_info import SchemaInfo, SchemaType

_KINDS = tuple(one.name for one in SchemaType if one >= SchemaType.STRING and one is not SchemaType.KEY_VALUE)


@click.group("schemas", cls=Commands)
def command() -> None:
    """Show, register, check and delete schemas of topics."""


@operation(command, "get", "topic")
@click.option("--version", type=click.IntRange(0), help="Schema version.  [default: the newest]")
def get(topic: str, version: int | None, cluster: Cluster) -> None:
    """Show a schema of TOPIC. Exits with 1 if the topic has no schema or does not exist."""
    found = _existing(cluster, topic, version)
    emit(_row(found), f"{found.type}, version {found.version}\n{found.data}")


@operation(command, "versions", "topic")
def versions(topic: str, cluster: Cluster) -> None:
    """List all versions of the schema of TOPIC. Exits with 1 if the topic does not exist."""
    rows = [_row(one) for one in cluster.admin().schemas.versions(topic)]
    if not rows:
        _check_topic(cluster, topic)
    columns = (
        TableColumn("version", "version", right=True),
        TableColumn("type", "type"),
        TableColumn("definition", "data", lambda text: " ".join(text.split())),
    )
    print_rows(rows, columns, f"{topic} has no schema")


def _existing(cluster: Cluster, topic: str, version: int | None = None) -> Any:
    found = cluster.admin().schemas.get(topic, version)
    if found is None:
        _check_topic(cluster, topic)
        which = "schema" if version is None else f"version {version} of a schema"
        raise AdminNotFound(f"{topic} has no {which}", status=404)
    return found


def _check_topic(cluster: Cluster, topic: str) -> None:
    """Raise `TopicNotFound` if a topic without a schema does not exist. A schema may be registered before its
    topic exists."""
    try:
        cluster.admin().topics.stats(topic)
    except TopicNotFound:
        raise
    except PulsarException:  # reading statistics may need more permissions than reading schemas
        return


def _row(found: Any) -> dict[str, Any]:
    fields = {name: getattr(found, name) for name in ("version", "type", "data", "timestamp")}
    return {**fields, "properties": dict(found.properties)}


_with_source = with_options(
    click.option("--class", "named", metavar="MODULE:NAME", help="Python schema, record or dataclass."),
    click.option("--file", "-f", "file", type=click.File("rb"),
                 help="Avro schema definition (JSON); used with --type. -: standard input."),
    click.option("--type", "kind", type=WordChoice(_KINDS), default="JSON",
                 show_default=True, help="Schema type of --file."),
)  # fmt: skip


def _source(named: str | None, file: IO[bytes] | None, kind: str) -> Any:
    if (named is None) == (file is None):
        raise click.UsageError("give either --class or --file")
    if file is not None:
        data = file.read()
        try:
            json.loads(data)
        except ValueError:
            raise click.BadParameter(f"{file.name} is not JSON", param_hint="--file") from None
        return SchemaInfo(type=SchemaType[kind.upper()], data=data)
    module, _, name = str(named).partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise click.BadParameter(f"{named!r}: {error}", param_hint="--class") from None


@operation(command, "upload", "topic")
@_with_source
def upload(topic: str, named: str | None, file: IO[bytes] | None, kind: str, cluster: Cluster) -> None:
    """Register a schema for TOPIC, if it is compatible with the existing versions."""
    version = cluster.admin().schemas.upload(topic, _source(named, file, kind))
    emit({"topic": topic, "version": version}, f"{topic}: version {version}")


@operation(command, "check", "topic")
@_with_source
def check(topic: str, named: str | None, file: IO[bytes] | None, kind: str, cluster: Cluster) -> int:
    """Check without registering that a schema is compatible with those of TOPIC; exits with 1 if not."""
    found = cluster.admin().schemas.check(topic, _source(named, file, kind))
    emit(
        {"topic": topic, "compatible": found.compatible, "strategy": found.strategy},
        f"{'compatible' if found.compatible else 'not compatible'} ({found.strategy})",
    )
    return 0 if found.compatible else 1


@operation(command, "delete", "topic")
@yes_option
def delete(topic: str, cluster: Cluster) -> None:
    """Delete all versions of the schema of TOPIC; messages written with them can no longer be decoded.

    Version numbers are not reused. Exits with 1 if the topic has no schema or does not exist.
    """
    _existing(cluster, topic)
    confirm(f"Delete all versions of the schema of {topic}?")
    cluster.admin().schemas.delete(topic)
    emit({"topic": topic, "deleted": True}, f"deleted the schema of {topic}")
