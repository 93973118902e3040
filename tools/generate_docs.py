"""Write the reference pages that are drawn from the code: ``make docs``.

In ``docs/reference``, ``cli.md`` comes from the commands themselves, ``settings.md`` from the settings
classes (field, type, default and the text under the field), pages of Python's names from their docstrings
(``reference_api.py``), REST, metrics and errors from the broker (``reference_broker.py``). Besides: the map
in ``docs/ARCHITECTURE.md`` from the modules' docstrings, the options in ``docs/spark.md`` from their table,
Grafana's dashboard and Prometheus' alert rules from ``geminga.console``, the tables of
``docs/coming-from-pulsar-client.md`` from ``client_differences.py``, and the proof of tuning in ``README.md``
and ``docs/tuning.md``, and what the
client costs, from the figures in ``docs/proof``. ``pages()`` is what the docs tests compare with what is
checked in.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import option_names
import reference_api
import reference_broker

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src/geminga"
DOCS = ROOT / "docs/reference"
ARCHITECTURE = ROOT / "docs/ARCHITECTURE.md"
COMING = ROOT / "docs/coming-from-pulsar-client.md"
TABLES_START, TABLES_END = "<!-- tables: drawn by `make docs` -->", "<!-- end of tables -->"
SPARK = ROOT / "docs/spark.md"
OPTIONS_START, OPTIONS_END = "<!-- options: drawn from the code by `make docs` -->", "<!-- end of options -->"
README, TOUR, TUNING = ROOT / "README.md", ROOT / "docs/tour.md", ROOT / "docs/tuning.md"
BENCHMARKS, PUBLISHING = ROOT / "docs/benchmarks.md", ROOT / "docs/publish-path.md"
GROWTH = ROOT / "docs/limits-and-growth.md"
VERSIONS = ROOT / "docs/versions.md"
UNLOCKED = ROOT / "docs/decisions/free-threaded-cpython.md"
PROOFS = ROOT / "docs/proof"
PROOF = re.compile(r"(<!-- proof: (\w+), (\w+) -->\n).*?(<!-- end of proof -->)", re.DOTALL)
MAP_START, MAP_END = "<!-- map: drawn from the modules' docstrings by `make docs` -->", "<!-- end of map -->"

CONNECTION = """
Every command that connects takes these. Options take precedence over the environment (`PULSAR_SERVICE_URL`,
`PULSAR_ADMIN_URL`, `PULSAR_TOKEN`), the environment over a context (`--context`, `GEMINGA_CONTEXT`, or the
current one of `geminga context use`), and that over this machine. A context is used as a whole or not at all:
an address given by option or environment leaves the current context out, so that no token is sent to another
cluster. Likewise `--url` with another address than `PULSAR_SERVICE_URL` leaves `PULSAR_ADMIN_URL` out.
"""
COMPLETION = """
Commands, options and their values complete in bash, zsh and fish. Once, in the shell's own file:

    eval "$(geminga completion bash)"     # ~/.bashrc
    eval "$(geminga completion zsh)"      # ~/.zshrc
    geminga completion fish | source      # ~/.config/fish/config.fish
