"""``geminga demo``: flights of 2013 through broker and Spark into a lake, with a driver killed half-way."""

from pathlib import Path

import click

from geminga.cli.common import json_option, wants_json


@click.command("demo")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default=Path("demo-output"),
    show_default=True,
    help="Folder for store, lake and checkpoints; an earlier demo's folder is replaced.",
)  # fmt: skip
@click.option("--rows", type=click.IntRange(1000), help="Publish only the first ROWS of the 336,776 flights.")
@json_option
def command(output: Path, rows: int | None) -> None:
    """Publish 336,776 flights, stream them through Spark into a lake, and prove that none is missing.

    Half of the flights are published row by row, half as columns, to an embedded broker that syncs to disk
    before each receipt. Three Spark queries fill the lake and write a rollup to a topic, exactly once.
    Half-way the Spark driver is killed (SIGKILL) and restarted. Exits with 1 if counts, checksums or windows
    of lake and topic differ from the data.
    """
    from geminga.demo.console import Console
    from geminga.demo.run import run_demo

    run_demo(output, Console(as_json=wants_json()), rows=rows)
