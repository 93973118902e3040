"""``geminga demo``: the main job on real data."""

from __future__ import annotations

from pathlib import Path

import click

from geminga.cli.common import json_option


@click.command("demo")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default=Path("demo-output"),
    show_default=True,
    help="Folder for store, lake, picture and checkpoints; one of an earlier demo is replaced.",
)  # fmt: skip
@click.option("--rows", type=click.IntRange(1000), help="Only the first so many of the 336,776 flights.")
@json_option
def command(output: Path, rows: int | None, as_json: bool) -> None:
    """Publish 336,776 flights, stream them through Spark into a lake, and prove that none is missing.

    Half of them row by row, half as columns, into an embedded broker that syncs every receipt. Three
    Spark queries fill the lake and write a rollup back into a topic, exactly once. Half-way their driver
    is killed (SIGKILL) and started again. Lake and topic are read back; exits 1 when counts, checksums or
    windows differ.
    """
    from geminga.demo.console import Console
    from geminga.demo.run import run_demo

    run_demo(output, Console(as_json=as_json), rows=rows)
