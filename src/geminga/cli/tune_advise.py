"""``geminga tune advise``: producer settings for a topic, from given or observed traffic."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from geminga.cli.common import Duration, json_option, wants_json
from geminga.cli.connecting import ConnectingCommand, connecting
from geminga.cli.tune_options import OutputFile, read_samples, sample_option, traffic_options, traffic_profile
from geminga.client.cluster import Cluster
from geminga.producer.settings import CompressionType
from geminga.tuning import render
from geminga.tuning.advise import Advice, advise
from geminga.tuning.consumers import consumer_advice
from geminga.tuning.observe import TopicObservation, observe
from geminga.tuning.sample import Sample, standard_sample
from geminga.tuning.stock import STOCK, stock

_OBSERVED = (
    "topic", "service_url", "seconds", "batch_fill", "compression_ratio", "producers", "entries_per_second",
    "entries_per_second_by_partition", "notes",
)  # fmt: skip
CODECS = {codec.name.upper(): codec for codec in CompressionType}


@click.command("advise", cls=ConnectingCommand)
@traffic_options()
@click.option("--topic", help="Topic whose traffic is measured, instead of giving numbers.")
@connecting
@click.option(
    "--watch", "watch_seconds", type=Duration(0.1, 600), default="5s", show_default=True,
    help="Seconds to measure the topic.",
)  # fmt: skip
@sample_option
@click.option(
    "--compression", type=click.Choice(list(CODECS), case_sensitive=False),
    help="Codec.  [default: the most economical on the sample]",
)  # fmt: skip
@click.option(
    "--compression-level", type=click.IntRange(0, 19), default=0,
    help="Level for --compression ZSTD (1 to 19) or ZLIB (1 to 9); 0: the codec's default.",
)  # fmt: skip
@click.option(
    "--stock", "stock_name", type=click.Choice(list(STOCK)), default="java", show_default=True,
    help="Client whose default settings are compared.",
)  # fmt: skip
@click.option(
    "--format", "kinds", type=click.Choice(list(render.FORMATS)), multiple=True, default=("python",),
    show_default=True, help="Format of the settings.",
)  # fmt: skip
@click.option(
    "--apply", "apply_path", type=OutputFile(),
    help="Write the settings to this file (TOML), for geminga.load_settings and Spark's sink.",
)  # fmt: skip
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
) -> None:
    """Advise producer settings for a topic, with reasons, effects and warnings.

    The traffic is given by --rate, --message-bytes and so on, or measured with --topic, which reads the
    topic's statistics and a sample of its entries from the broker and changes nothing there.
    """
    if compression_level and compression is None:
        raise click.UsageError("--compression-level goes with --compression")
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
        sample=_sample(sample, observed, profile.message_bytes),
        stock=stock(stock_name),
        compression=None if compression is None else CODECS[compression.upper()],
        compression_level=compression_level,
        observed=observed,
    )
    if apply_path is not None:
        apply_path.write_text(render.toml(found))
    click.echo(json.dumps(as_dict(found)) if wants_json() else render.text(found, kinds))


def _refuse_numbers(traffic: dict[str, Any]) -> None:
    """Raise `click.UsageError` if traffic numbers are given besides --topic, which measures them."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        asked = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if name in traffic and name != "latency_budget_ms" and asked:
            raise click.UsageError(
                f"{parameter.opts[0]} and --topic: --topic measures the traffic; leave one out"
            )


def _complete(traffic: dict[str, Any], sample: Path | None) -> dict[str, Any]:
    """Return ``traffic`` with the message size of the sample. Raises `click.UsageError` if one is missing."""
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
    """Replace infinity (no limit) by None, as JSON has no infinity."""
    return {name: None if value == math.inf else value for name, value in state.items()}


def as_dict(advice: Advice) -> dict[str, Any]:
    """Return an advice as JSON values."""
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
        "consumers": [asdict(each) for each in consumer_advice(advice.profile, advice.after)],
        "sample": advice.sample_origin,
        "observed": None
        if seen is None
        else {**{name: getattr(seen, name) for name in _OBSERVED}, "compression": seen.compression.name},
    }
