"""Entry point of the ``geminga`` command.

A sub-command's module is imported when it is run (or when its own help is asked for), so that
``geminga --help`` answers at once and a missing extra hurts only the command that needs it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

try:
    import click
except ImportError:  # pragma: no cover - shown to people who installed the bare core
    print("The command line needs an extra: pip install 'geminga[cli]'", file=sys.stderr)
    raise SystemExit(2) from None

from geminga._version import __version__
from geminga.cli.common import LazyGroup
from geminga.descriptors import fill_standard
from geminga.errors import PulsarException, Timeout, UsageError
from geminga.exits import leave
from geminga.extras import MissingExtra, missing

COMMANDS = {
    "standalone": ("geminga.cli.standalone", "Run the broker."),
    "produce": ("geminga.cli.produce", "Publish messages to a topic."),
    "consume": ("geminga.cli.consume", "Print the messages of a topic."),
    "tail": ("geminga.cli.tail", "Follow what is published to a topic."),
    "peek": ("geminga.cli.peek", "Look at what waits in a subscription."),
    "top": ("geminga.cli.top", "Topics and subscriptions as they change, the busiest first."),
    "console": ("geminga.cli.console", "Show an Apache Pulsar, or another Geminga, in a browser."),
    "dashboard": ("geminga.cli.dashboard", "A dashboard for Grafana, as a file."),
    "explain": ("geminga.cli.explain", "Say why a consumer is stuck, and what mends it."),
    "tenants": ("geminga.cli.tenants", "List, create, change and delete tenants."),
    "namespaces": ("geminga.cli.namespaces", "Namespaces: policies such as retention, and permissions."),
    "topics": ("geminga.cli.topics", "List, create, describe, configure and delete topics."),
    "subscriptions": ("geminga.cli.subscriptions", "Create, move, skip in and delete subscriptions."),
    "schemas": ("geminga.cli.schemas", "Show, register and check schemas of topics."),
    "context": ("geminga.cli.context", "Clusters under names: address, token and TLS."),
    "bench": ("geminga.cli.bench", "How fast a broker is from here."),
    "function": ("geminga.cli.function", "Call a function for every message of some topics."),
    "mirror": ("geminga.cli.mirror", "Keep topics of one cluster in another."),
    "pipeline": ("geminga.cli.pipeline", "Pipelines from topics to a lake and back, on Spark."),
    "token": ("geminga.cli.token", "Make keys and tokens, and look at them."),
    "store": ("geminga.cli.store", "A broker's folder: check, repair, back up, restore."),
    "tune": ("geminga.cli.tune", "Producer settings: advised, measured and proven."),
    "demo": (
        "geminga.cli.demo",
        "Flights through the broker and Spark into a lake, every row accounted for.",
    ),
    "health": ("geminga.cli.health", "Say whether a broker is ready, for containers."),
    "doctor": ("geminga.cli.doctor", "Check Java, Python packages, ports and the disk."),
}
"""Name of each sub-command: its module (which holds a ``command``) and its line in the help."""

LOADED_OBJECTS = 100_000
"""Loading a command makes some 50,000 objects, and all stay: to look for cycles among them every 700 took a
twentieth of a broker's start. From then on they are looked for whenever so many more have come."""
EXIT_USAGE = 2
EXIT_FAILED = 1
EXIT_TIMEOUT = 3
EXIT_INTERRUPTED = 130


class _ReaderGoneError(Exception):
    """Who read our output (head, less) has seen enough. Under another name, for click calls it a failure."""


@contextlib.contextmanager
def _watch_reader() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise _ReaderGoneError from None


class _MainGroup(LazyGroup):
    """The commands, for whose reader (head, less) may go away at any time."""

    def make_context(self, *arguments: Any, **settings: Any) -> click.Context:
        with _watch_reader():
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        with _watch_reader():
            return super().invoke(ctx)


@click.group(
    cls=_MainGroup,
    commands_by_name=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="geminga")
def command() -> None:
    """Apache Pulsar for Python people: broker, client and Spark pipeline on one machine."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage, 3 timed out, 130 Ctrl-C."""
    gc.set_threshold(LOADED_OBJECTS)
    fill_standard()
    leave(_run(arguments))


def _run(arguments: list[str] | None) -> int:
    try:
        # Without its standalone mode click gives back the code of an `Exit`, and what a command returned.
        code = command.main(args=arguments, prog_name="geminga", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (click.exceptions.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except _ReaderGoneError:
        # Not a failure of ours. What is still buffered goes nowhere instead of failing again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ImportError as error:
        better = error if isinstance(error, MissingExtra) else missing("this command", error)
        if better is None:
            raise
        click.echo(f"geminga: {better}", err=True)
        return EXIT_FAILED
    except PulsarException as error:
        click.echo(f"geminga: {type(error).__name__}: {error}", err=True)
        if isinstance(error, Timeout):
            return EXIT_TIMEOUT
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    except OSError as error:
        click.echo(f"geminga: {error}", err=True)
        return EXIT_FAILED


if __name__ == "__main__":
    main()
