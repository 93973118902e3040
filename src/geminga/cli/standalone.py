"""``geminga standalone``: run the broker as a process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from geminga.broker.settings import BrokerSettings
from geminga.cli.common import PORT
from geminga.cli.units import SIZE

if TYPE_CHECKING:
    from aiohttp import web

    from geminga.broker.admin.auth import Key, RequiredPermission

DATA_DIR = "geminga-data"
_BY_NAME: Mapping[str, Any] = {"data_dir": click.Path(file_okay=False, path_type=Path)}
_BY_UNIT: Mapping[str, Any] = {"port": PORT, "bytes": SIZE, "seconds": click.FloatRange(0)}
_FILE = click.Path(dir_okay=False, exists=True, path_type=Path)
_BY_TYPE: Mapping[str, Any] = {"int": click.INT, "float": click.FLOAT, "Path | str | None": _FILE}


def _option(field: dataclasses.Field[Any]) -> Callable[[Any], Any]:
    """Return the option of a setting: by its choices, name, unit (the end of the name) or type."""
    declared, kind = field.metadata, str(field.type)
    name, text = declared["option"], declared["help"]
    if kind == "bool":
        if field.default:
            name = f"{name}/--no-{name[2:]}"
        form: Any = click.BOOL
    elif choices := declared["choices"]:
        form = click.Choice(choices)
    else:
        unit = field.name.rpartition("_")[2]
        form = _BY_NAME.get(field.name) or _BY_UNIT.get(unit) or _BY_TYPE.get(kind, click.STRING)
    return click.option(
        name, field.name, type=form, is_flag=kind == "bool", multiple=declared["multiple"],
        default=field.default or None if kind.startswith("tuple") else field.default,
        show_default=bool(field.default) and field.default != -1 and "default" not in text,
        help=text, metavar=declared["metavar"], envvar=declared["env"],
    )  # fmt: skip


def _setting_options(command: Any) -> Any:
    """Add the options of all settings that have one, in the order of `BrokerSettings`."""
    for field in reversed(dataclasses.fields(BrokerSettings)):
        if field.metadata.get("option"):
            command = _option(field)(command)
    return command


@click.command("standalone")
@_setting_options
@click.option(
    "--console/--no-console", default=True, show_default=True,
    help="Serve the web console at / of the web port.",
)  # fmt: skip
@click.option(
    "--anonymous", is_flag=True,
    help="Allow unauthenticated access from other machines.",
)  # fmt: skip
@click.pass_context
def command(context: click.Context, /, console: bool, anonymous: bool, **given: Any) -> None:
    """Run the broker until Ctrl-C or SIGTERM.

    Topics and messages are stored in --data-dir; with --memory they are lost when the broker stops.
    """
    if given["data_dir"] is not None and given["memory"]:
        raise click.UsageError("give --data-dir DIR or --memory, not both")
    if given["data_dir"] is None and not given["memory"]:
        given["data_dir"] = Path(DATA_DIR).absolute()
        line = f"geminga: data folder {given['data_dir']} (--data-dir DIR: another; --memory: none)"
        click.echo(line, err=True)
    from geminga.broker.serving.standalone import run

    listeners = given["advertised_listeners"]
    given["advertised_listeners"] = tuple(listeners.split(",")) if listeners else ()
    if context.get_parameter_source("disk_low_water_bytes") is not click.core.ParameterSource.DEFAULT:
        given["disk_low_water_fraction"] = 0.9
    if given["offload_threshold_bytes"] >= 0 and given["offload_location"] is None:
        raise click.UsageError("--offload-threshold needs --offload-location")
    settings = BrokerSettings(**given)
    if anonymous and settings.authenticates:
        raise click.UsageError("--anonymous is for a broker without authentication; leave one of both out")
    if settings.is_beyond_loopback and not settings.authenticates and not anonymous:
        raise click.UsageError(
            f"--host {settings.host} lets others than this machine in, and nobody is asked who they are: "
            "give --token-secret-key, --token-public-key or --basic-auth, or --anonymous if that is meant"
        )
    raise click.exceptions.Exit(run(settings, site=_console if console else None))


def _console(application: web.Application) -> Mapping[Key, RequiredPermission]:
    """Add the console's pages; called at the first web request."""
    from geminga.console.site import attach

    return attach(application)
