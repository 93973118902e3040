"""Entry point of the ``geminga`` command.

A sub-command's module is imported when it is run (or when its own help is asked for), so that
``geminga --help`` answers at once and a missing extra hurts only the command that needs it.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

try:
    import click
except ImportError:  # pragma: no cover - shown to people who installed the bare core
    print("The command line needs an extra: pip install 'geminga[cli]'", file=sys.stderr)
    raise SystemExit(2) from None

from geminga._version import __version__
from geminga.config import suggestion
from geminga.errors import PulsarException, Timeout

COMMANDS = {
    "standalone": ("geminga.cli.standalone", "Run the broker."),
    "produce": ("geminga.cli.produce", "Publish messages to a topic."),
    "consume": ("geminga.cli.consume", "Print the messages of a topic."),
    "topics": ("geminga.cli.topics", "List, create, describe and delete topics."),
    "demo": (
        "geminga.cli.demo",
        "Flights through the broker and Spark into a lake, every row accounted for.",
    ),
    "doctor": ("geminga.cli.doctor", "Check Java, Python packages, ports and the disk."),
}
"""Name of each sub-command: its module (which holds a ``command``) and its line in the help."""

EXIT_USAGE = 2
EXIT_FAILED = 1
EXIT_TIMEOUT = 3


class _LazyGroup(click.Group):
    """A group that knows its commands' help lines without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r}{suggestion(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="geminga")
def command() -> None:
    """Apache Pulsar for Python people: broker, client and Spark pipeline on one machine."""


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage, 3 timed out, 130 Ctrl-C."""
    try:
        command.main(args=arguments, prog_name="geminga", standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of a pipe (head, less) has gone: that is not a failure of ours.
        sys.stderr.close()
        sys.exit(0)
    except PulsarException as error:
        click.echo(f"geminga: {type(error).__name__}: {error}", err=True)
        sys.exit(EXIT_TIMEOUT if isinstance(error, Timeout) else EXIT_FAILED)


if __name__ == "__main__":
    main()
