"""``geminga tune fleet``: producer settings for all topics of a cluster, and their total savings."""

import json
from pathlib import Path

import click

from geminga.cli.common import Duration, json_option, wants_json
from geminga.cli.connecting import ConnectingCommand, connecting
from geminga.client.cluster import Cluster
from geminga.errors import InvalidConfiguration
from geminga.producer.settings import CompressionType
from geminga.tuning.fleet import FleetPlan, advise_fleet, check_columns, report, savings
from geminga.tuning.fleet_statistics import gather
from geminga.tuning.stock import STOCK


@click.command("fleet", cls=ConnectingCommand)
@connecting
@click.option(
    "--namespace", "namespaces", multiple=True, help="Namespace of topics; may be repeated.  [default: all]"
)
@click.option(
    "--watch", "watch_seconds", type=Duration(0.1, 3600), default="10s", show_default=True,
    help="Seconds between the two measurements of each topic.",
)  # fmt: skip
@click.option(
    "--topics", "file", type=click.Path(exists=True, path_type=Path),
    help="Parquet file with a row per topic, instead of statistics of a broker.",
)  # fmt: skip
@click.option(
    "--latency-budget", "latency_budget_ms", type=Duration(2, unit="ms"), default="50ms", show_default=True,
    help="Limit of the 99th percentile latency, in milliseconds.",
)  # fmt: skip
@click.option(
    "--compression", type=click.Choice(["keep", *(codec.name for codec in CompressionType)]), default="keep",
    show_default=True, help="Codec for all topics; keep: each topic's present codec.",
)  # fmt: skip
@click.option(
    "--stock", type=click.Choice(sorted(STOCK)), default="java", show_default=True,
    help="Client whose default settings are assumed for topics without entry counts.",
)  # fmt: skip
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default=Path("build/fleet"),
    show_default=True, help="Folder for statistics, settings and summary.",
)  # fmt: skip
@json_option
def command(
    cluster: Cluster,
    namespaces: tuple[str, ...],
    watch_seconds: float,
    file: Path | None,
    latency_budget_ms: float,
    compression: str,
    stock: str,
    output: Path,
) -> None:
    """Advise producer settings for all topics of a cluster, with the savings.

    Statistics are read from the brokers' admin REST, or from a Parquet file with the columns topic,
    rate_messages_per_second and message_bytes, and optionally partitions, producers, subscriptions, keys,
    entries_per_second, stored_bytes_per_second, compression.
    """
    import pyarrow.parquet as pq

    plan = FleetPlan(
        latency_budget_seconds=latency_budget_ms / 1000,
        compression=None if compression == "keep" else CompressionType[compression],
        stock=stock,
    )
    output.mkdir(parents=True, exist_ok=True)
    if file is None:
        topics = gather(cluster.admin_url, namespaces, cluster=cluster, watch_seconds=watch_seconds)
        pq.write_table(topics, output / "statistics.parquet")
    else:
        try:
            topics = pq.read_table(file)
        except (OSError, ValueError) as error:
            raise InvalidConfiguration(f"{file} is no Parquet file: {error}") from None
        check_columns(topics)
    result = advise_fleet(topics, plan)
    pq.write_table(result, output / "settings.parquet")
    found = savings(result)
    text = report(result, found)
    (output / "fleet.md").write_text(text)
    (output / "fleet.json").write_text(json.dumps(found, indent=1))
    click.echo(json.dumps(found) if wants_json() else text + f"\nSettings of all topics are in {output}.")
