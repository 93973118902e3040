"""Projects from templates: created files, parameters and errors."""

import ast

import pytest
import yaml

from geminga.errors import InvalidConfiguration, UsageError
from geminga.spark.pipelines import project
from geminga.spark.pipelines.project import DELTA, SETTINGS_FILE, SPEC_FILE, TEMPLATES, create


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_created_project_is_complete(template, tmp_path):
    folder = tmp_path / "mine"
    field = "pattern" if template == "health" else "topic"
    made = create(folder, template, {field: "orders"})
    assert {folder / SPEC_FILE, folder / SETTINGS_FILE} < set(made)
    for path in made:
        assert "@@" not in path.read_text()
    spec = yaml.safe_load((folder / SPEC_FILE).read_text())
    assert spec["name"] == "mine"
    assert spec["storage"] == f"{folder.as_uri()}/checkpoints"
    assert spec["configuration"][f"{template.partition('_')[0]}.{field}"] == "orders"
    for source in folder.rglob("*.py"):
        assert ast.get_docstring(ast.parse(source.read_text()))
    assert len(list((folder / "transformations").glob("*.py"))) == 1


def test_a_format_without_a_connector_for_this_spark_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(project, "version", lambda name: "4.3.0")
    with pytest.raises(UsageError, match=r"format=delta: .* made for Spark 4\.2 .* PySpark here is 4\.3\.0"):
        create(tmp_path / "mine", "ingest", {"format": "delta"})
    assert not (tmp_path / "mine").exists()
    monkeypatch.setattr(project, "version", lambda name: "4.2.1")
    create(tmp_path / "mine", "ingest", {"format": "delta"})
    assert f"spark.jars.packages      {DELTA}" in (tmp_path / "mine" / SETTINGS_FILE).read_text()
    assert '@dp.table(name="events")' in (tmp_path / "mine/transformations/ingest.py").read_text()
    with pytest.raises(InvalidConfiguration, match="format='iceberg' is not allowed"):
        create(tmp_path / "other", "ingest", {"format": "iceberg"})


def test_invalid_templates_and_answers_are_refused_and_create_nothing(tmp_path):
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
