"""Options that the ``geminga tune`` commands share: broker, traffic, sample and output files."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from geminga.cli.common import Duration, Number, with_options
from geminga.cli.units import SIZE
from geminga.tuning.traffic import TrafficProfile


class OutputFile(click.Path):
    """Output file; a missing folder is reported before the work starts."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(str(super().convert(value, param, ctx)))
        if not path.parent.is_dir():
            self.fail(f"{path.parent} is no folder", param, ctx)
        return path


namespace_option = click.option(
    "--namespace", default="public/default", show_default=True, help="Namespace of the test topics."
)
server_pid_option = click.option(
    "--server-pid", "server_pids", type=int, multiple=True,
    help="Process ID of the broker; may be repeated.  [default: found by its port]",
)  # fmt: skip
sample_option = click.option(
    "--sample", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with typical messages, one per line, instead of generated ones.",
)  # fmt: skip


def run_options(
    *, seconds: int, warm_seconds: int, output: str, only: str = "all"
) -> Callable[[Callable[..., Any]], Any]:
    """Add the options of measured runs, with these defaults; they are named as the fields of `ProofPlan`."""
    options = [
        click.option(
            "--payload", type=click.Choice(["logs", "telemetry", "orders"]), default="logs",
            show_default=True, help="Kind of generated messages.",
        ),
        sample_option,
        click.option(
            "--seconds", type=Duration(0.1, 3600), default=f"{seconds}s", show_default=True,
            help="Measured seconds of a run.",
        ),
        click.option(
            "--warm-seconds", type=Duration(0, 600), default=f"{warm_seconds}s", show_default=True,
            help="Seconds of load before the measurement.",
        ),
        click.option(
            "--only", multiple=True, metavar="PATTERN",
            help=f"Subjects to run, such as '*ZSTD'; may be repeated.  [default: {only}]",
        ),
        click.option(
            "--idle-seconds", type=Duration(0.1, 600), default="5s", show_default=True,
            help="Seconds to measure the idle broker before each run.",
        ),
        namespace_option,
        server_pid_option,
        click.option(
            "--output", type=click.Path(file_okay=False, path_type=Path), default=Path(output),
            show_default=True,
            help="Folder for table, picture, JSON and runs; an existing folder is resumed.",
        ),
    ]  # fmt: skip
    return with_options(*options)


_TRAFFIC = (
    ("rate", "rate_messages_per_second", Number(0.001), "Messages per second of all producers."),
    ("message-bytes", "message_bytes", SIZE, "Mean payload size before compression."),
    ("message-bytes-variation", "message_bytes_variation", Number(0, 10),
     "Standard deviation of the payload size, divided by the mean."),
    ("partitions", "partitions", click.IntRange(1), "Partitions of the topic."),
    ("producers", "producers", click.IntRange(1), "Producers that share the rate."),
    ("producers-per-client", "producers_per_client", click.IntRange(1),
     "Producers that share a client and its memory limit."),
    ("subscriptions", "subscriptions", click.IntRange(0), "Subscriptions; each receives every message."),
    ("keys", "keys", click.IntRange(0), "Distinct keys; 0: messages have no key."),
    ("key-skew", "key_skew", Number(0, 10), "Zipf exponent of the key frequencies."),
    ("write-quorum", "write_quorum", click.IntRange(1), "Copies of each entry that bookies keep."),
)  # fmt: skip
_DEFAULTS = {
    "message_bytes_variation": 0, "partitions": 1, "producers": 1, "producers_per_client": 1,
    "subscriptions": 1, "keys": 0, "key_skew": 0, "write_quorum": 1,
}  # fmt: skip


def traffic_options(**defaults: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of a traffic profile; the command receives them as one dictionary, ``traffic``.

    ``defaults``: default by field of `TrafficProfile`, if it differs from the profile's.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        names = [field for _, field, _, _ in _TRAFFIC] + ["latency_budget_ms"]

        @functools.wraps(command)
        def wrapped(**given: Any) -> Any:
            traffic = {name: given.pop(name) for name in names}
            return command(traffic=traffic, **given)

        options = [
            click.option(
                f"--{option}", field, type=kind, help=text, show_default=True,
                default={**_DEFAULTS, **defaults}.get(field),
            )
            for option, field, kind, text in _TRAFFIC
        ]  # fmt: skip
        options.append(
            click.option(
                "--latency-budget", "latency_budget_ms", type=Duration(2, unit="ms"), show_default=True,
                default=f"{defaults.get('latency_budget_ms', 50)}ms",
                help="Limit of the 99th percentile latency from send to receive, in milliseconds.",
            )
        )  # fmt: skip
        return with_options(*options)(wrapped)

    return decorate


def traffic_profile(traffic: dict[str, Any]) -> TrafficProfile:
    """Return the profile of the options. Raises `InvalidConfiguration`."""
    budget = traffic["latency_budget_ms"] / 1000
    given = {name: value for name, value in traffic.items() if name != "latency_budget_ms"}
    return TrafficProfile(latency_budget_seconds=budget, **given)


def read_samples(path: Path | None) -> tuple[bytes, ...]:
    """Read the messages of a file, one per line."""
    if path is None:
        return ()
    found = tuple(line for line in path.read_bytes().splitlines() if line.strip())
    if not found:
        raise click.BadParameter(f"{path} holds no messages", param_hint="--sample")
    return found
