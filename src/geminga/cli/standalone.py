"""``geminga standalone``: run the broker as a process."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from click.core import ParameterSource

from geminga.broker.serving.process_settings import ProcessSettings
from geminga.broker.settings import BrokerSettings
from geminga.cli.common import PORT
from geminga.cli.units import SIZE, parse_size
from geminga.config import suggestion
from geminga.errors import InvalidConfiguration

if TYPE_CHECKING:
    from aiohttp import web

    from geminga.broker.admin.auth import Key, RequiredPermission

DATA_DIR = "geminga-data"
FIELDS: Final[Mapping[str, dataclasses.Field[Any]]] = {
    field.name: field
    for settings in (BrokerSettings, ProcessSettings)
    for field in dataclasses.fields(settings)
}
"""All settings of ``geminga standalone``, by name."""
_ENVIRONMENT: Final = "GEMINGA_"
_MISTYPED: Final = 0.85
"""Similarity above which a variable of the environment is taken for a mistyped setting."""
_FILE = click.Path(dir_okay=False, exists=True, path_type=Path)
_BY_TYPE: Mapping[str, Any] = {"int": click.INT, "float": click.FLOAT, "Path | str": _FILE}


class _PortOrNone(click.ParamType):  # type: ignore[type-arg]  # no subscript before click 8.4
    """Port, or ``none`` for no web server."""

    name = "port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return None if value == "none" else PORT.convert(value, param, ctx)


class _Size(click.ParamType):  # type: ignore[type-arg]
    """Size in bytes as `SIZE` reads it, or -1."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return -1 if value == "-1" else SIZE.convert(value, param, ctx)


class _Text(click.types.StringParamType):
    def split_envvar_value(self, rv: str) -> list[str]:
        return [each.strip() for each in rv.split(",") if each.strip()]


_BY_NAME: Mapping[str, Any] = {
    "data_dir": click.Path(file_okay=False, path_type=Path), "web_port": _PortOrNone(),
}  # fmt: skip


