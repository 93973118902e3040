"""Projects from templates: folders that ``spark-pipelines`` and `geminga.spark.pipelines.running` run.

A template is a folder of text files. ``@@name@@`` in them is replaced; all other text is copied, so that a
template reads like the resulting project. Files common to all projects are in ``_common``.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import PackageNotFoundError, version
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from geminga.config import check_choice, refuse
from geminga.errors import UsageError
from geminga.locations import url_parts

SPEC_FILE = "spark-pipeline.yml"
SETTINGS_FILE = "spark-defaults.conf"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_MARK = re.compile(r"@@(\w+)@@")


@dataclass(frozen=True, slots=True)
class Template:
    """A template; ``fields`` are the names of its parameters, with their defaults."""

    name: str
    title: str
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LakeFormat:
    """A table format: Spark's settings for it, and the Spark version that its connector supports."""

    argument: str = ""
    """Argument of a table's decorator."""
    settings: str = ""
    spark: str | None = None


DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
FORMATS: Mapping[str, LakeFormat] = {
    "parquet": LakeFormat(argument=', format="parquet"'),
    # The format is the default one here: Spark passes the format of a definition again to an existing table,
    # which Delta Lake rejects.
    "delta": LakeFormat(
        settings="spark.sql.sources.default  delta\n"
        "# Delta Lake's own connector, which Spark fetches at the first run; it fits one version of Spark.\n"
        f"spark.jars.packages      {DELTA}\n"
        "spark.sql.extensions     io.delta.sql.DeltaSparkSessionExtension\n"
        "spark.sql.catalog.spark_catalog  org.apache.spark.sql.delta.catalog.DeltaCatalog",
        spark="4.2",
    ),
}
"""Table formats by name. Iceberg's newest connector supports Spark 4.1, which lacks `spark-pipelines`."""

_PLACE = {"service_url": "pulsar://127.0.0.1:6650"}
TEMPLATES: Mapping[str, Template] = {
    each.name: each
    for each in (
        Template(
            "ingest",
            "a topic into a lake, a file a day and run, each message once; what is no JSON object goes aside",
            {
                **_PLACE, "topic": "events", "schema": "id BIGINT, name STRING", "table": "events",
                "format": "parquet",
            },
        ),
        Template(
            "ingest_typed",
            "a topic with a registered schema (Avro, JSON …) likewise, with the schema's columns",
            {**_PLACE, "topic": "events", "table": "events", "format": "parquet"},
        ),
        Template(
            "rollup",
            "windowed counts with a watermark into the lake and, exactly once, back into a topic",
            {
                **_PLACE, "topic": "events", "schema": "id BIGINT, name STRING, at TIMESTAMP", "time": "at",
                "group": "name", "window": "10 minutes", "lateness": "1 hour", "table": "event_counts",
                "output_topic": "event-counts",
            },
        ),
        Template(
            "replay",
            "a table of the lake into a topic, in the order of its time and at a pace of your choice",
            {
                **_PLACE, "source": "/path/of/a/table", "time": "__publishTime", "speed": "1",
                "topic": "replayed",
            },
        ),
        Template(
            "publish",
            "a topic's messages into another topic, chosen and reshaped by SQL, each once and in their order",
            {
                **_PLACE, "topic": "events", "schema": "id BIGINT, name STRING",
                "where": "name IS NOT NULL", "select": "id, upper(name) AS name", "key": "__key",
                "output_topic": "named-events",
            },
        ),
        Template(
            "backfill",
            "a table of the lake and the topic that it came from as one table: no gap, nothing twice",
            {
                **_PLACE, "source": "/path/of/a/table", "topic": "events",
                "schema": "id BIGINT, name STRING", "table": "all_events",
            },
        ),
        Template(
            "changelog",
            "a keyed topic as a table of the newest value of each key, and as a table of all changes",
            {**_PLACE, "topic": "events", "schema": "id BIGINT, name STRING", "table": "current_events"},
        ),
        Template(
            "health",
            "statistics of any number of subscriptions over time: which are stuck or grow; with pictures",
            {
                "admin_url": "http://127.0.0.1:8080", "namespace": "public/default", "pattern": ".*",
                "samples": "6", "every": "10 seconds", "stuck_after": "5 minutes",
            },
        ),
    )
}  # fmt: skip


