"""``geminga tune sweep``: thousands of settings and traffic profiles, explored on Spark."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from geminga.cli.common import Number, json_option
from geminga.cli.connecting import ConnectingCommand, cluster_of, connection_options, given
from geminga.cli.tune_options import (
    broker_model_option,
    cost_model_option,
    traffic_options,
    traffic_profile,
)
from geminga.client.cluster import Cluster
from geminga.errors import InvalidConfiguration
from geminga.producer.settings import CompressionType, ProducerSettings
from geminga.tuning.cost import CostModel, standard
from geminga.tuning.modelled_broker import BrokerModel
from geminga.tuning.sweep_plan import AXES, DESIGNS, Axis, SweepPlan, default_axes, profiles_of
from geminga.tuning.traffic import TrafficProfile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCALING_RUNS = 400

_AXES_HELP = "Axes: " + "; ".join(
    f"{name} ({kind.text}{', ' + kind.default + ' by default' if kind.default else ''})"
    for name, kind in AXES.items()
)


@click.command("sweep", cls=ConnectingCommand, epilog=_AXES_HELP)
@connection_options
@traffic_options(rate_messages_per_second=20_000, message_bytes=200, partitions=60)
@click.option(
    "--profiles",
    "profiles_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON list of traffic profiles, instead of the one that the options describe.",
)
@click.option(
    "--axis",
    "axes",
    multiple=True,
    metavar="NAME=A,B|LOW:HIGH",
    help="What is tried: values, or a range; in the place of the axis' default.",
)
@click.option("--fix", multiple=True, metavar="NAME", help="An axis that stays at the base settings.")
@click.option(
    "--design",
    type=click.Choice(DESIGNS),
    default="latin",
    show_default=True,
    help="latin: a Latin hypercube of --runs points; grid: every combination.",
)
@click.option("--runs", type=click.IntRange(1), default=1000, show_default=True, help="Runs of all profiles.")
@click.option(
    "--seconds",
    type=Number(2, 3600),
    default=60,
    show_default=True,
    help="Virtual time of a run.",
)
@click.option(
    "--seed", type=click.IntRange(0, 1 << 31), default=1, show_default=True, help="Of what is drawn."
)
@cost_model_option
@broker_model_option
@click.option(
    "--round-trips-of",
    metavar="SERVICE_URL",
    help="Measure how long this broker takes for an entry, and model that one; --url says the same.",
)
@click.option("--master", help="Spark's master; its configuration's by default, else local[*].")
@click.option(
    "--scaling", is_flag=True, help="Show how fast the same runs go on one core, two, ... up to all."
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/sweep"),
    show_default=True,
    help="Folder for plan, runs, front and picture; continued when it exists.",
)
@json_option
def command(
    traffic: dict[str, Any],
    profiles_file: Path | None,
    axes: tuple[str, ...],
    fix: tuple[str, ...],
    design: str,
    runs: int,
    seconds: float,
    seed: int,
    cost_model: Path | None,
    broker_model: Path | None,
    round_trips_of: str | None,
    master: str | None,
    scaling: bool,
    output: Path,
    as_json: bool,
    **connecting: Any,
) -> None:
    """Try settings against traffic by the thousand, and show which are worth having.

    Each run is a minute of a modelled producer and broker. The results are Parquet in the output folder; from
    them come the Pareto front of latency, broker CPU, network and memory, as table and picture. An
    interrupted sweep goes on with the same command. Connection options are for a broker that is measured
    (--round-trips-of, --url, --context); nothing else connects.
    """
    from geminga.tuning import sweep_report
    from geminga.tuning.sweep import Sweep, read

    plan = SweepPlan(
        profiles=_profiles(traffic, profiles_file),
        axes=tuple(_axes(axes, fix)),
        design=design,
        runs=runs,
        seconds=seconds,
        seed=seed,
        broker=_broker(output, broker_model, measured_cluster(round_trips_of, connecting)),
    )
    sweep = Sweep(plan, output, standard() if cost_model is None else CostModel.load(cost_model))
    left = len(sweep.left())
    speeds = []
    if left or scaling:
        with spark_session(master) as spark:
            if scaling:
                speeds = sweep.speeds(spark, SCALING_RUNS)
            with progress("runs", left) as done:
                sweep.play(spark, done)
    found = sweep_report.fronts(read(output))
    sweep_report.write(found, output)
    if as_json:
        rows = [
            {"profile": f.profile, "runs": f.runs, "left_out": f.left_out, "front": f.rows} for f in found
        ]
        scale = [{"tasks": s.tasks, "runs": s.runs, "seconds": s.seconds} for s in speeds]
        click.echo(json.dumps({"fronts": rows, "scaling": scale}))
        return
    click.echo(sweep_report.table(found))
    if speeds:
        click.echo(sweep_report.scaling_table(speeds))
    click.echo(f"Runs, front and picture are in {output}.")


def _profiles(traffic: dict[str, Any], file: Path | None) -> tuple[TrafficProfile, ...]:
    if file is None:
        return (traffic_profile(traffic).changed(name="traffic"),)
    return profiles_of(read_json(file, "a list of traffic profiles"))


def _axes(given: tuple[str, ...], fixed: tuple[str, ...]) -> list[Axis]:
    chosen = [Axis.parsed(text) for text in given]
    names = {axis.name for axis in chosen} | set(fixed)
    unknown = sorted(set(fixed) - set(AXES))
    if unknown:
        raise click.BadParameter(f"no axis {unknown[0]!r}; axes: {', '.join(AXES)}", param_hint="--fix")
    return [axis for axis in default_axes() if axis.name not in names] + chosen


def measured_cluster(service_url: str | None, connecting: dict[str, Any]) -> Cluster | None:
    """The broker that is to be measured. Raises `click.UsageError` for options that would have no effect."""
    if service_url is not None and given("service_url"):
        raise click.UsageError("--round-trips-of and --url name the same broker: give one of them")
    if service_url is None and not given("service_url", "context"):
        options = [name for name in connecting if given(name)]
        if options:
            raise click.UsageError(
                f"--{options[0].replace('_', '-')} is for a broker that is measured: name it by --url"
            )
        return None
    if service_url is not None:
        connecting = connecting | {"service_url": service_url}
    return cluster_of(**connecting)


def _broker(output: Path, file: Path | None, measured: Cluster | None) -> BrokerModel:
    """The modelled broker: from a file, from the sweep that is continued, measured, or the standard one."""
    plan = output / "plan.json"
    if file is None and measured is not None and plan.exists():
        before = read_json(plan, "the plan of a sweep")
        if not isinstance(before, dict) or "broker" not in before:
            raise InvalidConfiguration(f"{plan} is not the plan of a sweep: name another folder")
        return BrokerModel.from_dict(before["broker"])
    return broker_model_of(file, measured)


def broker_model_of(file: Path | None, measured: Cluster | None) -> BrokerModel:
    """The modelled broker: from a file, measured together with this machine's client, or the standard one."""
    if file is not None:
        return BrokerModel.from_dict(read_json(file, "a modelled broker"))
    if measured is None:
        return BrokerModel()
    from geminga.tuning.client_times import measured_client
    from geminga.tuning.round_trips import fitted, measure_round_trips

    url = measured.service_url
    trips = measure_round_trips(url, "public/default/geminga-round-trips", cluster=measured)
    encodes = ProducerSettings(batching_enabled=True, compression_type=CompressionType.LZ4)
    return fitted(trips, name=url, work=measured_client(BrokerModel(), encodes))


def read_json(path: Path, what: str) -> Any:
    """A file's JSON. Raises `InvalidConfiguration` for anything else."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidConfiguration(f"{path} is not {what}: {error}") from None


@contextmanager
def spark_session(master: str | None) -> Iterator[SparkSession]:
    """A Spark session for the work, quiet, and gone afterwards when it was made here."""
    from pyspark import SparkContext

    from geminga.spark.sessions import session

    ours = SparkContext._active_spark_context is None
    options = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = session(master, "geminga tune", options)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        if ours:
            spark.stop()


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; elsewhere nothing."""
    if not sys.stderr.isatty() or not total:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)
