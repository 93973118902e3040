"""Runs a project with ``spark-pipelines`` and says in a few lines what became of it.

Everything is Spark's own: this module starts the command with the project's settings and this
interpreter, turns what it prints into events, and counts the rows of the lake before and after.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from geminga.errors import UsageError
from geminga.spark.java import check_java
from geminga.spark.pipelines.project import SPEC_FILE

_FLOW = re.compile(r"Flow '?(?:\w+\.)*(\w+)'? (?:is|has) (\w+)")
_ERROR = re.compile(r"^(?:Error: |Caused by: |pyspark\.errors\S*: )(.*)")
_LOG = re.compile(r"^\d\d/\d\d/\d\d \d\d:\d\d:\d\d (WARN|ERROR) ")
_STACK = re.compile(r"^\s+(at |\.\.\. |File |Suppressed)|^Traceback|^org\.apache|^java\.")
_STOP_SECONDS = 20.0
OUTPUT_KEPT_LINES = 400


@dataclass(frozen=True, slots=True)
class FlowChanged:
    """A table's flow is in another state: QUEUED, STARTING, RUNNING, COMPLETED, FAILED …"""

    flow: str
    state: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the lake: its rows and files."""

    rows: int
    files: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """``before`` and ``after`` hold the lake's tables by name; ``error`` is empty when all went well."""

    exit_code: int
    error: str
    before: Mapping[str, Table]
    after: Mapping[str, Table]
    output: tuple[str, ...]
    """The last lines of what Spark printed."""


def lake(folder: Path) -> dict[str, Table]:
    """The tables below a project's ``lake`` folder, counted from the files' own footers."""
    import pyarrow.parquet as parquet

    found: dict[str, Table] = {}
    base = folder / "lake"
    for table in sorted(base.iterdir()) if base.is_dir() else ():
        files = [each for each in table.rglob("*.parquet") if "_temporary" not in each.parts]
        rows = sum(parquet.read_metadata(each).num_rows for each in files)
        found[table.name] = Table(rows, len(files))
    return found


def command(arguments: tuple[str, ...] = ()) -> list[str]:
    """``spark-pipelines run`` of the PySpark that this interpreter has."""
    beside = Path(sys.executable).with_name("spark-pipelines")
    if not beside.exists():
        raise UsageError(
            "spark-pipelines is not beside this Python: pip install 'geminga[pipelines]' into its environment"
        )
    return [str(beside), "run", "--spec", SPEC_FILE, *arguments]


def environment(folder: Path) -> dict[str, str]:
    """What Spark needs to know: the project's settings, and that its workers run this interpreter."""
    check_java()
    paths = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return {
        **os.environ,
        "SPARK_CONF_DIR": str(folder),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PATH": os.pathsep.join(paths),
    }


def run(
    folder: Path, told: Callable[[FlowChanged], None] = lambda event: None, *, arguments: tuple[str, ...] = ()
) -> Outcome:
    """Updates the tables of the project in ``folder`` with what is new, and returns how it went.

    ``arguments`` are given to ``spark-pipelines run`` (such as ``--full-refresh``, ``events``). Ctrl-C
    stops Spark and is raised again; the next run goes on where this one was. Raises `UsageError` when
    ``folder`` holds no project.
    """
    folder = folder.resolve()
    if not (folder / SPEC_FILE).is_file():
        raise UsageError(f"{folder} holds no {SPEC_FILE}; make a project with: geminga pipeline init NAME")
    before = lake(folder)
    process = subprocess.Popen(
        command(arguments), cwd=folder, env=environment(folder), text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    output: list[str] = []
    error = ""
    assert process.stdout is not None
    try:
        for line in process.stdout:
            output.append(line.rstrip("\n"))
            del output[:-OUTPUT_KEPT_LINES]
            flow = _FLOW.search(line)
            if flow:
                told(FlowChanged(flow[1], flow[2]))
            failed = _ERROR.match(line)
            if failed:
                error = failed[1].strip()
        exit_code = process.wait()
    finally:
        _end(process)
    if exit_code and not error:
        readable = [each for each in output if each and not _STACK.match(each) and not _LOG.match(each)]
        error = readable[-1] if readable else f"spark-pipelines exited with {exit_code}"
    return Outcome(exit_code, error if exit_code else "", before, lake(folder), tuple(output))


def _end(process: subprocess.Popen[str]) -> None:
    """Leaves nothing of Spark behind, also when we are interrupted."""
    for name, seconds in ((signal.SIGTERM, _STOP_SECONDS), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, name)
            process.wait(seconds)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
        break
    if process.stdout is not None:
        process.stdout.close()
