"""Search for new messages before a run of the template ``ingest``: without any, Spark need not be started."""

import hashlib
import re
from importlib import resources
from pathlib import Path

from geminga.errors import PulsarException
from geminga.filesystems import resolve
from geminga.spark.pipelines.checkpoints import folders, newest_checkpoint
from geminga.spark.pipelines.connection import connection
from geminga.spark.pipelines.project import (
    SETTINGS_FILE,
    SPEC_FILE,
    configuration,
    installed,
    places,
    read_spec,
)

FINISHED_FILE = "catalog/finished"
"""File of a project with the digest of the definitions of its last run, if that updated all tables."""
_FIELDS = {"name", "storage", "libraries", "configuration"}
"""Fields of the template's spec file: another one, such as ``database``, moves the tables."""
_LIBRARIES = [{"glob": {"include": "transformations/**"}}]
_TABLE = re.compile(r'@dp\.table\(name="(\w+)"(.*)\)\n')


def definitions(folder: Path) -> str:
    """Return a digest of a project's files and of the packages that run them."""
    files = (folder / SPEC_FILE, folder / SETTINGS_FILE, *_flows(folder))
    texts = [(str(path.relative_to(folder)), path.read_bytes()) for path in files if path.is_file()]
    return hashlib.sha256(repr((texts, installed("geminga"), installed("pyspark"))).encode()).hexdigest()


def _flows(folder: Path) -> list[Path]:
    """Return the files in which Spark looks for flows."""
    found = (folder / "transformations").rglob("*")
    return sorted(path for path in found if path.suffix in (".py", ".sql"))


def ingested(folder: Path) -> tuple[str, ...]:
    """Return the tables of a project whose flows are those of the template ``ingest``, without a change."""
    files, spec = _flows(folder), read_spec(folder)
    is_all = len(files) == 1 and set(spec) == _FIELDS and spec["libraries"] == _LIBRARIES
    text = files[0].read_text(encoding="utf-8", errors="replace") if is_all else ""
    table = _TABLE.search(text)
    if table is None:
        return ()
    template = resources.files(__package__) / "templates/ingest/transformations/ingest.py.txt"
    flows = template.read_text(encoding="utf-8").replace("@@table@@", table[1])
    same = text.rstrip() == flows.replace("@@format_argument@@", table[2]).rstrip()
    return (table[1], f"{table[1]}_dead_letters") if same else ()


def without_news(folder: Path, defined: str, cluster: str) -> tuple[str, ...]:
    """Return the tables that a run would leave as they are, if it would do so with all; otherwise none.

    The last run must have updated all tables with the same definitions (``defined``: those of this run), each
    planned micro-batch must be stored, and the source, asked for the end of the next one as Spark asks it,
    must answer with the last one's. All other cases, such as a recreated topic, are left to Spark.
    ``cluster`` has the connection: `geminga.spark.pipelines.connection.handed_over`.
    """
    finished = folder / FINISHED_FILE
    is_same = finished.is_file() and finished.read_bytes() == defined.encode()
    tables = ingested(folder) if is_same else ()
    warehouse, lake = resolve(places(folder).warehouse)
    if not tables or not set(tables) <= {info.base_name for info in folders(warehouse, lake)}:
        return ()
    given = configuration(folder)
    options = {
        **connection(given["ingest.serviceUrl"], given=cluster), "topic": given["ingest.topic"]
    }  # fmt: skip
    return tables if all(_is_at_end(folder, table, options) for table in tables) else ()


def _is_at_end(folder: Path, table: str, options: dict[str, str]) -> bool:
    """Return whether a table's flow has stored all messages of its topics."""
    from pyspark.sql.types import StructType

    from geminga.spark.datasource import PulsarStreamReader
    from geminga.spark.options import read_options
    from geminga.spark.releases import ReadAllAvailable
    from geminga.spark.source.offset_log import last_batch, newest_offsets

    storage = places(folder).storage.rstrip("/")
    system, root = resolve(storage)
    checkpoint = newest_checkpoint(system, f"{root}/_checkpoints/spark_catalog/default/{table}/{table}")
    if checkpoint is None:
        return False
    batch = last_batch(system, f"{checkpoint}/offsets")
    if batch < 0 or batch != last_batch(system, f"{checkpoint}/commits"):
        return False
    reader = PulsarStreamReader(read_options(options), StructType())
    try:
        stored = newest_offsets(storage + checkpoint.removeprefix(root.rstrip("/")), ())
        return stored is not None and reader.latestOffset(stored, ReadAllAvailable()) == stored
    except PulsarException:
        return False  # Spark's run raises it too, and prints it
    finally:
        reader.stop()
