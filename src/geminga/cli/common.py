"""What several sub-commands share: the options for addresses and JSON, and how a result is printed."""

from __future__ import annotations

import json
from typing import Any

import click

DEFAULT_URL = "pulsar://127.0.0.1:6650"
DEFAULT_ADMIN_URL = "http://127.0.0.1:8080"

PORT = click.IntRange(0, 65535)


class Number(click.FloatRange):
    """A range of finite numbers: click's own lets "nan" through every comparison."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


SECONDS = Number(0.1, 1_000_000)

url_option = click.option(
    "--url", "service_url", default=DEFAULT_URL, envvar="PULSAR_SERVICE_URL", show_default=True,
    help="The broker's service URL.",
)  # fmt: skip
admin_url_option = click.option(
    "--admin-url", default=DEFAULT_ADMIN_URL, envvar="PULSAR_ADMIN_URL", show_default=True,
    help="The broker's web address.",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")


def emit(value: Any, *, as_json: bool, text: str) -> None:
    """Print ``value`` as one line of JSON, or ``text`` for a person."""
    click.echo(json.dumps(value, separators=(",", ":"), default=str) if as_json else text)
