"""``geminga standalone``: run the broker as a process."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from click.core import ParameterSource

from geminga.broker.settings import PORTS, BrokerSettings, ProcessSettings, field_docs
from geminga.cli.common import PORT, Duration
from geminga.cli.units import SIZE
from geminga.config import check_ports, suggestion
from geminga.errors import InvalidConfiguration

if TYPE_CHECKING:
    from aiohttp import web

    from geminga.broker.admin.auth import Key, RequiredPermission

DATA_DIR = "geminga-data"
FIELDS: Final[Mapping[str, dataclasses.Field[Any]]] = {
    **BrokerSettings.__dataclass_fields__, **ProcessSettings.__dataclass_fields__,
}  # fmt: skip
"""All settings of ``geminga standalone``, by name."""
_ENVIRONMENT: Final = "GEMINGA_"
_NEEDED: Final = tuple(map(_ENVIRONMENT.__add__, ("TOKEN_", "BASIC_AUTH", "TLS_", "CONFIG", "DATA_DIR")))
"""Variables that are refused if empty: the broker would lack authentication, TLS, or its data."""
_MISTYPED: Final = 0.9
"""Similarity above which a variable of the environment is taken for a mistyped setting."""
_FILE = click.Path(dir_okay=False, exists=True, path_type=Path)


class _Or(click.ParamType):  # type: ignore[type-arg]  # no subscript before click 8.4
    """Another type, or one text that stands for a value."""

    def __init__(self, form: click.ParamType, text: str, value: int | None) -> None:  # type: ignore[type-arg]
        self.name, self._form, self._text, self._value = form.name, form, text, value

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._value if value == self._text else self._form.convert(value, param, ctx)


_TIMES = {"seconds": "s", "minutes": "m"}
_NAMES = {unit: name for name, unit in _TIMES.items()}


class _WholeDuration(Duration):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = super().convert(value, param, ctx)
        if not number.is_integer():
            self.fail(f"{value!r} is not a whole number of {_NAMES[self.unit]}", param, ctx)
        return int(number)


class _Text(click.types.StringParamType):
    def split_envvar_value(self, rv: str) -> list[str]:
        return [each.strip() for each in rv.split(",") if each.strip()]


_BY_NAME: Mapping[str, Any] = {
    "data_dir": click.Path(file_okay=False), "port": PORT, "tls_port": PORT,
    "web_port": _Or(PORT, "none", None), "web_tls_port": PORT, "health_port": PORT,
}  # fmt: skip
_SIZE = _Or(SIZE, "-1", -1)
_BYTES = {"bytes", "size"}
_BY_TYPE: Mapping[str, Any] = {"int": click.INT, "float": click.FLOAT, "Path | str": _FILE}


@cache
def _texts() -> Mapping[str, str]:
    """Return the first sentence of each setting's text, in which other settings have their options' names."""
    names = {f"``{name}``": _name_of(field) for name, field in FIELDS.items()}
    texts = {}
    for name, text in (field_docs(BrokerSettings) | field_docs(ProcessSettings)).items():
        first = " ".join(re.split(r"(?<=\.)\s", text)[0].split())
        texts[name] = re.sub("``.*?``", lambda quoted: names.get(quoted[0], quoted[0].strip("`")), first)
    return texts


def _name_of(field: dataclasses.Field[Any]) -> str:
    """Return the name of a setting's option."""
    return field.metadata.get("option") or "--" + field.name.replace("_", "-")