class _SettingOption(click.Option):
    """Option of a setting, with its environment variable."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the variable's value; Kubernetes sets GEMINGA_PORT=tcp://... for a service of that name."""
        value = super().resolve_envvar_value(ctx)
        return None if value is not None and value.startswith(("tcp://", "udp://")) else value

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the name of the option, or of the variable if the value comes from there."""
        from_variable = ctx and ctx.get_parameter_source(str(self.name)) is ParameterSource.ENVIRONMENT
        return repr(self.envvar) if from_variable else super().get_error_hint(ctx)


def _is_size(field: dataclasses.Field[Any]) -> bool:
    return "bytes" in field.name.split("_") and str(field.type).startswith("int")


def _option(field: dataclasses.Field[Any], hidden: bool = False) -> Callable[[Any], Any]:
    """Return the option of a setting: by its choices, name, unit or type; hidden unless it is declared."""
    declared, kind = field.metadata, str(field.type).removesuffix(" | None")
    name, text = declared.get("option"), declared.get("help") or ""
    hidden = hidden or not name
    name = name or "--" + field.name.replace("_", "-")
    if kind == "bool":
        if field.default:
            name = f"{name}/--no-{name[2:]}"
        form: Any = click.BOOL
    elif choices := declared.get("choices"):
        form = click.Choice(choices)
    elif field.name.endswith("_port") or field.name == "port":
        form = _BY_NAME.get(field.name, PORT)
    elif _is_size(field):
        form = _Size()
    else:
        form = _BY_NAME.get(field.name) or _BY_TYPE.get(kind, _Text())
    return click.option(
        name, field.name, cls=_SettingOption, type=form, is_flag=kind == "bool", hidden=hidden,
        multiple=declared.get("multiple", False), envvar=_ENVIRONMENT + field.name.upper(),
        default=field.default or None if kind.startswith("tuple") else field.default,
        show_default=bool(field.default) and field.default != -1 and "default" not in text,
        help=text, metavar=declared.get("metavar"),
    )  # fmt: skip


def setting_options(hidden: bool = False) -> Callable[[Any], Any]:
    """Add ``--config`` and the options of all settings; ``hidden``: the help shows only the first."""

    def add(command: Any) -> Any:
        for field in reversed(list(FIELDS.values())):
            command = _option(field, hidden)(command)
        return click.option(
            "--config", type=_FILE, envvar=_ENVIRONMENT + "CONFIG",
            help="Configuration file in TOML; options and the environment (GEMINGA_PORT) override it.",
        )(command)  # fmt: skip

    return add


class Configuration(NamedTuple):
    """Settings in force. ``sources``: the option, variable or file of those that are not defaults."""

    broker: BrokerSettings
    process: ProcessSettings
    sources: Mapping[str, str]


def read_configuration(context: click.Context) -> Configuration:
    """Return the settings of the context's options, of the environment and of the file, which is read now.

    Raises `InvalidConfiguration` that names the source of a wrong value.
    """
    _refuse_mistyped_variables()
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for option in context.command.params:
        source, name = context.get_parameter_source(str(option.name)), str(option.name)
        if name in FIELDS and source is not ParameterSource.DEFAULT:
            values[name] = context.params[name]
            by_variable = source is ParameterSource.ENVIRONMENT
            sources[name] = _ENVIRONMENT + name.upper() if by_variable else option.opts[0]
    if (listeners := values.get("advertised_listeners")) is not None:
        values["advertised_listeners"] = tuple(filter(None, listeners.split(",")))
    path = context.params["config"]
    overridden = {*values, *({"data_dir"} if values.get("memory") else ())}
    overridden |= {"memory"} if "data_dir" in values else set()
    for name, value in (_read_file(path) if path is not None else {}).items():
        if name not in overridden:
            values[name], sources[name] = value, str(path)
    _fill_in(values)
    try:
        own = {each.name for each in dataclasses.fields(ProcessSettings)}
        broker = BrokerSettings(**{name: value for name, value in values.items() if name not in own})
        process = ProcessSettings(**{name: value for name, value in values.items() if name in own})
        return _checked(Configuration(broker, process, sources))
    except InvalidConfiguration as error:
        named = re.match(r"\w+", str(error))
        given_by = sources.get(named[0]) if named else None
        raise InvalidConfiguration(f"{given_by}: {error}" if given_by else str(error)) from None


def _refuse_mistyped_variables() -> None:
    for variable in os.environ:
        name = variable.removeprefix(_ENVIRONMENT).lower()
        if variable.startswith(_ENVIRONMENT) and name not in FIELDS:
            near = difflib.get_close_matches(name, FIELDS, 1, _MISTYPED)
            if near:
                meant = _ENVIRONMENT + near[0].upper()
                raise InvalidConfiguration(f"{variable} is no setting (did you mean {meant!r}?)")


def _read_file(path: Path) -> dict[str, Any]:
    """Return the values of a configuration file. Raises `InvalidConfiguration` that names file and key."""
    try:
        with path.open("rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise InvalidConfiguration(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # TOML's errors, and text that is not UTF-8
        raise InvalidConfiguration(f"{path} is not TOML: {error}") from None
    for name, value in found.items():
        field = FIELDS.get(name)
        if field is None:
            raise InvalidConfiguration(f"{path}: there is no setting {name!r}{suggestion(name, FIELDS)}")
        if name == "web_port" and value == "none":
            found[name] = None
        elif isinstance(value, str) and _is_size(field):
            try:
                found[name] = parse_size(value)
            except ValueError as error:
                raise InvalidConfiguration(f"{path}: {name}: {error}") from None
    return found


def _fill_in(values: dict[str, Any]) -> None:
    """Add the settings that follow from others."""
    if values.get("data_dir") is not None and values.get("memory"):
        raise click.UsageError("give --data-dir DIR or --memory, not both")
    if values.get("data_dir") is None and not values.get("memory"):
        values["data_dir"] = Path(DATA_DIR).absolute()
    if "disk_low_water_bytes" in values:
        values.setdefault("disk_low_water_fraction", 0.9)


def _checked(found: Configuration) -> Configuration:
    """Return the configuration. Raises `click.UsageError` for one that other machines could use at will."""
    settings, anonymous = found.broker, found.process.anonymous
    if settings.offload_threshold_bytes >= 0 and settings.offload_location is None:
        raise click.UsageError("--offload-threshold needs --offload-location")
    if anonymous and settings.authenticates:
        raise click.UsageError("--anonymous is for a broker without authentication; leave one of both out")
    if settings.is_beyond_loopback and not settings.authenticates and not anonymous:
        raise click.UsageError(
            f"--host {settings.host} lets others than this machine in, and nobody is asked who they are: "
            "give --token-secret-key, --token-public-key or --basic-auth, or --anonymous if that is meant"
        )
    return found


@click.command("standalone")
@setting_options()
@click.pass_context
def command(context: click.Context, /, **_: Any) -> None:
    """Run the broker until Ctrl-C or SIGTERM; SIGHUP reloads its configuration.

    Topics and messages are stored in --data-dir; with --memory they are lost when the broker stops. Every
    setting of "geminga config init" is an option (--cluster) and a variable (GEMINGA_CLUSTER), too.
    """
    found = read_configuration(context)
    from geminga.broker.serving.standalone import run

    def reread() -> tuple[BrokerSettings, ProcessSettings]:
        try:
            return read_configuration(context)[:2]
        except click.UsageError as error:
            raise InvalidConfiguration(error.message) from None

    site = _console if found.process.console else None
    raise click.exceptions.Exit(run(found.broker, found.process, site=site, reread=reread))


def _console(application: web.Application) -> Mapping[Key, RequiredPermission]:
    """Add the console's pages; called at the first web request."""
    from geminga.console.site import attach

    return attach(application)
