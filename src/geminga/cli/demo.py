"""``geminga demo``: flights of 2013 through broker and Spark into a lake, with a driver killed half-way."""

import json
import time
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
    before each receipt. Two Spark queries fill the lake and write a rollup to a topic, exactly once. Half-way
    the Spark driver is killed (SIGKILL) and restarted. Exits with 1 if counts, checksums or windows of lake
    and topic differ from the data.
    """
    from geminga.demo.run import run_demo

    started = time.perf_counter()

    def say(text: str) -> None:
        click.echo(f"{time.perf_counter() - started:6.1f} s  {text}", err=wants_json())

    summary = run_demo(output, say, rows=rows)
    if wants_json():
        click.echo(json.dumps(summary))
        return
    proof = summary["proof"]
    for name, title in (("published", "published"), ("rows", "in the lake"), ("messages", "in the rollup")):
        one = proof[name]
        click.echo(f"          {title:<14}{one['count']:>9,} events, sum of CRC-32 {one['crc32_sum']:,}")
    say(f"Done: nothing lost, nothing doubled. The lake is in {summary['lake']}")
