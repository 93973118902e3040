"""``geminga tune advise``: settings for a topic's producers, from numbers or from watching it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from geminga.cli.common import Number, json_option
from geminga.cli.connecting import ConnectingCommand, connecting
from geminga.cli.tune_options import (
    OutputFile,
    picture_option,
    read_samples,
    sample_option,
    traffic_options,
    traffic_profile,
)
from geminga.client.cluster import Cluster
from geminga.producer.settings import CompressionType
from geminga.tuning import render
from geminga.tuning.advise import Advice, advise
from geminga.tuning.cost import standard
from geminga.tuning.observe import TopicObservation, observe
from geminga.tuning.pictures import check_picture
from geminga.tuning.sample import Sample, standard_sample
from geminga.tuning.stock import STOCK, stock

CODECS = {codec.name.upper(): codec for codec in CompressionType}


@click.command("advise", cls=ConnectingCommand)
@traffic_options()
@click.option("--topic", help="A live topic to watch instead of giving its traffic in numbers.")
@connecting
@click.option(
    "--watch",
    "watch_seconds",
    type=Number(0.1, 600),
    default=5,
    show_default=True,
    help="Seconds for which the topic is watched.",
)
@sample_option
@click.option(
    "--compression",
    type=click.Choice(list(CODECS), case_sensitive=False),
    help="The codec; the best bargain on the sample by default.",
)
@click.option(
    "--compression-level",
    type=click.IntRange(0, 19),
    default=0,
    help="With --compression: the level of ZSTD (1 to 19) or ZLIB (1 to 9); its usual one by default.",
)
@click.option(
    "--stock",
    "stock_name",
    type=click.Choice(list(STOCK)),
    default="java",
    show_default=True,
    help="Whose settings, as they come, are compared with.",
)
@click.option(
    "--format",
    "kinds",
    type=click.Choice(list(render.FORMATS)),
    multiple=True,
    default=("python",),
    show_default=True,
    help="How the settings are shown.",
)
@click.option(
    "--apply",
    "apply_path",
    type=OutputFile(),
    help="Write a settings file (TOML) that geminga.load_settings and Spark's sink read.",
)
@picture_option
@json_option
def command(
    traffic: dict[str, Any],
    topic: str | None,
    cluster: Cluster,
    watch_seconds: float,
    sample: Path | None,
    compression: str | None,
    compression_level: int,
    stock_name: str,
    kinds: tuple[str, ...],
    apply_path: Path | None,
    picture_path: Path | None,
    as_json: bool,
) -> None:
    """Settings for the producers of a topic, with reasons, what they change, and warnings.

    The traffic comes from --rate, --message-bytes and so on, or from --topic: then the topic's statistics
    and a sample of its entries are read from the broker. Nothing is changed there.
    """
    if picture_path is not None:
        check_picture(picture_path)
    if compression_level and compression is None:
        raise click.UsageError("--compression-level goes with --compression")
    cost = standard()
    observed = None
    if topic is not None:
        _refuse_numbers(traffic)
        observed = observe(
            cluster.service_url,
            cluster.admin_url,
            topic,
            cluster=cluster,
            seconds=watch_seconds,
            latency_budget_seconds=traffic["latency_budget_ms"] / 1000,
        )
        profile = observed.profile
    else:
        profile = traffic_profile(_complete(traffic, sample))
    found = advise(
        profile,
        cost=cost,
        sample=_sample(sample, observed, profile.message_bytes),
        stock=stock(stock_name),
        compression=None if compression is None else CODECS[compression.upper()],
        compression_level=compression_level,
        observed=observed,
    )
    if apply_path is not None:
        apply_path.write_text(render.toml(found))
    if picture_path is not None:
        render.picture(found, picture_path)
    click.echo(json.dumps(as_dict(found)) if as_json else render.text(found, kinds))


def _refuse_numbers(traffic: dict[str, Any]) -> None:
    """A topic that is watched tells its traffic: numbers beside it would be for nothing."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        asked = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if name in traffic and name != "latency_budget_ms" and asked:
            raise click.UsageError(
                f"{parameter.opts[0]} and --topic: a topic that is watched tells its traffic; leave one out"
            )


def _complete(traffic: dict[str, Any], sample: Path | None) -> dict[str, Any]:
    """The numbers that there must be; the size of messages may come from a sample."""
    if traffic["message_bytes"] is None and sample is not None:
        messages = read_samples(sample)
        traffic = {**traffic, "message_bytes": sum(map(len, messages)) / len(messages)}
    missing = [
        option
        for option, field in (("--rate", "rate_messages_per_second"), ("--message-bytes", "message_bytes"))
        if traffic[field] is None
    ]
    if missing:
        raise click.UsageError(
            f"{' and '.join(missing)} missing: give the traffic in numbers, or name a live topic with --topic"
        )
    return traffic


def _sample(path: Path | None, observed: TopicObservation | None, message_bytes: float) -> Sample:
    if path is not None:
        return Sample(read_samples(path), str(path))
    if observed is not None and observed.sample is not None:
        return observed.sample
    return standard_sample(message_bytes)


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no infinity: no limit is null there."""
    return {name: None if value == math.inf else value for name, value in state.items()}


def as_dict(advice: Advice) -> dict[str, Any]:
    """Plain values for JSON."""
    seen = advice.observed
    return {
        "profile": advice.profile.to_dict(),
        "settings": advice.settings.to_dict(),
        "reasons": [asdict(choice) for choice in advice.formula.choices],
        "before": _plain(asdict(advice.before)),
        "after": _plain(asdict(advice.after)),
        "findings": [
            {"trap": f.trap.name, "severity": f.severity.value, "numbers": f.numbers, "advice": f.advice}
            for f in advice.findings
        ],
        "codecs": [{**asdict(codec), "compression": codec.compression.name} for codec in advice.codecs],
        "sample": advice.sample_origin,
        "model": {"broker": advice.cost.broker, "error": advice.cost.error},
        "observed": None
        if seen is None
        else {
            "topic": seen.topic,
            "service_url": seen.service_url,
            "seconds": seen.seconds,
            "batch_fill": seen.batch_fill,
            "compression": seen.compression.name,
            "compression_ratio": seen.compression_ratio,
            "producers": seen.producers,
            "entries_per_second": seen.entries_per_second,
            "entries_per_second_by_partition": seen.entries_per_second_by_partition,
            "notes": seen.notes,
        },
    }