"""
EXIT_CODES = """
| code | meaning |
|---|---|
| 0 | done |
| 1 | failed: the broker refused, a check found something, or the answer to a question was not yes |
| 2 | wrong usage: an option, argument or address; or a question without a terminal and without `--yes` |
| 3 | timed out: no broker within the time limit, or fewer messages than `--count` |
| 130 | interrupted by Ctrl-C |
"""

SETTINGS = (
    ("geminga.client.options.settings", "ClientSettings"),
    ("geminga.client.options.settings", "TlsSettings"),
    ("geminga.producer.settings", "ProducerSettings"),
    ("geminga.consumer.settings", "ConsumerSettings"),
    ("geminga.consumer.settings", "ReaderSettings"),
    ("geminga.broker.settings", "BrokerSettings"),
    ("geminga.broker.settings", "ProcessSettings"),
)

SETTINGS_ABOUT = """
Frozen, keyword-only objects that check their values: an error names the field, the value and what is allowed.
The arguments of the client are these fields, mostly with the same names: see [the client](client.md).
`geminga.embedded(...)` and `geminga standalone` accept those of the broker; *Apache Pulsar* is the
corresponding or most similar setting of its `broker.conf` (units may differ). `geminga standalone` takes each
setting of `BrokerSettings` and `ProcessSettings` as an option (`--connections-max`; `--help` lists those with
shorter names), as a variable (`GEMINGA_CONNECTIONS_MAX`) and as a key of its configuration file
([configuration](../operating.md#configuration)).
"""


DECISIONS_ABOUT = "Design questions, with the measurements and the answers."


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _default_shown(option: Any, default: object) -> str:
    """Return the default of a command-line option as a user writes it; empty if the option is off."""
    if isinstance(default, tuple):
        default = ", ".join(map(str, default))
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    is_off = default is False or default == "" or (default is True and option.flag_value is False)
    return f"`{default}`" if isinstance(default, str | int | float) and not is_off else ""


def cli_page() -> str:
    """Every command with its options, as ``--help`` shows them."""
    import click

    from geminga.cli.connecting import ConnectionOption, connection_options
    from geminga.cli.main import command

    lines = ["# The `geminga` command", "", "Drawn from the code by `make docs`.", ""]

    def table(options: list[Any], context: click.Context) -> None:
        lines.extend(["| option | meaning | default |", "|---|---|---|"])
        for option in options:
            names = ", ".join(f"`{n}`" for n in (*option.opts, *option.secondary_opts))
            text, shown = option.help or "", _default_shown(option, option.get_default(context))
            if said := re.search(r"\s*\[default: ([^\]]+)\]$", text):
                text, shown = text[: said.start()], said[1]
            lines.append(f"| {names} | {_cell(text)} | {_cell(shown)} |")
        lines.append("")

    def describe(path: str, one: click.Command) -> None:
        context = click.Context(one, info_name=path, max_content_width=100)
        lines.extend([f"## `{path}`", "", inspect.cleandoc(one.help or ""), ""])
        lines.extend([f"    {path} {' '.join(one.collect_usage_pieces(context))}", ""])
        options = [p for p in one.params if isinstance(p, click.Option) and not p.hidden]
        own = [option for option in options if not isinstance(option, ConnectionOption)]
        if own:
            table(own, context)
        if own != options:
            lines.extend(["It takes the [connection options](#connection), too.", ""])
        if isinstance(one, click.Group):
            for name in one.list_commands(context):
                inner = one.get_command(context, name)
                assert inner is not None
                describe(f"{path} {name}", inner)

    lines.extend(["## Connection", "", *CONNECTION.strip().splitlines(), ""])
    connecting = connection_options(click.Command("connection").callback or (lambda: None))
    table(list(reversed(connecting.__click_params__)), click.Context(command))  # type: ignore[attr-defined]
    lines.extend(["## Completion", "", *COMPLETION.strip().splitlines(), ""])
    lines.extend(["## Exit codes", "", *EXIT_CODES.strip().splitlines(), ""])
    for name in command.list_commands(click.Context(command)):
        found = command.get_command(click.Context(command), name)
        assert found is not None
        describe(f"geminga {name}", found)
    return "\n".join(lines).rstrip() + "\n"


def settings_page() -> str:
    """Every settings class as a table; fields of the broker with their names in ``broker.conf``."""
    lines = [
        "# Settings",
        "",
        "Drawn from the code by `make docs`.",
        "",
        *SETTINGS_ABOUT.strip().splitlines(),
        "",
    ]
    for module, name in SETTINGS:
        cls = getattr(importlib.import_module(module), name)
        broker = name == "BrokerSettings"
        lines.extend([f"## `{name}`", "", *reference_api.prose(inspect.getdoc(cls) or ""), ""])
        lines.append("| field | meaning | default | type |" + (" Apache Pulsar |" if broker else ""))
        lines.append("|---|---|---|---|" + ("---|" if broker else ""))
        for field, kind, default, text in reference_api.fields_of(cls):
            told = reference_broker.words(f"{name}.{field}", text)
            row = f"| `{field}` | {told} | `{_cell(reference_api.default_of(default))}` | `{_cell(kind)}` |"
            if broker:
                theirs = option_names.BROKER_CONF[field]
                row += f" `{theirs}` |" if theirs else "  |"
            lines.append(row)
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _first_sentence(path: Path) -> str:
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    return text.removesuffix("::").strip()


def module_map() -> str:
    """Every module with the first paragraph of its docstring, a table a package."""
    folders: dict[str, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if not path.name.startswith(("__init__", "_version", "pulsar_wire_pb2")):
            folders.setdefault(str(path.parent.relative_to(SOURCE)), []).append(path)
    lines = []
    for folder, paths in folders.items():
        title = "geminga/" if folder == "." else f"{folder}/"
        about = _first_sentence(SOURCE / folder / "__init__.py")
        lines += [
            f"### `{title}`",
            "",
            *([about, ""] if about else []),
            "| module | what it is |",
            "|---|---|",
        ]
        lines += [f"| `{p.relative_to(SOURCE)}` | {_cell(_first_sentence(p))} |" for p in paths]
        lines.append("")
    return "\n".join(lines).rstrip()


def _redrawn(path: Path, start: str, drawn: str, end: str) -> str:
    """Return a hand-written page with the part between two marks regenerated."""
    before, _, rest = path.read_text().partition(start)
    return f"{before}{start}\n\n{drawn}\n\n{end}{rest.partition(end)[2]}"


def spark_options() -> str:
    """The options of the Spark data source, a table a use."""
    from geminga.spark.options import BOTH, OPTIONS, READ, WRITE

    lines = []
    for use, title in ((BOTH, "reading and writing"), (READ, "reading"), (WRITE, "writing")):
        lines += [f"### For {title}", "", "| option | meaning |", "|---|---|"]
        for option in OPTIONS.values():
            if option.use == use:
                also = ", ".join(f"`{alias}`" for alias in option.aliases)
                name = f"`{option.name}`" + (f" (also {also})" if also else "")
                lines.append(f"| {name} | {_cell(option.text.replace('``', '`'))} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def with_proofs(path: Path, text: str | None = None) -> str:
    """Return a page (``text``, or its file) with the part after ``<!-- proof: NAME, FORM -->``
    regenerated."""

    def drawn(mark: re.Match[str]) -> str:
        return f"{mark[1]}\n{proof(mark[2], mark[3], path)}\n\n{mark[4]}"

    return PROOF.sub(drawn, path.read_text() if text is None else text)


def proof(name: str, form: str, page: Path) -> str:
    """The figures of one proof as a page shows them; ``form`` is ``summary``, ``table`` or ``capacity``."""
    from geminga.tuning import capacity_report, proof_report
    from geminga.tuning.prove import Proof

    file = PROOFS / f"{name}.json"
    if name in ("everyday", "free_threading", "growth", "idle", "latency", "soak", "spark_jobs"):
        return measured(file, form)
    if name == "suite":
        return suite(file)
    if name == "go_suite":
        return go_suite(file)
    if name == "versions":
        return versions(file)
    if not file.exists():
        return f"Not published yet: `python -m benchmarks.tuning --only {name} --publish` measures it."
    values = json.loads(file.read_text())
    found = Proof.from_dict(values)
    forms = {"summary": proof_report.summary, "table": proof_report.table, "capacity": capacity_report.table}
    shown = forms[form](found).rstrip()
    picture = file.with_suffix(".svg").relative_to(page.parent)
    made = f"`python -m benchmarks.tuning --only {name} --publish` made this."
    return f"{shown}\n\n![{name}]({picture})\n\n{made}"


def measured(file: Path, form: str) -> str:
    """Return figures of a benchmark of the client as a text or a table."""
    sys.path.insert(0, str(ROOT))
    from benchmarks import figures

    if not file.exists():
        return f"Not published yet: `python -m benchmarks.{file.stem} --publish` measures it."
    return figures.FORMS[file.stem, form](json.loads(file.read_text()))


def suite(file: Path) -> str:
    """Return how many of pulsar-client's own tests pass."""
    import official_suite

    if not file.exists():
        return "Not published yet: `python tools/official_suite.py DIR --publish` counts."
    return official_suite.page(json.loads(file.read_text()))


def go_suite(file: Path) -> str:
    """Return how many of the Go client's own tests of transactions pass."""
    import go_suite

    if not file.exists():
        return "Not published yet: `python tools/go_suite.py --publish` counts."
    return go_suite.page(json.loads(file.read_text()))


def versions(file: Path) -> str:
    """Return what tests pass with other versions of Apache Pulsar."""
    import versions as other_versions

    if not file.exists():
        return "Not published yet: `python tools/versions.py all --publish` runs them."
    return other_versions.page(json.loads(file.read_text()))


def coming_tables() -> str:
    """Return the differences from pulsar-client: behaviour, then names."""
    sys.path.insert(0, str(ROOT / "tools"))
    import client_differences

    lines = ["| what | pulsar-client 3.13 | Geminga | why |", "|---|---|---|---|"]
    for row in client_differences.BEHAVIOUR:
        lines.append("| " + " | ".join(_cell(c) for c in (row.what, row.theirs, row.ours, row.why)) + " |")
    lines += ["", "What small programs see that run with both libraries:", ""]
    lines += ["| program | pulsar-client 3.13 | Geminga | why |", "|---|---|---|---|"]
    for name in client_differences.SEEN:
        lines.append(
            f"| {_cell(name.where)} | `{_cell(name.theirs)}` | `{_cell(name.ours)}` | {_cell(name.why)} |"
        )
    lines += ["", "## Names", "", "| name | pulsar-client 3.13 | Geminga | why |", "|---|---|---|---|"]
    for name in client_differences.NAMES:
        lines.append(
            f"| `{_cell(name.where)}` | `{_cell(name.theirs)}` | `{_cell(name.ours)}` | {_cell(name.why)} |"
        )
    lines += ["", "## Threads and asyncio", ""]
    lines += ["Differences between Geminga's two APIs besides `await`:", ""]
    lines += ["| name | asyncio | threads | why |", "|---|---|---|---|"]
    for name in client_differences.FACES:
        lines.append(
            f"| `{_cell(name.where)}` | {_cell(name.theirs)} | {_cell(name.ours)} | {_cell(name.why)} |"
        )
    return "\n".join(lines)


def decisions_page() -> str:
    """Return the page of decisions: the titles of their pages."""
    lines = ["# Decisions", "", DECISIONS_ABOUT, ""]
    for path in sorted((ROOT / "docs/decisions").glob("*.md")):
        if path.name != "README.md":
            title = path.read_text().partition("\n")[0].removeprefix("# ").strip()
            lines.append(f"* [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """Path and text of each generated page."""
    return {
        DOCS / "cli.md": cli_page(),
        DOCS / "settings.md": settings_page(),
        DOCS / "rest.md": reference_broker.rest_page(),
        DOCS / "metrics.md": reference_broker.metrics_page(),
        DOCS / "errors.md": reference_broker.errors_page(),
        DOCS / "testing.md": reference_api.testing_page(),
        **{DOCS / name: text for name, text in reference_api.pages().items()},
        COMING: with_proofs(COMING, _redrawn(COMING, TABLES_START, coming_tables(), TABLES_END)),
        ARCHITECTURE: _redrawn(ARCHITECTURE, MAP_START, module_map(), MAP_END),
        ROOT / "docs/decisions/README.md": decisions_page(),
        README: with_proofs(README),
        TOUR: with_proofs(TOUR),
        TUNING: with_proofs(TUNING),
        BENCHMARKS: with_proofs(BENCHMARKS),
        PUBLISHING: with_proofs(PUBLISHING),
        GROWTH: with_proofs(GROWTH),
        VERSIONS: with_proofs(VERSIONS),
        UNLOCKED: with_proofs(UNLOCKED),
        SPARK: _redrawn(SPARK, OPTIONS_START, spark_options(), OPTIONS_END),
    }


def main() -> int:
    DOCS.mkdir(parents=True, exist_ok=True)
    for path, text in pages().items():
        path.write_text(text)
        print(f"wrote {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
