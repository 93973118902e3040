"""``geminga config``: the configuration of ``geminga standalone``."""

import dataclasses
import json
import os
import textwrap
from pathlib import Path
from typing import Any

import click

from geminga.broker.settings import BrokerSettings, ProcessSettings, field_docs, shown
from geminga.cli.common import Commands, emit, json_option
from geminga.cli.standalone import FIELDS, read_configuration, setting_options

_UNITS = ("bytes", "megabytes", "seconds", "minutes")
_ABOUT = """Configuration of `geminga standalone --config FILE`. Options of the command line and variables of
the environment (GEMINGA_ and the name in capitals) override it. Remove the # before the settings that you
change; the values are the defaults. Sizes in bytes may be texts such as "20G"; web_port = "none" starts no
web server. `geminga config show --config FILE` checks the file."""


@click.group("config", cls=Commands)
def command() -> None:
    """Show the configuration of "geminga standalone", or write a file of it."""


@command.command("show")
@setting_options(hidden=True)
@json_option
@click.pass_context
def show(context: click.Context, /, **_: Any) -> None:
    """Print all settings, and the option, variable or file that each comes from.

    Takes the options of "geminga standalone" and reports the same errors. Secrets are hidden. What
    administrators have changed at run time is in the broker's data folder and not shown.
    """
    found = read_configuration(context)
    values = [(each, shown(of, each)) for of in found[:2] for each in dataclasses.fields(of)]
    for field, value in values:
        value = os.fspath(value) if isinstance(value, Path) else value
        row = {"name": field.name, "value": value, "source": found.sources.get(field.name, "default")}
        emit(row, f"{f'{field.name} = {toml(value)}':<56} # {row['source']}")


@command.command("init")
@click.argument("file", required=False, type=click.Path(path_type=Path))
def init(file: Path | None) -> None:
    """Write a configuration file with every setting, commented, or print it without FILE.

    An existing file is not overwritten. Only the owner may read the new one: it may come to hold secrets.
    """
    if file is None:
        click.echo(sample(), nl=False)
        return
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(sample())


def sample() -> str:
    """Return the text of a configuration file in which every setting is commented out, with its default."""
    parts = [_commented(_ABOUT)]
    docs = field_docs(BrokerSettings) | field_docs(ProcessSettings)
    for name, field in FIELDS.items():
        units = [unit for unit in _UNITS if unit in name.split("_")]
        changes = "changed by SIGHUP" if field.metadata.get("reload") else "read at the start"
        notes = [*(f"in {unit}" for unit in units), *field.metadata.get("choices", ()), changes]
        text = f"{docs[name].replace('``', '`')} ({'; '.join(notes)})"
        parts.append(f"{_commented(text)}# {name} = {toml(field.default)}\n")
    return "\n".join(parts)


def _commented(text: str) -> str:
    lines = textwrap.wrap(" ".join(text.split()), 100, break_on_hyphens=False)
    return "".join(f"## {line}\n" for line in lines)


def toml(value: Any) -> str:
    """Return a value as TOML writes it; TOML has no None."""
    return "(not set)" if value is None else json.dumps(list(value) if isinstance(value, tuple) else value)
