"""Projects from templates: a folder that ``spark-pipelines`` and `geminga.spark.pipelines.running` run.

A template is a folder of text files. ``@@name@@`` in them is replaced; everything else is as it will be, so
that a template reads like the project that comes out of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from geminga.config import check_choice, refuse

SPEC_FILE = "spark-pipeline.yml"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_MARK = re.compile(r"@@(\w+)@@")


@dataclass(frozen=True, slots=True)
class Template:
    """``fields`` are what the template asks for, with their defaults."""

    name: str
    title: str
    fields: Mapping[str, str]


_PLACE = {"service_url": "pulsar://127.0.0.1:6650"}
TEMPLATES: Mapping[str, Template] = {
    each.name: each
    for each in (
        Template(
            "ingest",
            "a topic into a lake, a file a day and run, each message once; what is no valid row goes aside",
            {**_PLACE, "topic": "events", "schema": "id BIGINT, name STRING", "table": "events"},
        ),
        Template(
            "rollup",
            "windowed sums with a watermark into the lake and, exactly once, back into a topic",
            {
                **_PLACE, "topic": "events", "schema": "id BIGINT, name STRING, at TIMESTAMP", "time": "at",
                "group": "name", "window": "10 minutes", "lateness": "1 hour", "table": "event_counts",
                "output_topic": "event-counts",
            },
        ),
    )
}  # fmt: skip


def create(folder: Path, template: str, answers: Mapping[str, str] | None = None) -> list[Path]:
    """Makes the project in ``folder``, which must not be there, and returns its files.

    ``answers`` override the template's defaults. Raises `InvalidConfiguration` for a name, template or
    answer that cannot be, and `FileExistsError`.
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
    folder.mkdir(parents=True)
    made: list[Path] = []
    _copy(resources.files(__package__) / "templates" / template, folder, values, made)
    return made


def _copy(source: Traversable, target: Path, values: Mapping[str, str], made: list[Path]) -> None:
    for each in sorted(source.iterdir(), key=lambda entry: entry.name):
        if each.name.startswith("__"):
            continue
        place = target / each.name.removesuffix(".txt")
        if each.is_dir():
            place.mkdir()
            _copy(each, place, values, made)
        else:
            text = _MARK.sub(lambda mark: values[mark[1]], each.read_text(encoding="utf-8"))
            place.write_text(text, encoding="utf-8")
            made.append(place)
