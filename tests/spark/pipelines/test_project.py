"""Projects from templates: created files, parameters and errors."""

import ast
import re
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from geminga.cli.pipeline import command
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


@pytest.mark.parametrize("page", ["pipelines.md", "tour.md", "tutorials/flights-to-a-lake.md"])
def test_the_commands_of_a_page_create_the_tables_that_it_names(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[3] / "docs" / page).read_text().replace("\\\n", "")
    commands = re.findall(r"^    geminga pipeline (init .*)$", text, re.M)
    assert commands
    for line in commands:
        done = CliRunner().invoke(command, shlex.split(line, comments=True))
        assert done.exit_code == 0, done.output
    made = "".join(path.read_text() for path in tmp_path.glob("*/transformations/*.py"))
    tables = set(re.findall(r'name="(\w+)"', made))
    named = set(re.findall(r"my_lake/lake/(\w+)|\b(\w+_dead_letters)", text))
    assert {a or b for a, b in named} <= tables


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


@pytest.mark.parametrize(
    ("source", "written"),
    [("lake/b", "{}/lake/b"), ("/a", "/a"), ("file:/a", "file:/a"), ("s3a://b/a", "s3a://b/a")],
)
def test_a_relative_source_is_in_the_current_folder(source, written, tmp_path, monkeypatch):
    """Flows run in the folder of the project."""
    monkeypatch.chdir(tmp_path)
    for template in ("backfill", "replay"):
        create(tmp_path / template, template, {"source": source})
        found = project.configuration(tmp_path / template)[f"{template}.source"]
        assert found == written.format(tmp_path)


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
