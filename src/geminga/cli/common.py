"""Parts that several sub-commands share: lazy groups, number types, ``--json``, and printing of results."""

import contextlib
import importlib
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from geminga.cli.units import parse_span
from geminga.config import suggestion
from geminga.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

PORT = click.IntRange(0, 65535)


def write_section(formatter: click.HelpFormatter, title: str, rows: list[tuple[str, str]]) -> None:
    """Write a section of a help page, unless it is empty."""
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)


class LazyGroup(click.Group):
    """Click group that shows the help lines of its commands without importing their modules.

    ``sections`` maps each heading of the help to its sub-commands and their help lines. ``modules``: the name
    of each one's module, which holds a ``command``, without the sub-command's own.
    """

    def __init__(
        self, *arguments: Any, sections: Mapping[str, Mapping[str, str]], modules: str, **settings: Any
    ) -> None:
        super().__init__(*arguments, **settings)
        self._sections = sections
        self._modules = modules
        self._commands_by_name = {name: text for each in sections.values() for name, text in each.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._commands_by_name)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._commands_by_name:
            return None
        command = importlib.import_module(self._modules + cmd_name).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self._commands_by_name
        if args and args[0] not in known and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r}{suggestion(args[0], known)}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        known = self._commands_by_name.items()
        items = [CompletionItem(name, help=text) for name, text in known if name.startswith(incomplete)]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self._commands_by_name))
        for title, commands in self._sections.items():
            write_section(formatter, title, [(name.ljust(width), text) for name, text in commands.items()])


class Commands(click.Group):
    """Click group whose help shows each command's first sentence in full, in order of definition, and lists
    the commands that set policies in a section "Policies"."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Commands": [], "Policies": []}
        for name in self.list_commands(ctx):
            command = self.commands[name]
            sentence = " ".join((command.help or "").split("\n\n")[0].split())
            about = name.startswith("set-") or name in ("policies", "policy", "unset")
            sections["Policies" if about else "Commands"].append((name, sentence))
        for title, rows in sections.items():
            write_section(formatter, title, rows)


class Number(click.FloatRange):
    """Range of finite numbers: `click.FloatRange` accepts "nan"."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


class Duration(Number):
    """Duration as a number of ``unit`` (s, ms, h): a number, or a text such as ``90s`` or ``5m``."""

    name = "time"

    def __init__(self, minimum: float | None, maximum: float | None = None, unit: str = "s") -> None:
        super().__init__(minimum, maximum)
        self.unit = unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        with contextlib.suppress(ValueError):
            value = parse_span(str(value), self.unit) / parse_span("1", self.unit)
        return super().convert(value, param, ctx)


class WordChoice(click.Choice):  # type: ignore[type-arg]  # no subscript before click 8.2
    """Choice of words that may be written in any case, with or without ``-`` or ``_``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        known = {re.sub("[-_]", "", str(one).lower()): one for one in self.choices}
        return super().convert(known.get(re.sub("[-_]", "", str(value).lower()), value), param, ctx)


SECONDS = Duration(0.1, 1_000_000)


def with_options(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that adds options and arguments, in this order."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def pairs(_ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Callback of a repeated option: return its ``NAME=VALUE`` as a dict."""
    for one in values:
        if one.find("=") < 1:
            raise click.BadParameter(f"{one!r} is not NAME=VALUE")
    return dict(one.split("=", 1) for one in values)


def _keep(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Callback of a flag that `emit` or `confirm` looks up."""
    ctx.meta[f"geminga.{parameter.name}"] = value


json_option = click.option(
    "--json", "as_json", is_flag=True, expose_value=False, callback=_keep,
    help="Print JSON, one object per line.",
)  # fmt: skip
yes_option = click.option(
    "--yes", is_flag=True, expose_value=False, callback=_keep, help="Do not ask for confirmation."
)


def wants_json() -> bool:
    """Return whether the running command was given ``--json``."""
    return bool(click.get_current_context().meta.get("geminga.as_json"))


def asks() -> bool:
    """Return whether the running command must ask before it destroys data: it was not given ``--yes``."""
    return not click.get_current_context().meta.get("geminga.yes")


def show_warnings() -> None:
    """Print the library's warnings to standard error until the command ends."""
    import logging  # takes a twentieth of a command's start

    logger, lines = logging.getLogger("geminga"), logging.Handler(logging.WARNING)
    lines.emit = lambda record: say(f"geminga: {record.getMessage()}")  # type: ignore[method-assign]
    logger.addHandler(lines)
    click.get_current_context().call_on_close(lambda: logger.removeHandler(lines))


def say(line: str, *, nl: bool = True) -> None:
    """Write a line to standard error; drop the line if the pipe is closed."""
    with contextlib.suppress(OSError):
        click.echo(line, nl=nl, err=True)


def confirm(question: str, *, err: bool = True) -> None:
    """Ask before data is destroyed, unless ``--yes`` is given. ``err``: on standard error.

    Ends the command with status 1 for any answer but yes. Raises `click.Abort` for Ctrl-C, and `UsageError`
    at the end of the input.
    """
    if not asks():
        return
    try:
        if not click.confirm(question, err=err):
            click.echo("geminga: nothing was changed", err=err)
            raise click.exceptions.Exit(1)
    except click.Abort as error:
        if isinstance(error.__context__, EOFError):
            click.echo(err=err)
            raise UsageError("no answer at the end of the input: give --yes to do it unasked") from None
        raise


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read, replacing an existing file atomically; a device or a link,
    such as /dev/stdout, is written to."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                os.fchmod(file.fileno(), 0o600)
            file.write(data)
        return
    import tempfile  # takes a twentieth of a command's start

    descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # 0600 from the start
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


def discard_output() -> None:
    """Send standard output to the null device: text that could not be written would fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def emit(value: Any, text: str, *, is_done: bool = False) -> None:
    """Print ``value`` as one line of JSON with ``--json``, else ``text`` for a person.

    ``is_done``: the command did what must not be done twice, so output that cannot be written does not change
    its exit status.
    """
    import json

    try:
        click.echo(json.dumps(value, separators=(",", ":"), default=str) if wants_json() else text)
    except OSError as error:
        if not is_done or isinstance(error, BrokenPipeError):
            raise
        discard_output()
        say(f"geminga: {text}; the output cannot be written: {error.strerror}")
