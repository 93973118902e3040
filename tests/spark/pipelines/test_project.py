"""Projects from templates: what is made, what is asked, what is refused."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

from geminga.errors import InvalidConfiguration
from geminga.spark.pipelines.project import SPEC_FILE, TEMPLATES, create


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_project_is_complete_and_its_own(template: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    made = create(folder, template, {"topic": "orders"})
    assert folder / SPEC_FILE in made
    for path in made:
        assert "@@" not in path.read_text()
    spec = yaml.safe_load((folder / SPEC_FILE).read_text())
    assert spec["name"] == "mine"
    assert spec["storage"] == f"{folder.as_uri()}/checkpoints"
    assert spec["configuration"][f"{template}.topic"] == "orders"
    (source,) = (folder / "transformations").glob("*.py")
    assert ast.get_docstring(ast.parse(source.read_text()))


def test_what_cannot_be_is_refused_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"from='ingets' is not allowed.*did you mean 'ingest'"):
        create(tmp_path / "mine", "ingets")
    with pytest.raises(InvalidConfiguration, match="answer='topics' is not allowed"):
        create(tmp_path / "mine", "ingest", {"topics": "x"})
    with pytest.raises(InvalidConfiguration, match="schema="):
        create(tmp_path / "mine", "ingest", {"schema": 'a"; import os'})
    with pytest.raises(InvalidConfiguration, match="name='my-own'"):
        create(tmp_path / "my-own", "ingest")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with pytest.raises(FileExistsError):
        create(tmp_path / "mine", "ingest")
