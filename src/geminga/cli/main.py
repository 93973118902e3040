"""Entry point of the ``geminga`` command.

A sub-command's module is imported when the command or its help is run, so that ``geminga --help`` is fast
and a missing extra affects only the command that needs it.
"""

import contextlib
import gc
import re
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

try:
    import click
except ImportError:  # pragma: no cover - shown to people who installed the bare core
    print("The command line needs an extra: pip install 'geminga[cli]'", file=sys.stderr)
    raise SystemExit(2) from None

from geminga._util.descriptors import fill_standard
from geminga._util.exits import leave
from geminga._version import __version__
from geminga.cli.common import LazyGroup, discard_output, say
from geminga.errors import PulsarException, Timeout, UsageError
from geminga.extras import MissingExtra, missing

SECTIONS = {
    "Run a broker": {
        "standalone": "Run the broker.",
        "config": "Show the broker's configuration, or write a file of it.",
        "health": "Check whether a broker is ready, for containers.",
        "store": "Check, repair, back up and restore a broker's data folder.",
        "token": "Create keys and tokens, and show them.",
    },
    "Send and read messages": {
        "produce": "Publish messages to a topic.",
        "consume": "Print the messages of a topic.",
        "tail": "Print new messages of a topic as they are published.",
        "peek": "Print a subscription's next messages without consuming them.",
        "bench": "Measure a broker's latency and throughput.",
    },
    "See what happens": {
        "top": "Live table of topics or subscriptions, the busiest first.",
        "explain": "Explain why a consumer is stuck, with advice.",
        "console": "Web console for an Apache Pulsar or another Geminga.",
        "dashboard": "Print a Grafana dashboard.",
    },
    "Manage a cluster": {
        "topics": "List, create, describe, configure and delete topics.",
        "subscriptions": "Create, move, skip in and delete subscriptions.",
        "transactions": "List, describe and abort open transactions.",
        "schemas": "Show, register and check schemas of topics.",
        "namespaces": "List, create, configure and delete namespaces.",
        "tenants": "List, create, change and delete tenants.",
    },
    "Run programs": {
        "function": "Call a function for every message of its input topics.",
        "mirror": "Copy topics from one cluster to another, continuously.",
        "pipeline": "Run Spark pipelines from topics to a lake and back.",
        "mcp": "Serve tools for assistants (Model Context Protocol).",
        "tune": "Advise, measure and compare producer settings.",
        "demo": "Stream flights through broker and Spark into a lake, and check every row.",
    },
    "This command line": {
        "context": "Manage named clusters: address, token and TLS.",
        "completion": "Print the script that completes commands in bash, zsh or fish.",
        "doctor": "Check Java, Python packages, ports and the disk.",
    },
}
"""Headings of the help, with the name and the help line of each sub-command."""

LOADED_OBJECTS = 100_000
"""Threshold of the garbage collector's first generation. Loading a command creates 50,000 objects that live
until exit; Python's default of 700 would spend 5 % of a broker's start on collections."""
EXIT_USAGE = 2
EXIT_FAILED = 1
EXIT_TIMEOUT = 3
EXIT_INTERRUPTED = 130
_REQUEST = r" \(HTTP \d+ for [^)]*\)"


class _ReaderGoneError(Exception):
    """The reader of our output (head, less) closed the pipe; click reports BrokenPipeError as a failure."""


@contextlib.contextmanager
def _watch_reader() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise _ReaderGoneError from None


class _MainGroup(LazyGroup):
    """Root command group; the reader of its output (head, less) may close the pipe at any time."""

    def make_context(self, *arguments: Any, **settings: Any) -> click.Context:
        with _watch_reader():
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        with _watch_reader():
            return super().invoke(ctx)


@click.group(
    cls=_MainGroup,
    sections=SECTIONS,
    modules="geminga.cli.",
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
        # Without standalone mode click returns the code of an `Exit`, or the command's return value.
        code = command.main(args=arguments, prog_name="geminga", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (click.exceptions.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            error.show()
        return error.exit_code
    except _ReaderGoneError:
        discard_output()
        return 0
    except ImportError as error:
        better = error if isinstance(error, MissingExtra) else missing("this command", error)
        if better is None:
            raise
        say(f"geminga: {better}")
        return EXIT_FAILED
    except PulsarException as error:
        # Class and request help a program, which has them; a person reads the broker's reason.
        say(f"geminga: {re.sub(_REQUEST, '', str(error))}")
        if isinstance(error, Timeout):
            return EXIT_TIMEOUT
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    except OSError as error:
        text = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else error
        say(f"geminga: {text}")
        return EXIT_FAILED
    except UnicodeEncodeError as error:  # of an argument that is not UTF-8, or a terminal that is not
        say(f"geminga: {error.object!a:.200} cannot be written in {error.encoding}")
        return EXIT_USAGE


if __name__ == "__main__":
    main()
