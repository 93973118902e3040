"""``geminga tune simulate``: what settings do with a topic's traffic, without a broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from geminga.cli.common import Number, json_option
from geminga.cli.connecting import ConnectingCommand, connection_options
from geminga.cli.tune_options import (
    broker_model_option,
    cost_model_option,
    traffic_options,
    traffic_profile,
)
from geminga.cli.tune_sweep import broker_model_of, measured_cluster
from geminga.client.settings_file import load_settings
from geminga.config import refuse
from geminga.errors import InvalidConfiguration
from geminga.tuning.cost import CostModel, standard
from geminga.tuning.formula import formula
from geminga.tuning.modelled_broker import Fault, FaultKind
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.simulation_report import GRAINS, as_dict, play, table
from geminga.tuning.stock import STOCK, stock
from geminga.tuning.traffic import TrafficProfile

_FAULT = "KIND,PARTITION,FROM,UNTIL[,EXTRA_MS]"


@click.command("simulate", cls=ConnectingCommand)
@connection_options
@traffic_options(rate_messages_per_second=20_000, message_bytes=200, partitions=60)
@click.option(
    "--settings",
    "settings_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A settings file, as `geminga tune advise --apply` writes it; the formula's settings by default.",
)
@click.option(
    "--stock",
    "stock_name",
    type=click.Choice(list(STOCK)),
    help="A client's settings as they come, instead.",
)
@click.option(
    "--grain",
    type=click.Choice([*GRAINS, "both"]),
    default="both",
    show_default=True,
    help="core: the real producer in virtual time; batches: a model that goes from batch to batch.",
)
@click.option("--seconds", type=Number(2, 3600), default=10, show_default=True, help="Virtual time.")
@click.option(
    "--seed", type=click.IntRange(0, (1 << 32) - 1), default=0, show_default=True, help="Of what is drawn."
)
@click.option("--even", is_flag=True, help="Messages come in even steps instead of at random.")
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar=_FAULT,
    help="One partition's trouble between two times in seconds: slow (by EXTRA_MS), stuck or lost.",
)
@broker_model_option
@cost_model_option
@json_option
def command(
    traffic: dict[str, Any],
    settings_file: Path | None,
    stock_name: str | None,
    grain: str,
    seconds: float,
    seed: int,
    even: bool,
    faults: tuple[str, ...],
    broker_model: Path | None,
    cost_model: Path | None,
    as_json: bool,
    **connecting: Any,
) -> None:
    """Publish in virtual time: batch fill, entries, latency, memory and broker CPU of some settings.

    Nothing is connected to, unless --url or --context name a broker: its round trips, and what this
    machine's client takes for a batch, are measured first and then modelled.
    """
    if settings_file is not None and stock_name is not None:
        raise click.UsageError("--settings and --stock: give one of them")
    if broker_model is not None and connecting_given(connecting):
        raise click.UsageError("--broker-model and --url: give one of them")
    profile = traffic_profile(traffic)
    settings = _settings(profile, settings_file, stock_name)
    troubles = tuple(parsed_fault(text) for text in faults)
    cost = standard() if cost_model is None else CostModel.load(cost_model)
    broker = broker_model_of(broker_model, measured_cluster(None, connecting))
    runs = play(
        profile, settings, broker, GRAINS if grain == "both" else (grain,),
        seconds=seconds, seed=seed, even=even, faults=troubles,
    )  # fmt: skip
    if as_json:
        click.echo(json.dumps(as_dict(profile, settings, broker, cost, runs)))
    else:
        click.echo(table(profile, cost, runs))


def connecting_given(connecting: dict[str, Any]) -> bool:
    """Whether a broker to measure was named."""
    return measured_cluster(None, connecting) is not None


def _settings(profile: TrafficProfile, file: Path | None, stock_name: str | None) -> PublishSettings:
    if stock_name is not None:
        return stock(stock_name).settings
    if file is None:
        return formula(profile).settings
    loaded = load_settings(file)
    return PublishSettings.from_arguments(loaded.client, loaded.producer)


def parsed_fault(text: str) -> Fault:
    """The fault that an option describes. Raises `InvalidConfiguration`."""
    allowed = f"{_FAULT}, like slow,3,2,9,400: kinds are {', '.join(kind.value for kind in FaultKind)}"
    kind, *numbers = text.split(",")
    try:
        values = [float(number) for number in numbers]
        what = FaultKind(kind)
    except ValueError:
        refuse("fault", text, allowed)
    if len(values) != 3 + (what is FaultKind.SLOW) or values[0] != int(values[0]):
        refuse("fault", text, allowed)
    try:
        return Fault(
            partition=int(values[0]), kind=what, start_seconds=values[1], end_seconds=values[2],
            extra_seconds=values[3] / 1000 if what is FaultKind.SLOW else 0.0,
        )  # fmt: skip
    except InvalidConfiguration as error:
        raise InvalidConfiguration(f"fault={text!r}: {error}") from None
