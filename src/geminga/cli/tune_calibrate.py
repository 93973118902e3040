"""``geminga tune calibrate``: what entries, bytes and readers cost a broker, measured."""

from __future__ import annotations

import json
from pathlib import Path

import click

from geminga.cli.common import Number, json_option
from geminga.cli.connecting import ConnectingCommand, connecting
from geminga.cli.tune_options import (
    OutputFile,
    namespace_option,
    picture_option,
    server_pid_option,
)
from geminga.client.cluster import Cluster
from geminga.tuning import cost_report
from geminga.tuning.calibrate import Calibration, CalibrationPlan
from geminga.tuning.pictures import check_picture


@click.command("calibrate", cls=ConnectingCommand)
@connecting
@click.option(
    "--seconds",
    type=Number(0.1, 600),
    default=5,
    show_default=True,
    help="Measured time of each load; there are about two dozen.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="How often each load is measured.",
)
@namespace_option
@server_pid_option
@click.option(
    "--runs",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/calibration"),
    show_default=True,
    help="Folder of the runs; continued when it exists.",
)
@click.option(
    "--proof",
    "proofs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="Folder of `geminga tune prove` on the same broker: its runs count as loads, too.  [repeatable]",
)
@click.option(
    "--output",
    type=OutputFile(),
    default=Path("cost-model.json"),
    show_default=True,
    help="The cost model, for `geminga tune advise --cost-model`.",
)
@picture_option
@json_option
def command(
    cluster: Cluster,
    seconds: float,
    repeats: int,
    namespace: str,
    server_pids: tuple[int, ...],
    folder: Path,
    proofs: tuple[Path, ...],
    output: Path,
    picture_path: Path | None,
    as_json: bool,
) -> None:
    """Measure what publishing costs the broker on this machine, and fit the cost model.

    Takes a few minutes, and may be interrupted: the same command goes on. Topics are made, filled and
    deleted in the namespace; nothing else should ask the broker for anything meanwhile.
    """
    if picture_path is not None:
        check_picture(picture_path)
    plan = CalibrationPlan(
        service_url=cluster.service_url,
        admin_url=cluster.admin_url,
        cluster=cluster,
        seconds=seconds,
        repeats=repeats,
        namespace=namespace,
        server_pids=server_pids,
        proofs=proofs,
    )
    calibration = Calibration(plan, folder, lambda line: click.echo(line, err=True))
    model = calibration.calibrate()
    model.save(output)
    if picture_path is not None:
        cost_report.picture(model, picture_path)
    click.echo(json.dumps(cost_report.as_dict(model)) if as_json else cost_report.text(model))
    if calibration.stopped:
        raise click.ClickException(
            f"{calibration.stopped}; {output} is what the runs till then give, and the same command goes on"
        )
