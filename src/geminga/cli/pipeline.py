"""``geminga pipeline``: create and run projects of Spark Declarative Pipelines."""

import time
from pathlib import Path
from typing import Any

import click

from geminga.cli.common import Commands, Duration, pairs, say
from geminga.cli.connecting import ConnectingCommand, cluster_of, connection_options, given
from geminga.cli.units import SIZE_IN_MIB
from geminga.client.cluster import DEFAULT_URL, Cluster
from geminga.extras import need

_FOLDER = click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".")


@click.group("pipeline", cls=Commands)
def command() -> None:
    """Create and run pipelines from topics to a lake and back, on Spark Declarative Pipelines.

    `init` creates an ordinary project: `spark-pipelines run` runs it too.
    """
    need("geminga pipeline", "yaml")  # names the extra of all the packages that a project needs


@command.command("templates")
def templates() -> None:
    """List the templates with their fields and defaults."""
    from geminga.spark.pipelines.project import TEMPLATES

    for template in TEMPLATES.values():
        click.echo(f"{template.name}: {template.title}")
        for name, default in template.fields.items():
            click.echo(f"    --set {name}={default!r}")


@command.command("init")
@click.argument("folder", metavar="NAME", type=click.Path(file_okay=False, path_type=Path))
@click.option("--from", "template", default="ingest", show_default=True, help="Name of a template.")
@click.option(
    "--set", "answers", multiple=True, metavar="FIELD=VALUE", callback=pairs, help="Value of a field.",
)  # fmt: skip
def init(folder: Path, template: str, answers: dict[str, str]) -> None:
    """Create a project in the new folder NAME."""
    from geminga.spark.pipelines import project

    try:
        made = project.create(folder, template, answers)
    except FileExistsError:
        raise click.UsageError(f"{folder} is there already: choose another name") from None
    for path in made:
        click.echo(f"made {path}")
    click.echo(f"run it with: geminga pipeline run {folder}")


@command.command("run", cls=ConnectingCommand)
@_FOLDER
@connection_options
@click.option("--full-refresh", multiple=True, metavar="TABLE", help="Recompute a table; may be repeated.")
@click.option("--verbose", is_flag=True, help="Print Spark's output.")
def run(folder: Path, full_refresh: tuple[str, ...], verbose: bool, **connecting: Any) -> None:
    """Update the tables of a project and print the rows that each received.

    While the pipeline runs, it prints for each flow the rows of every micro-batch and the remaining backlog
    in messages.

    The project's address is used unless --url, --admin-url or --context names another cluster; the other
    connection options authenticate there and are not stored.
    """
    from geminga.spark.pipelines import running

    started = time.monotonic()

    def show(line: str) -> None:
        say(f"{time.monotonic() - started:6.1f} s  {line}")

    outcome = running.run(folder, show, full_refresh=full_refresh, cluster=_handed_over(connecting))
    if verbose:
        for line in outcome.output:
            say(line)
    for name, table in outcome.after.items():
        rows = table.rows - (outcome.before[name].rows if name in outcome.before else 0)
        click.echo(f"{name}: {table.rows:,} rows in {table.files:,} files ({rows:+,} in this run)")
    for flow, rows in outcome.rows_read.items():
        left = outcome.lag_messages.get(flow)
        click.echo(f"{flow} read {rows:,} rows" + ("" if left is None else f"; {left:,} messages are left"))
    if outcome.exit_code:
        raise click.ClickException(f"the pipeline failed: {outcome.error}")


def _handed_over(connecting: dict[str, Any]) -> str:
    """Return the cluster that the project's flows connect to, encoded; empty without options."""
    from geminga.spark.pipelines.connection import handed_over

    named = given("service_url", "admin_url", "context")
    if not named:
        # The project's address is as good as one given here: it leaves the current context out.
        connecting |= {"service_url": DEFAULT_URL, "admin_url": None, "context": None}
    cluster = cluster_of(connecting)
    if not named and cluster == Cluster():
        return ""
    return handed_over(cluster, is_addressed=named)


@command.command("compact")
@_FOLDER
@click.option(
    "--table", "names", multiple=True, metavar="TABLE", help="Table to compact.  [default: all]",
)  # fmt: skip
@click.option(
    "--target-mb", "target_bytes", type=SIZE_IN_MIB, default="128M", show_default=True,
    help="Approximate size of new files; a plain number is in MiB.",
)  # fmt: skip
@click.option(
    "--keep-hours", type=Duration(0, unit="h"), default="24h", show_default=True,
    help="Hours to keep replaced files for readers that still use them.",
)  # fmt: skip
def compact(folder: Path, names: tuple[str, ...], target_bytes: int, keep_hours: float) -> None:
    """Merge small Parquet files of a project's streaming tables, and delete replaced files.

    Readers see the old files or the new files, also if this command is killed half-way.
    """
    from geminga.config import check_choice
    from geminga.spark.pipelines import checkpoints, lake, running

    folder = folder.resolve()
    found = checkpoints.tables(folder)
    for name in names:
        check_choice("table", name, tuple(found))
    with running.alone(folder):
        for name in names or found:
            if lake.listing(found[name]) is None:
                continue  # a materialized view: Spark rewrites it at each run
            done = lake.compact(found[name], target_bytes=target_bytes)
            gone = lake.clean(found[name], keep_seconds=keep_hours * 3600)
            click.echo(
                f"{name}: {done.files_before:,} files are now {done.files_after:,}, "
                f"{done.bytes_before:,} bytes {done.bytes_after:,}; {len(gone):,} old files deleted"
            )


@command.command("report")
@_FOLDER
def report(folder: Path) -> None:
    """Run a project's `report.py`, which draws its pictures; the template health has one."""
    import subprocess
    import sys

    script = folder / "report.py"
    if not script.is_file():
        raise click.UsageError(f"{folder} has no report.py: the template health has one")
    raise SystemExit(subprocess.run([sys.executable, str(script)], check=False).returncode)
