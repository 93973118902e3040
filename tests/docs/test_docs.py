"""Documentation that cannot rot: what the pages say is checked against the code."""

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest

import geminga
from geminga import errors
from geminga.broker import settings

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/geminga"
MODULES = sorted(
    p for p in SOURCE.rglob("*.py") if not p.name.startswith(("pulsar_wire_pb2", "__init__", "_version"))
)
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
)
LINES_MAX = 700

sys.path.insert(0, str(ROOT / "tools"))


def test_the_generated_pages_are_fresh():
    generate_docs = importlib.import_module("generate_docs")
    for path, text in generate_docs.pages().items():
        assert path.exists(), f"{path.name} is missing: run `make docs`"
        assert path.read_text() == text, f"{path.name} is stale: run `make docs`"


def test_the_page_of_limits_has_the_values_in_force():
    page = (ROOT / "docs/limits-and-growth.md").read_text().partition("## Growth")[0]
    for module, *names in (
        ("admin.web", "CONNECTIONS_MAX", "HOST_CONNECTIONS_MAX"),
        ("commands.lookup", "WATCHERS_PER_CONNECTION_MAX"), ("rules.policies", "PROPERTIES_BYTES_MAX"),
        ("commands.producing", "ATTEMPTS_MAX", "NAME_MAX", "SUBSCRIPTION_NAME_MAX"),
        ("commands.watchers", "WATCHED_TOPICS_MAX"),
        ("delivery.key_shared", "LOOK_AHEAD_PER_CONSUMER_MAX", "LOOK_AHEAD_MAX"),
        ("delivery.shared", "REDELIVERY_COUNTS_MAX", "ASSEMBLING_MAX"), ("rules.schemas", "VERSIONS_MAX"),
        ("topics.access", "WAITING_MAX"), ("topics.expiry", "EXPIRED_AT_ONCE_MAX"),
    ):  # fmt: skip
        for name in names:
            value = getattr(importlib.import_module(f"geminga.broker.{module}"), name)
            assert re.search(rf"(?<![\d,]){value:,}(?!,?\d)", page), name
    for name, text in re.findall(r"`([a-z_]+)` (\d[\d,]*)(?![\d,]| MiB)", page):
        assert getattr(settings.BrokerSettings(memory=True), name) == int(text.replace(",", ""))


def test_pages_and_errors_name_commands_of_geminga():
    """Not those of pulsar-admin, where ``geminga`` has the same command."""
    compared = {"reference", "decisions", "protocol"}
    pages = [page for page in PAGES if not compared & set(page.parts) and page.name != "ARCHITECTURE.md"]
    for path in [
        *pages,
        *(module for module in MODULES if "functions" in module.parts or "mirror" in module.parts),
    ]:
        assert not re.search(r"pulsar-admin (topics|topicPolicies|namespaces|schemas)\b", path.read_text()), (
            path
        )


def anchors_of(page: Path) -> set[str]:
    """The anchors that a code host gives the headings of a page."""
    found: dict[str, int] = {}
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for heading in re.findall(r"^#+ (.+?)\s*$", text, re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found[anchor] = found.get(anchor, -1) + 1
    return {
        name if not again else f"{name}-{again}" for name, last in found.items() for again in range(last + 1)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.M | re.S)
    for path, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?[^)]*\)", text):
        if "://" in path:
            continue
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {path}, which is not there"
        if anchor and target.suffix == ".md":
            assert anchor in anchors_of(target), f"{page.name} links to {path}#{anchor}, which is no heading"


def test_quoted_log_lines_exist():
    sources = " ".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    sources = re.sub(r'"\s+"', "", sources)
    quoted = [text for page in PAGES for text in re.findall(r"`([^`\n]+)` in the log\b", page.read_text())]
    assert quoted
    assert not [text for text in quoted if text not in sources]


def test_readme_commands_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^\s*make ([a-z]+)", (ROOT / "README.md").read_text(), re.M):
        assert re.search(rf"^{target}:", makefile, re.M), f"README names `make {target}`"


def test_every_public_name_has_a_docstring():
    assert geminga.__all__
    for name in geminga.__all__:
        value = getattr(geminga, name)
        if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
            assert inspect.getdoc(value), f"geminga.{name} has no docstring"


def test_the_error_tree_is_described():
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, errors.PulsarException):
            assert value.__doc__ or value.code or name == "UnknownError", name


def test_every_command_and_option_has_words():
    import click

    from geminga.cli.main import command

    def look(path: str, one: click.Command) -> list[str]:
        context = click.Context(one, info_name=path)
        found = [] if (one.help or "").strip() else [path]
        found += [
            f"{path} {option.opts[0]}"
            for option in one.params
            if isinstance(option, click.Option)
            and not option.hidden
            and not re.sub(r"\[default: .*\]", "", option.help or "").strip()
        ]
        names = one.list_commands(context) if isinstance(one, click.Group) else []
        for name in names:
            inner = one.get_command(context, name)
            assert inner is not None
            found += look(f"{path} {name}", inner)
        return found

    wordless: list[str] = []
    for name in command.list_commands(click.Context(command)):
        found = command.get_command(click.Context(command), name)
        assert found is not None
        wordless += look(f"geminga {name}", found)
    assert not wordless


@pytest.mark.parametrize("module", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_modules_say_what_they_are_and_stay_small(module):
    text = module.read_text()
    assert ast.get_docstring(ast.parse(text)), f"{module} has no docstring"
    lines = text.count("\n")
    assert lines <= LINES_MAX, f"{module} has {lines} lines: split it by its ideas"


def test_locks_hold_hashes_and_no_addresses():
    for lock in (ROOT / "requirements").glob("*.lock"):
        text = lock.read_text()
        assert "://" not in text, f"{lock.name} holds an address"
        pinned = re.findall(r"^[A-Za-z0-9_.\[\]-]+==[^\\]*\\\n\s+--hash=sha256:", text, re.M)
        assert len(pinned) == len(re.findall(r"^[A-Za-z0-9]", text, re.M)), (
            f"{lock.name} has an unpinned line"
        )


def test_every_row_on_behaviour_has_its_test():
    table = importlib.import_module("client_differences").BEHAVIOUR
    assert table
    for row in table:
        path, _, function = row.test.partition("::")
        names = {
            n.name for n in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(n, ast.FunctionDef)
        }
        assert function in names, f"{row.what!r} names {row.test}, which is not there"
