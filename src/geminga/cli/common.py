"""Parts that several sub-commands share: lazy groups, number types, ``--json``, and printing of results."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from typing import Any

import click

from geminga.config import suggestion

PORT = click.IntRange(0, 65535)


class LazyGroup(click.Group):
    """Click group that shows the help lines of its commands without importing their modules.

    ``commands_by_name`` maps each sub-command to its module (which holds a ``command``) and its help line.
    """

    def __init__(
        self, *arguments: Any, commands_by_name: Mapping[str, tuple[str, str]], **settings: Any
    ) -> None:
        super().__init__(*arguments, **settings)
        self._commands_by_name = commands_by_name

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._commands_by_name)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._commands_by_name:
            return None
        command = importlib.import_module(self._commands_by_name[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self._commands_by_name
        if args and args[0] not in known and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r}{suggestion(args[0], known)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._commands_by_name.items()])


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
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class Number(click.FloatRange):
    """Range of finite numbers: `click.FloatRange` accepts "nan"."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


SECONDS = Number(0.1, 1_000_000)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")


def show_warnings() -> None:
    """Print the client's warnings to standard error until the command ends."""
    from geminga.cli.warning_lines import show  # logging takes a twentieth of a command's start

    click.get_current_context().call_on_close(show())


def say(line: str, *, nl: bool = True) -> None:
    """Write a line to standard error; drop the line if the pipe is closed."""
    with contextlib.suppress(OSError):
        click.echo(line, nl=nl, err=True)


def how_many(count: int, noun: str = "message") -> str:
    """``1 message``, ``2 messages``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def confirm(question: str, *, yes: bool, err: bool = True) -> None:
    """Ask before data is destroyed, unless ``yes``. ``err``: on standard error.

    Raises `click.Abort` for any answer but yes, and `click.UsageError` at the end of the input.
    """
    if yes:
        return
    try:
        click.confirm(question, abort=True, err=err)
    except click.Abort as error:
        if isinstance(error.__context__, EOFError):
            raise click.UsageError("no answer at the end of the input: give --yes to do it unasked") from None
        raise


def emit(value: Any, *, as_json: bool, text: str) -> None:
    """Print ``value`` as one line of JSON, or ``text`` for a person."""
    import json

    click.echo(json.dumps(value, separators=(",", ":"), default=str) if as_json else text)
