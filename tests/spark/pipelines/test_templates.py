"""Flows of the templates over given rows, without a run of Spark Declarative Pipelines."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from geminga.spark.pipelines.project import configuration, create

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Stream:
    """A reader of streams that returns ``rows`` for all options."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: self.rows if name == "load" else self


@pytest.fixture
def flows(tmp_path, monkeypatch):
    """Return the names that a template's program defines when its source has ``rows``."""
    pytest.importorskip("pyspark.pipelines")
    for name in ("table", "append_flow"):
        monkeypatch.setattr(f"pyspark.pipelines.{name}", lambda **named: lambda flow: flow)
    monkeypatch.setattr("pyspark.pipelines.create_sink", lambda *arguments: None)

    def run(template: str, rows: Any, **answers: str) -> dict[str, Any]:
        create(tmp_path / template, template, answers)
        settings = configuration(tmp_path / template)
        conf = SimpleNamespace(get=lambda name, default=None: settings.get(name, default))
        session = SimpleNamespace(conf=conf, readStream=Stream(rows))
        monkeypatch.setattr(SparkSession, "active", lambda: session)
        (program,) = Path(tmp_path / template / "transformations").glob("*.py")
        names: dict[str, Any] = {}
        exec(compile(program.read_text(), str(program), "exec"), names)
        return names

    return run


def test_columns_of_a_typed_topic_may_begin_with_underscores(flows):
    """As those that Debezium adds to a record."""
    columns = ["id", "__op", "__deleted", "__key", "__topic", "__messageId", "__publishTime", "__eventTime"]
    names = flows("ingest_typed", SimpleNamespace(columns=[*columns, "__messageProperties", "__unreadable"]))
    assert names["FIELDS"] == ["id", "__op", "__deleted"]


@pytest.mark.parametrize("time", ["5 months", "300", "soon"])
def test_an_invalid_time_of_the_template_health_is_named(flows, time):
    with pytest.raises(ValueError, match=f"health.stuckAfter is '{time}'; write a time such as"):
        flows("health", None, stuck_after=time)


def values(frame: DataFrame) -> list[Any]:
    return [json.loads(row.value) for row in frame.select(frame.value.cast("string")).collect()]


@pytest.mark.spark
def test_only_json_objects_are_published(flows, spark):
    texts = ["not json", '{"id": 1, "name": "a"}', '[{"id": 2, "name": "b"}]', "5", "null", "", None, "{}"]
    rows = spark.createDataFrame(
        [(text, None, None) for text in texts], "value STRING, __key STRING, __eventTime LONG"
    )
    names = flows("publish", rows, where="true")
    assert values(names["published"]()) == [{"id": 1, "name": "A"}, {}]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("columns", "value", "replayed"),
    [
        ("value STRING, __op STRING, __rescued STRING", ("v", "c", None), {"value": "v", "__op": "c"}),
        ("value STRING, __op STRING, __rescued STRING", ("v", "c", '{"a": 1}'), {"a": 1}),
        ("value STRING, id LONG", ("v", 1), {"value": "v", "id": 1}),
        ("value BINARY, id LONG", (b"[5]", 1), [5]),
        ("value STRING", ("[5]",), [5]),
    ],
)
def test_a_row_is_replayed_with_all_of_its_content(flows, spark, columns, value, replayed):
    rows = spark.createDataFrame([(*value, dt.datetime(2024, 2, 29))], f"{columns}, __day TIMESTAMP_NTZ")
    frame = flows("replay", rows, time="__day")["replayed"]()
    assert values(frame) == [replayed]
    assert dict(frame.dtypes) == {"value": dict(frame.dtypes)["value"], "__eventTime": "timestamp"}
