"""The tables of the page for users of Spark's Kafka source, against the accepted options and columns."""

import re
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from geminga.errors import InvalidConfiguration
from geminga.spark.option_names import NO_EFFECT, REFUSED
from geminga.spark.options import OPTIONS, read_options, write_options
from geminga.spark.schema import COLUMNS, written_columns

PAGE = (Path(__file__).parents[2] / "docs/coming-from-kafka.md").read_text()
ACCEPTED = {name.lower() for each in OPTIONS.values() for name in (each.name, *each.aliases)}


def rows(heading: str) -> list[tuple[list[str], str]]:
    """The names in the first column of a section's table, each with the second column."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    return [(re.findall(r"`([^`]+)`", kafka), ours.strip()) for kafka, ours in cells]


OPTION_ROWS = [(name, ours) for names, ours in rows("Options of the source") for name in names]


@pytest.mark.parametrize(("name", "ours"), OPTION_ROWS, ids=[name for name, _ in OPTION_ROWS])
def test_options_of_kafkas_source_are_taken_as_the_page_says(name, ours):
    if name.endswith(".*"):
        prefixes = re.findall(r"`([a-z]+\.)\*`", ours)
        assert prefixes or ours == "no effect"
        known = {*OPTIONS} if prefixes else NO_EFFECT
        for prefix in prefixes or [name.lower().rstrip("*")]:
            assert any(each.startswith(prefix) for each in known)
        return
    if ours.startswith("the same"):
        assert name.lower() in ACCEPTED
    elif ours == "no effect":
        assert name.lower() in NO_EFFECT
    else:
        (option,) = re.findall(r"`([^`]+)`", ours)
        assert option in OPTIONS
        assert f"'{option}'" in REFUSED[name.lower()]
        with pytest.raises(InvalidConfiguration, match=option):
            read_options({"service.url": "pulsar://h", "topic": "t", name: "1"})


def test_columns_of_kafkas_source_have_the_counterparts_of_the_page():
    found = {names[0]: re.findall(r"`([^`]+)`", ours) for names, ours in rows("Columns")}
    assert set(found) == {
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"
    }  # fmt: skip
    assert all(set(ours) <= set(COLUMNS) for ours in found.values())
    assert [name for name, ours in found.items() if not ours] == ["timestampType"]


def test_the_sinks_columns_and_options_are_taken_as_the_page_says():
    found = {name: ours for names, ours in rows("The sink") for name in names}
    assert set(found) == {
        "topic", "key", "value", "headers", "partition", "includeHeaders", "kafka.compression.type",
        "kafka.acks", "kafka.enable.idempotence",
    }  # fmt: skip
    value = StructType().add("value", "binary")
    assert set(written_columns(value.add("key", "string").add("topic", "string"), None).columns) == {
        "value", "key", "topic"
    }  # fmt: skip
    for name, counterpart in (("headers", "__messageProperties"), ("partition", "__key")):
        with pytest.raises(InvalidConfiguration, match=counterpart):
            written_columns(StructType().add("value", "binary").add(name, "integer"), "t")
    for name, ours in found.items():
        given = {"service.url": "pulsar://h", "topic": "t", name: "true"}
        if ours == "no effect":
            write_options(given)
        elif name.startswith("kafka."):
            advice = f"'{ours[1:-1]}'" if ours.startswith("`") else "leave it out"
            with pytest.raises(InvalidConfiguration, match=advice):
                write_options(given)