class _SettingOption(click.Option):
    """Option of a setting, with its environment variable."""

    @property
    def help(self) -> str:
        """Help text, which is read from the source only when it is shown; setting it has no effect."""
        return _texts()[str(self.name)] + (" May be repeated." if self.multiple else "")

    @help.setter
    def help(self, text: str | None) -> None: ...

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the variable's value; Kubernetes sets GEMINGA_PORT=tcp://... for a service of that name."""
        value = super().resolve_envvar_value(ctx)
        return None if value is not None and value.startswith(("tcp://", "udp://")) else value

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the name of the option, or of the variable if the value comes from there."""
        from_variable = ctx and ctx.get_parameter_source(str(self.name)) is ParameterSource.ENVIRONMENT
        return repr(self.envvar) if from_variable else super().get_error_hint(ctx)


def _form(field: dataclasses.Field[Any]) -> Any:
    """Return the click type of a setting: by its choices, name, unit or type."""
    kind = str(field.type).removesuffix(" | None")
    if choices := field.metadata.get("choices"):
        return click.Choice(choices)
    words = field.name.split("_")
    if kind == "int" and _BYTES.intersection(words):
        return _SIZE
    for word in _TIMES.keys() & words:
        minimum = field.metadata.get("minimum", 0)
        least = None if isinstance(minimum, str) else minimum  # a text names another setting
        return (_WholeDuration if kind == "int" else Duration)(least, unit=_TIMES[word])
    return click.BOOL if kind == "bool" else _BY_NAME.get(field.name) or _BY_TYPE.get(kind, _Text())


def _option(field: dataclasses.Field[Any], hidden: bool = False) -> Callable[[Any], Any]:
    """Return the option of a setting."""
    declared, kind = field.metadata, str(field.type)
    name = _name_of(field)
    if kind == "bool" and field.default:
        name = f"{name}/--no-{name[2:]}"
    return click.option(
        name, field.name, cls=_SettingOption, type=_form(field), is_flag=kind == "bool",
        hidden=hidden or not declared.get("in_help"), multiple=declared.get("multiple", False),
        envvar=_ENVIRONMENT + field.name.upper(),
        default=field.default or None if kind.startswith("tuple") else field.default,
        show_default=bool(field.default) and field.default != -1, metavar=declared.get("metavar"),
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
    _check_variables()
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
    overridden = {
        *values,
        "data_dir" if values.get("memory") else "",
        "memory" if "data_dir" in values else "",
    }
    for name, value in (_read_file(path) if path is not None else {}).items():
        if name not in overridden:
            values[name], sources[name] = value, str(path)
    if values.get("data_dir") is not None and values.get("memory"):
        raise InvalidConfiguration("give --data-dir DIR or --memory, not both")
    if values.get("data_dir") is None and not values.get("memory"):
        values["data_dir"] = Path(DATA_DIR).absolute()
    if "disk_low_water_bytes" in values:
        values.setdefault("disk_low_water_fraction", 0.9)
    try:
        own = {name: values.pop(name) for name in ProcessSettings.__dataclass_fields__ if name in values}
        return _checked(Configuration(BrokerSettings(**values), ProcessSettings(**own), sources))
    except InvalidConfiguration as error:
        named = re.match(r"\w+", str(error))
        given_by = sources.get(named[0]) if named else None
        raise InvalidConfiguration(f"{given_by}: {error}" if given_by else str(error)) from None


def _check_variables() -> None:
    meant = {}
    for name, field in FIELDS.items():
        for each in (name, field.metadata.get("option") or name):
            meant[_ENVIRONMENT + each.lstrip("-").replace("-", "_").upper()] = _ENVIRONMENT + name.upper()
    for variable, value in os.environ.items():
        if not value and variable.startswith(_NEEDED):
            raise InvalidConfiguration(f"{variable} is empty: give a value, or unset it")
        if variable.startswith(_ENVIRONMENT) and meant.get(variable) != variable:
            import difflib  # imported only for a suspect

            for near in difflib.get_close_matches(variable, meant, 1, _MISTYPED):
                raise InvalidConfiguration(f"{variable} is not a setting (did you mean {meant[near]!r}?)")


def _read_file(path: Path) -> dict[str, Any]:
    """Return the values of a configuration file. Raises `InvalidConfiguration` that names file and key."""
    import tomllib  # takes a fiftieth of a broker's start

    try:
        found = tomllib.loads(path.read_text("utf-8-sig"))  # editors of Windows write a byte order mark
    except OSError as error:
        raise InvalidConfiguration(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # TOML's errors, and text that is not UTF-8
        raise InvalidConfiguration(f"{path} is not TOML: {error}") from None
    for name, value in found.items():
        field = FIELDS.get(name)
        if field is None:
            raise InvalidConfiguration(f"{path}: there is no setting {name!r}{suggestion(name, FIELDS)}")
        if isinstance(value, str) and isinstance(form := _form(field), _Or):
            try:
                found[name] = form.convert(value, None, None)
            except click.BadParameter as error:
                raise InvalidConfiguration(f"{path}: {name}: {error.message}") from None
    return found


def _checked(found: Configuration) -> Configuration:
    """Return the configuration. Raises `InvalidConfiguration` for one that is open to other machines."""
    settings, anonymous = found.broker, found.process.anonymous
    check_ports(
        {name: getattr(settings, name) for name in PORTS} | {"health_port": found.process.health_port}
    )
    if settings.offload_threshold_bytes >= 0 and settings.offload_location is None:
        raise InvalidConfiguration("--offload-threshold needs --offload-location")
    if anonymous and settings.authenticates:
        raise InvalidConfiguration(
            "--anonymous is for a broker without authentication; leave one of both out"
        )
    if settings.is_beyond_loopback and not settings.authenticates and not anonymous:
        raise InvalidConfiguration(
            f"--host {settings.host} accepts other machines without authentication: "
            "give --token-secret-key, --token-public-key or --basic-auth, or --anonymous if that is intended"
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
    # Pending until the broker serves: its default would end the process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    found = read_configuration(context)
    from geminga.broker.serving.standalone import run

    site = _site if found.process.console else _websocket
    code = run(found.broker, found.process, site=site, reread=lambda: read_configuration(context)[:2])
    raise click.exceptions.Exit(code)


def _site(application: web.Application) -> Mapping[Key, RequiredPermission]:
    """Add the console's pages and the WebSocket API; called at the first web request."""
    from geminga.console.site import attach

    return {**attach(application), **_websocket(application)}


def _websocket(application: web.Application) -> Mapping[Key, RequiredPermission]:
    from geminga.websocket import attach

    return attach(application)
