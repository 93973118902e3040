"""``geminga tune prove``: what the formula saves, measured on a real broker."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from geminga.cli.common import Number
from geminga.cli.connecting import ConnectingCommand, connecting
from geminga.cli.tune_options import (
    namespace_option,
    read_samples,
    sample_option,
    server_pid_option,
    traffic_options,
    traffic_profile,
)
from geminga.client.cluster import Cluster
from geminga.tuning.prove import PARTS, ProofPlan, Prover


@click.command("prove", cls=ConnectingCommand)
@connecting
@traffic_options(rate_messages_per_second=20_000, message_bytes=200, partitions=60)
@click.option(
    "--payload",
    type=click.Choice(["logs", "telemetry", "orders"]),
    default="logs",
    show_default=True,
    help="What messages look like.",
)
@sample_option
@click.option(
    "--seconds", type=Number(0.1, 3600), default=30, show_default=True, help="Measured time of a run."
)
@click.option(
    "--warm-seconds", type=Number(0, 600), default=5, show_default=True, help="Load before the measured time."
)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Runs of each subject.")
@click.option(
    "--part",
    "parts",
    type=click.Choice(PARTS),
    multiple=True,
    default=("settings", "slow"),
    show_default=True,
    help="settings: stock and the formula; slow: one slow partition; break: a command.",
)
@click.option(
    "--client",
    "clients",
    type=click.Choice(["geminga", "java", "pulsar"]),
    multiple=True,
    help="Whose producers; all that are installed by default.",
)
@click.option(
    "--only", multiple=True, metavar="PATTERN", help="Subjects that take part, like '*ZSTD'; all by default."
)
@click.option(
    "--idle-seconds",
    type=Number(0.1, 600),
    default=5,
    show_default=True,
    help="How long the broker is watched without load before each run.",
)
@click.option(
    "--slow-share",
    type=Number(0.001, 1),
    default=0.05,
    show_default=True,
    help="What the slow partition takes of its part of the rate.",
)
@namespace_option
@click.option(
    "--pulsar-home",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    envvar="PULSAR_HOME",
    help="A Pulsar distribution, for pulsar-perf.",
)
@server_pid_option
@click.option("--break-with", "break_command", help="For the part break: a command that breaks something.")
@click.option("--mend-with", "mend_command", help="The command that mends it; it returns when all is well.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/proof"),
    show_default=True,
    help="Folder for table, picture, JSON and the runs; continued when it exists.",
)
def command(
    cluster: Cluster,
    sample: Path | None,
    clients: tuple[str, ...],
    pulsar_home: Path | None,
    output: Path,
    traffic: dict[str, Any],
    **chosen: Any,
) -> None:
    """Measure stock settings and the formula's, side by side, on a real broker.

    Topics are made, filled and deleted in the namespace. What was measured is kept in the output folder
    run by run: a broker that goes away costs the run it was in, and the same command goes on.
    """
    if "break" in chosen["parts"] and chosen["break_command"] is None:
        raise click.UsageError("--part break needs --break-with: a command that breaks something")
    plan = ProofPlan(
        service_url=cluster.service_url, admin_url=cluster.admin_url, cluster=cluster,
        profile=traffic_profile(traffic),
        samples=read_samples(sample), clients=clients or _installed(pulsar_home), java_home=pulsar_home,
        **chosen,
    )  # fmt: skip
    proof = Prover(plan, output, lambda line: click.echo(line, err=True)).prove()
    from geminga.tuning import proof_report

    text = proof_report.table(proof)
    (output / "proof.md").write_text(text)
    (output / "proof.json").write_text(
        json.dumps({**proof.to_dict(), "headline": proof_report.headline(proof)}, indent=1)
    )
    proof_report.picture(proof, output / "proof.svg")
    click.echo(text)
    if proof.stopped:
        raise click.ClickException(f"{proof.stopped}; what was measured till then is in {output}")


def _installed(pulsar_home: Path | None) -> tuple[str, ...]:
    import importlib.util

    found = ["geminga"]
    if pulsar_home is not None and os.access(pulsar_home / "bin/pulsar-perf", os.X_OK):
        found.append("java")
    if importlib.util.find_spec("pulsar") is not None:
        found.append("pulsar")
    return tuple(found)
