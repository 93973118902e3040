"""``geminga tune capacity``: the highest rate within a latency budget, with stock and advised settings."""

from pathlib import Path
from typing import Any

import click

from geminga.cli.common import say
from geminga.cli.connecting import ConnectingCommand, connecting
from geminga.cli.tune_options import read_samples, run_options, traffic_options, traffic_profile
from geminga.client.cluster import Cluster
from geminga.extras import need
from geminga.tuning.capacity import SUBJECTS, CapacityFinder
from geminga.tuning.prove import ProofPlan


@click.command("capacity", cls=ConnectingCommand)
@connecting
@traffic_options(rate_messages_per_second=5_000, message_bytes=200, partitions=60)
@run_options(seconds=10, warm_seconds=3, output="build/capacity", only="; ".join(SUBJECTS))
@click.option(
    "--crossings", type=click.IntRange(1, 1000), default=4, show_default=True,
    help="Number of crossings of each subject's edge, up or down, after which its search ends.",
)  # fmt: skip
def command(
    cluster: Cluster,
    sample: Path | None,
    only: tuple[str, ...],
    output: Path,
    crossings: int,
    traffic: dict[str, Any],
    **chosen: Any,
) -> None:
    """Find the highest rate that a broker keeps within the latency budget.

    The rate starts at --rate, rises until a run misses the budget, and then goes up and down around that
    edge, with stock settings and with the formula's in turn. Without subscriptions the latency to the receipt
    counts.

    Test topics are created, filled and deleted in the namespace: the broker is loaded to its limit. Each run
    is stored in the output folder, and the same command resumes.
    """
    need("geminga tune capacity", "matplotlib", "numpy")  # before minutes of measuring
    plan = ProofPlan(
        service_url=cluster.service_url, admin_url=cluster.admin_url, cluster=cluster,
        profile=traffic_profile(traffic), samples=read_samples(sample), only=only or SUBJECTS,
        repeats=crossings, **chosen,
    )  # fmt: skip
    proof = CapacityFinder(plan, output, say).prove()
    from geminga.tuning import capacity_report

    text = capacity_report.table(proof)
    (output / "capacity.md").write_text(text)
    capacity_report.picture(proof, output / "capacity.svg")
    click.echo(text)
    if proof.stopped:
        raise click.ClickException(f"{proof.stopped}; the runs up to then are in {output}")
