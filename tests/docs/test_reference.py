"""The reference holds every public name, option, command, error, metric and route, each with its words.

The pages are drawn by ``tools/generate_docs.py``, which ends at the first thing without words; these tests
see that it does, that nothing is left out, and that no row of any table of the docs is empty.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import geminga
import geminga.asyncio
from geminga.broker.admin.metric_table import METRICS
from geminga.broker.admin.permissions import PERMISSIONS
from geminga.broker.settings import BrokerSettings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

sys.path.insert(0, str(ROOT / "tools"))
apache_routes: Any = importlib.import_module("apache_routes")
option_names: Any = importlib.import_module("option_names")
reference_api: Any = importlib.import_module("reference_api")
reference_broker: Any = importlib.import_module("reference_broker")

_MAY_BE_EMPTY = {
    "", "unit", "default", "java", "apache pulsar", "again", "number", "code",
}  # fmt: skip
"""Columns in which nothing is an answer, too; all others say something in every row."""


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


@pytest.mark.parametrize("page", sorted((DOCS / "reference").glob("*.md")), ids=lambda p: p.name)
def test_no_row_is_empty(page: Path) -> None:
    head: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if not line.startswith("|"):
            head = []
        elif not head:
            head = [cell.lower() for cell in cells(line)]
        elif not re.fullmatch(r"[|\s:-]+", line):
            row = cells(line)
            assert len(row) == len(head), f"{page.name}:{number} has {len(row)} cells, not {len(head)}"
            for name, text in zip(head, row, strict=True):
                assert text or name in _MAY_BE_EMPTY, f"{page.name}:{number}: nothing under {name!r}"


def text_of(name: str) -> str:
    return (DOCS / "reference" / name).read_text()


def test_every_public_name_has_its_place() -> None:
    shown = "".join(text_of(name) for name in reference_api.PAGES)
    found = [name for _, name, _ in reference_api.public()]
    assert len(found) > 120
    for name in found:
        assert re.search(rf"^#+ {name}$", shown, re.M), f"{name} is on no page"
    assert set(reference_api.NAMESPACES) >= {
        f"geminga.{name}" for name in geminga.__all__ if name in ("admin", "schema", "functions")
    }


def test_a_new_public_name_without_a_place_ends_the_drawing(monkeypatch: Any) -> None:
    def unplaced() -> None:
        """It has words."""

    monkeypatch.setattr(geminga, "unplaced", unplaced, raising=False)
    monkeypatch.setattr(geminga, "__all__", [*geminga.__all__, "unplaced"])
    with pytest.raises(SystemExit, match=r"on no reference page: .*unplaced"):
        reference_api.pages()


def test_a_method_without_words_ends_the_drawing(monkeypatch: Any) -> None:
    monkeypatch.setattr(geminga.TopicName.parse, "__doc__", None)
    with pytest.raises(SystemExit, match=r"geminga\.TopicName\.parse has no words"):
        reference_api.pages()


def test_an_option_without_words_or_names_ends_the_drawing(monkeypatch: Any) -> None:
    monkeypatch.setitem(option_names.WORDS["create_table_view"], "topic", " ")
    with pytest.raises(SystemExit, match=r"create_table_view\(topic=\.\.\.\) has no words"):
        reference_api.pages()
    monkeypatch.delitem(option_names.JAVA["create_table_view"], "topic")
    with pytest.raises(SystemExit, match="what does Java call it"):
        reference_api.pages()


@pytest.mark.parametrize("method", option_names.JAVA)
def test_names_of_options_are_those_there_are(method: str) -> None:
    given: set[str] = set()
    for client in (geminga.Client, geminga.asyncio.Client):
        call = client.__init__ if method == "Client" else getattr(client, method)
        given |= set(inspect.signature(call).parameters) - {"self"}
    assert set(option_names.JAVA[method]) == given, "tools/option_names.py"
    assert set(option_names.WORDS[method]) <= given


def test_every_setting_of_the_broker_has_its_other_name() -> None:
    assert set(option_names.BROKER_CONF) == {field.name for field in dataclasses.fields(BrokerSettings)}


def test_names_inside_the_package_are_there() -> None:
    """What is left out of the reference is named one by one."""
    for path in reference_api.INSIDE:
        module, cls, member = path.rsplit(".", 2)
        assert hasattr(getattr(importlib.import_module(module), cls), member), path


def test_both_admins_have_the_same_calls() -> None:
    for name, ours in reference_api.groups().items():
        waiting = getattr(geminga.asyncio.Admin("http://127.0.0.1:1"), name)
        own = {member for member in dir(ours) if not member.startswith("_")}
        assert {member for member in dir(type(waiting)) if not member.startswith("_")} == own, name


def test_every_error_is_documented() -> None:
    page = text_of("errors.md")
    classes = reference_broker.error_classes()
    assert len(classes) > 60
    for cls in classes:
        assert f"| `{cls.__name__}` |" in page, cls


def test_every_metric_is_documented() -> None:
    page = text_of("metrics.md")
    for name in METRICS:
        assert f"| `{name}` |" in page, name


def test_every_route_is_documented() -> None:
    page = text_of("rest.md")
    for method, path in PERMISSIONS:
        rows = [line for line in page.splitlines() if f"| `{path}` |" in line]
        assert any(method in line.split("|")[1].split() for line in rows), f"{method} {path}"


def test_a_route_without_words_ends_the_drawing(monkeypatch: Any) -> None:
    from geminga.broker.admin.tenants import TenantsResource

    monkeypatch.setattr(TenantsResource.names, "__doc__", None)
    with pytest.raises(SystemExit, match="GET /admin/v2/tenants has no words"):
        reference_broker.rest_page()


def test_what_is_not_served_has_its_reason(monkeypatch: Any) -> None:
    listed = apache_routes.listed()
    assert len(listed) > 600
    found = reference_broker.not_served()
    assert {why for _, why in apache_routes.REASONS} == set(found), "a reason that nothing needs any more"
    monkeypatch.setattr(apache_routes, "listed", lambda: [*listed, ("GET", "/admin/v2/brokers/new-in-5.0")])
    with pytest.raises(SystemExit, match=r"nothing says why GET /admin/v2/brokers/new-in-5\.0 is not served"):
        reference_broker.not_served()
