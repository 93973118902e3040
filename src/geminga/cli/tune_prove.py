"""``geminga tune prove``: measure on a broker what the advised settings save."""

from pathlib import Path
from typing import Any

import click

from geminga.cli.common import say
from geminga.cli.connecting import ConnectingCommand, connecting
from geminga.cli.tune_options import read_samples, run_options, traffic_options, traffic_profile
from geminga.client.cluster import Cluster
from geminga.extras import need
from geminga.tuning.prove import ProofPlan, Prover


@click.command("prove", cls=ConnectingCommand)
@connecting
@traffic_options(rate_messages_per_second=20_000, message_bytes=200, partitions=60)
@run_options(seconds=30, warm_seconds=5, output="build/proof")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Runs per subject.")
@click.option(
    "--client", "clients", type=click.Choice(["geminga", "pulsar"]), multiple=True,
    help="Client whose producers run; may be repeated.  [default: all that are installed]",
)  # fmt: skip
def command(
    cluster: Cluster,
    sample: Path | None,
    clients: tuple[str, ...],
    output: Path,
    traffic: dict[str, Any],
    **chosen: Any,
) -> None:
    """Measure default and advised settings side by side on a broker.

    Test topics are created, filled and deleted in the namespace. Each run is stored in the output folder:
    if the broker fails, only the current run is lost and the same command resumes.
    """
    need("geminga tune prove", "matplotlib", "numpy")  # before minutes of measuring
    plan = ProofPlan(
        service_url=cluster.service_url, admin_url=cluster.admin_url, cluster=cluster,
        profile=traffic_profile(traffic),
        samples=read_samples(sample), clients=clients or _installed(),
        **chosen,
    )  # fmt: skip
    proof = Prover(plan, output, say).prove()
    from geminga.tuning import proof_report

    (output / "proof.md").write_text(proof_report.table(proof))
    proof_report.picture(proof, output / "proof.svg")
    click.echo(proof_report.summary(proof))
    if proof.stopped:
        raise click.ClickException(f"{proof.stopped}; the runs up to then are in {output}")


def _installed() -> tuple[str, ...]:
    import importlib.util

    return ("geminga", "pulsar") if importlib.util.find_spec("pulsar") is not None else ("geminga",)
