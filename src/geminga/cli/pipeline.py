"""``geminga pipeline``: projects of Spark Declarative Pipelines from templates."""

from __future__ import annotations

import time
from pathlib import Path

import click


@click.group("pipeline")
def command() -> None:
    """Pipelines from topics to a lake and back, on Spark Declarative Pipelines.

    What `init` makes is an ordinary project: `spark-pipelines run` runs it too.
    """


@command.command("templates")
def templates() -> None:
    """List the templates and what each asks for."""
    from geminga.spark.pipelines.project import TEMPLATES

    for template in TEMPLATES.values():
        click.echo(f"{template.name}: {template.title}")
        for name, default in template.fields.items():
            click.echo(f"    --set {name}={default!r}")


@command.command("init")
@click.argument("folder", metavar="NAME", type=click.Path(file_okay=False, path_type=Path))
@click.option("--from", "template", default="ingest", show_default=True, help="Name of a template.")
@click.option("--set", "answers", multiple=True, metavar="FIELD=VALUE", help="Instead of a field's default.")
def init(folder: Path, template: str, answers: tuple[str, ...]) -> None:
    """Make a project in the new folder NAME."""
    from geminga.spark.pipelines import project

    given = {}
    for answer in answers:
        name, equals, value = answer.partition("=")
        if not equals:
            raise click.UsageError(f"--set {answer}: FIELD=VALUE is expected")
        given[name] = value
    try:
        made = project.create(folder, template, given)
    except FileExistsError:
        raise click.UsageError(f"{folder} is there already: choose another name") from None
    for path in made:
        click.echo(f"made {path}")
    click.echo(f"run it with: geminga pipeline run {folder}")


@command.command("run")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option("--full-refresh", multiple=True, metavar="TABLE", help="Compute a table anew.")
@click.option("--verbose", is_flag=True, help="Show what Spark says.")
def run(folder: Path, full_refresh: tuple[str, ...], verbose: bool) -> None:
    """Bring the tables of a project up to date, and say what came in."""
    from geminga.spark.pipelines import running

    started = time.monotonic()

    def told(event: running.FlowChanged) -> None:
        click.echo(f"{time.monotonic() - started:6.1f} s  {event.flow}: {event.state.lower()}", err=True)

    arguments = ("--full-refresh", ",".join(full_refresh)) if full_refresh else ()
    outcome = running.run(folder, told, arguments=arguments)
    if verbose:
        for line in outcome.output:
            click.echo(line, err=True)
    for name, table in outcome.after.items():
        rows = table.rows - (outcome.before[name].rows if name in outcome.before else 0)
        click.echo(f"{name}: {table.rows:,} rows in {table.files:,} files ({rows:+,} in this run)")
    if outcome.exit_code:
        raise click.ClickException(f"the pipeline failed: {outcome.error}")