def create(folder: Path, template: str, answers: Mapping[str, str] | None = None) -> list[Path]:
    """Create the project in ``folder``, which must not exist, and return its files.

    ``answers`` override the template's defaults; a relative ``source`` is below the current folder. Raises
    `InvalidConfiguration` for an invalid name, template or answer, `UsageError` for a lake format whose
    connector does not support the installed Spark, and `FileExistsError`.
    """
    check_choice("from", template, tuple(TEMPLATES))
    fields = TEMPLATES[template].fields
    given = dict(answers or {})
    for name, value in given.items():
        check_choice("answer", name, tuple(fields))
        if "\n" in value or '"' in value or "\\" in value:
            refuse(name, value, "text without line breaks, quotation marks and backslashes")
    if not _NAME.match(folder.name):
        refuse("name", folder.name, "a letter, then letters, digits and _")
    values = {**fields, **given, "name": folder.name, "folder": folder.resolve().as_uri()}
    lake_format = _lake_format(values.get("format", "parquet"))
    source = values.get("source")
    if source is not None and url_parts(source) is None:
        values["source"] = os.path.abspath(source)  # Spark runs in the project's folder
    values |= {"lake_settings": lake_format.settings, "format_argument": lake_format.argument}
    folder.mkdir(parents=True)
    made: list[Path] = []
    for source in ("_common", template):
        _copy(resources.files(__package__) / "templates" / source, folder, values, made)
    return sorted(made)


def _lake_format(name: str) -> LakeFormat:
    check_choice("format", name, tuple(FORMATS))
    lake_format, here = FORMATS[name], installed("pyspark")
    if lake_format.spark is not None and not here.startswith(f"{lake_format.spark}."):
        raise UsageError(
            f"format={name}: its connector ({DELTA}) is made for Spark {lake_format.spark} and "
            f"fails with others; PySpark here is {here}. Allowed: format=parquet, or "
            f"pip install 'pyspark[pipelines]=={lake_format.spark}.*'"
        )
    return lake_format


def installed(package: str) -> str:
    """Return the version of an installed package, or "not installed"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _copy(source: Traversable, target: Path, values: Mapping[str, str], made: list[Path]) -> None:
    for each in sorted(source.iterdir(), key=lambda entry: entry.name):
        if each.name.startswith("__"):
            continue
        place = target / each.name.removesuffix(".txt")
        if each.is_dir():
            place.mkdir(exist_ok=True)
            _copy(each, place, values, made)
        else:
            text = _MARK.sub(lambda mark: values[mark[1]], each.read_text(encoding="utf-8"))
            place.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
            made.append(place)


@dataclass(frozen=True, slots=True)
class ProjectPaths:
    """Locations of a project's tables and checkpoints, as paths or URIs."""

    warehouse: str
    storage: str


def configuration(folder: Path) -> Mapping[str, Any]:
    """Return the settings that the project's spec file gives its flows."""
    given = read_spec(folder).get("configuration") or {}
    if not isinstance(given, dict):
        raise UsageError(f"{folder / SPEC_FILE}: configuration is {given!r}; write NAME: VALUE lines")
    return given


def read_spec(folder: Path) -> dict[str, Any]:
    """Return the content of the project's spec file. Raises `UsageError`."""
    import yaml

    spec = folder / SPEC_FILE
    if not spec.is_file():
        raise UsageError(f"{folder} holds no {SPEC_FILE}; make a project with: geminga pipeline init NAME")
    try:
        found = yaml.safe_load(spec.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise UsageError(f"{spec} is no valid YAML: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{spec} is {str(found)[:80]!r}; write NAME: VALUE lines")
    return found


def places(folder: Path) -> ProjectPaths:
    """Read the locations from the project's files; raises `UsageError` when ``folder`` holds no project."""
    try:
        storage = read_spec(folder)["storage"]
    except KeyError as error:
        raise UsageError(f"{folder / SPEC_FILE} has no valid storage: {error}") from None
    warehouse = (folder / "spark-warehouse").as_uri()
    settings = folder / SETTINGS_FILE
    for line in settings.read_text(encoding="utf-8").splitlines() if settings.is_file() else ():
        name, _, value = line.strip().partition(" ")
        if name == "spark.sql.warehouse.dir":
            warehouse = value.strip()
    return ProjectPaths(warehouse, str(storage))
