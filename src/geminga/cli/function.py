"""``geminga function``: call a function for every message of its input topics and publish the results."""

import json
from pathlib import Path
from typing import Any

import click

from geminga.cli.common import Commands, WordChoice, say
from geminga.cli.connecting import ConnectingCommand, connecting
from geminga.client.cluster import Cluster


@click.group("function", cls=Commands)
def command() -> None:
    """Run functions from topics to topics, without a cluster of workers."""


@command.command("run", cls=ConnectingCommand)
@click.argument("function", required=False)
@click.option(
    "--config", "config_file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML or JSON with the fields of pulsar-admin functions; options take precedence.",
)  # fmt: skip
@click.option("--input", "inputs", multiple=True, help="Input topic; may be repeated.")
@click.option("--topics-pattern", help="Read all topics whose names match, instead of --input.")
@click.option("--output", help="Topic for results; without: results are dropped.")
@click.option("--name", help="The function's name.  [default: the callable's]")
@click.option("--tenant", help="The function's tenant.  [default: public]")
@click.option("--namespace", help="The function's namespace.  [default: default]")
@click.option("--subscription", help="Subscription name.  [default: TENANT/NAMESPACE/NAME]")
@click.option(
    "--from", "subscription_position", type=WordChoice(("earliest", "latest")),
    help="Start position of a new subscription.  [default: earliest]",
)  # fmt: skip
@click.option(
    "--guarantee",
    type=WordChoice(("atleast_once", "effectively_once", "transactional", "atmost_once", "manual")),
    help="Processing guarantee.  [default: atleast_once]",
)  # fmt: skip
@click.option(
    "--max-retries", "max_message_retries", type=click.IntRange(1),
    help="Retries of a failing message before it goes to the dead letter topic.",
)  # fmt: skip
@click.option(
    "--dead-letter-topic",
    help="Topic for messages that failed --max-retries times.  [default: TOPIC-SUBSCRIPTION-DLQ]",
)
@click.option("--arrow", is_flag=True, default=None, help="The callable takes and returns Arrow tables.")
@click.option("--max-rows", type=click.IntRange(1), help="Maximum rows in an Arrow table.  [default: 100000]")
@click.option(
    "--max-concurrency", type=click.IntRange(1),
    help="Concurrent calls of an async callable.  [default: 100]",
)  # fmt: skip
@click.option("--no-order", is_flag=True, help="Publish results of async calls as they complete.")
@click.option("--input-schema", metavar="MODULE:NAME", help="Input schema: a schema, record or dataclass.")
@click.option("--output-schema", metavar="MODULE:NAME", help="Output schema: a schema, record or dataclass.")
@click.option("--user-config", help="JSON for Context.get_user_config_value.")
@click.option("--log-topic", help="Topic for the function's log lines.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Loopback port of Prometheus' /metrics.")
@click.option(
    "--compression", type=WordChoice(("none", "lz4", "zlib", "zstd", "snappy")),
    help="Compression of results.  [default: none]",
)  # fmt: skip
@click.option("--parallelism", type=click.IntRange(1), help="Number of processes.  [default: 1]")
@connecting
def run(
    function: str | None,
    config_file: Path | None,
    inputs: tuple[str, ...],
    no_order: bool,
    user_config: str | None,
    cluster: Cluster,
    **options: Any,
) -> None:
    """Call FUNCTION (module:callable) for every message of the input topics.

    Runs until Ctrl-C or SIGTERM; calls in progress are finished, and other messages are redelivered at the
    next start. A class of Pulsar Functions with process(self, input, context) runs unchanged.
    """
    import logging

    from geminga.functions.runner import FunctionRunner
    from geminga.functions.settings import from_config, read_config

    given = {name: value for name, value in options.items() if value is not None}
    given["connection"] = cluster.as_dict()
    given["service_url"] = cluster.service_url
    for name in ("guarantee", "compression"):
        if name in given:
            given[name] = given[name].upper()
    if function is not None:
        given["function"] = function
    if inputs:
        given["inputs"] = inputs
    if no_order:
        given["keep_order"] = False
    if user_config is not None:
        try:
            given["user_config"] = dict(json.loads(user_config))
        except (ValueError, TypeError):
            raise click.UsageError(f"--user-config {user_config}: a JSON object is expected") from None
    config = {} if config_file is None else read_config(config_file)
    if function is None and not config:
        raise click.UsageError("FUNCTION (module:callable) or --config FILE is missing")
    if not inputs and not config and "topics_pattern" not in given:
        raise click.UsageError("--input TOPIC, or --topics-pattern PATTERN, is missing")
    settings = from_config(config, **given)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    say(
        f"geminga function {settings.full_name}: {', '.join(settings.inputs) or settings.topics_pattern} -> "
        f"{settings.output or 'nowhere'}, {settings.guarantee}, subscription {settings.subscription_name}"
    )
    if settings.parallelism > 1:
        from geminga.functions.processes import supervise

        raise SystemExit(supervise(settings, say))
    runner = FunctionRunner(settings)
    runner.run()
    metrics = runner.metrics
    say(
        f"{metrics.received} received, {metrics.processed} done, {metrics.published} published, "
        f"{metrics.user_exceptions} failed calls"
    )
