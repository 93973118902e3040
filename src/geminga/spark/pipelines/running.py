"""Running a project with ``spark-pipelines``, with a short summary of the result.

All work is Spark's own: this module starts the command with the project's settings and this interpreter,
summarizes its output, and counts the lake's rows before and after. Before the start it checks for a loss that
Spark would cause silently (`check_checkpoints`), and for a run without work (`without_news`).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from geminga.errors import UsageError
from geminga.spark.java import check_java
from geminga.spark.pipelines import lake
from geminga.spark.pipelines.checkpoints import check_checkpoints, remove_unfinished_offsets, tables
from geminga.spark.pipelines.connection import VARIABLE, check_asks, reach
from geminga.spark.pipelines.nothing_new import FINISHED_FILE, definitions, without_news
from geminga.spark.pipelines.project import SPEC_FILE, configuration, installed, places
from geminga.spark.sessions import CONFIGURED

_FLOW = re.compile(r"Flow '?(?:\w+\.)*(\w+)'? (?:is|has) (\w+)")
_PROGRESS = "ProgressReporter: Streaming query made progress: {"
_ERROR = re.compile(r"^(?:Error: |Caused by: |pyspark\.errors\S*: )(.*)")
_TRACEBACK = "Traceback (most recent call last):"
_LOG = re.compile(r"^\d\d/\d\d/\d\d \d\d:\d\d:\d\d (WARN|ERROR) ")
_STACK = re.compile(r"^\s+(at |\.\.\. |File |Suppressed)|^Traceback|^org\.apache|^java\.")
_RACE = re.compile(r"Illegal size \d+ of collection, expected \d+")
"""Spark's error when flows planned at the same time have corrupted a shared collection. From then on no flow
can send tasks, at any retry. Nothing was written that a new Spark could not continue from."""
RACES_MAX = 3
"""Maximum restarts of a run after this error."""
_STOP_SECONDS = 20.0
OUTPUT_KEPT_LINES = 400
LOCK_FILE = ".lock"


Tell = Callable[[str], None]
"""Called with lines about a run's progress: ``FLOW: STATE``, or ``FLOW: micro-batch N: ...``."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run: tables by name ``before`` and ``after``; ``error`` is empty on success."""

    exit_code: int
    error: str
    before: Mapping[str, lake.TableSize]
    after: Mapping[str, lake.TableSize]
    output: tuple[str, ...]
    """Last lines of Spark's output."""
    rows_read: Mapping[str, int] = field(default_factory=dict)
    """Rows read, by flow."""
    lag_messages: Mapping[str, int] = field(default_factory=dict)
    """Unread messages of its topics after its last micro-batch, by flow, where known."""


def sizes(folder: Path) -> dict[str, lake.TableSize]:
    """Return rows and files of a project's tables, counted from the files' footers."""
    return {name: lake.size(path) for name, path in tables(folder).items()}


def command(arguments: tuple[str, ...] = ()) -> list[str]:
    """Return the command that runs this interpreter's ``pyspark.pipelines.cli`` with a Spark of its own.

    ``bin/spark-pipelines`` starts two more JVMs, which only parse arguments of ``spark-submit``.
    """
    here = installed("pyspark")
    if here[0].isdigit() and [int(part) for part in here.split(".")[:2]] < [4, 2]:
        raise UsageError(f"pipelines need PySpark 4.2 or newer; this is PySpark {here}")
    missing = next(
        (name for name in ("pyspark", "pyspark.pipelines", "grpc") if find_spec(name) is None), None
    )
    if missing is not None:
        raise UsageError(
            f"this Python has no {missing}: pip install 'geminga[pipelines]' into its environment"
        )
    script = resources.files(__package__) / "free_port" / "cli.py"
    return [sys.executable, str(script), "run", "--spec", SPEC_FILE, *arguments]


def environment(folder: Path, cluster: str = "") -> dict[str, str]:
    """Return Spark's environment: the project's settings, and this interpreter for its workers. ``cluster``
    is the value for `geminga.spark.pipelines.connection`."""
    check_java()
    logging = resources.files(__package__) / "log4j2.properties"
    # Java compiles methods that are called five times as often as by default: a run is short.
    tuned = f"-XX:CompileThresholdScaling=5 -Dlog4j2.configurationFile={logging}"
    options = f"{tuned} {os.environ.get('SPARK_SUBMIT_OPTS', '')}"
    # Those that name a master also name the Spark of a program that `spark-submit` has started.
    inherited = {name: value for name, value in os.environ.items() if name not in CONFIGURED}
    return {
        **inherited,
        VARIABLE: cluster,
        "GEMINGA_PIPELINE_PROCESS": str(os.getpid()),
        "SPARK_REMOTE": "local[*]",
        "SPARK_CONF_DIR": str(folder),
        "SPARK_SUBMIT_OPTS": options.strip(),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }


@contextmanager
def alone(folder: Path) -> Iterator[tuple[int, int]]:
    """Hold the project's lock; child processes inherit the yielded descriptors. Raises `UsageError`.

    The file excludes runs on other machines, where its file system supports that; the folder is locked, too,
    because people delete lock files.
    """
    import fcntl

    file = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    locked = file, os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            for descriptor in locked:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{folder} is in use by a run or a compaction") from None
        yield locked
    finally:
        for descriptor in locked:
            os.close(descriptor)


def run(
    folder: Path,
    tell: Tell = lambda line: None,
    *,
    full_refresh: Collection[str] = (),
    arguments: tuple[str, ...] = (),
    cluster: str = "",
) -> Outcome:
    """Update the tables of the project in ``folder`` with new messages, and return the result.

    ``full_refresh`` names tables to recompute; ``arguments`` are passed to ``spark-pipelines run``. Ctrl-C
    stops Spark and is raised again; the next run resumes there. ``cluster`` has the connection:
    `geminga.spark.pipelines.connection.handed_over`. Raises `UsageError` when ``folder`` holds no project, is
    in use, or has a table ahead of its checkpoint, `ServiceUnreachable` when a broker that the spec file
    names does not answer, and `TopicNotFound` when a topic that it names is missing.
    """
    folder = folder.resolve()
    places(folder)
    if cluster:
        check_asks(folder)
    with alone(folder) as lock:
        check_checkpoints(folder, full_refresh)
        remove_unfinished_offsets(folder)
        reach(folder, configuration(folder), cluster)
        before = sizes(folder)
        defined = definitions(folder)
        unchanged = () if full_refresh or arguments else without_news(folder, defined, cluster)
        if unchanged:
            nothing = dict.fromkeys(unchanged, 0)
            return Outcome(0, "", before, before, (), nothing, nothing)
        (folder / FINISHED_FILE).unlink(missing_ok=True)
        if full_refresh:
            arguments = ("--full-refresh", ",".join(full_refresh), *arguments)
        heard = _SparkOutput(tell)
        exit_code = _spark(folder, arguments, lock, heard, cluster)
        for _ in range(RACES_MAX):
            if not (exit_code and heard.race):
                break
            tell(f"again: flows of Spark stood in each other's way: {heard.race}")
            heard.begin_again()
            exit_code = _spark(folder, arguments, lock, heard, cluster)
        error = heard.error(exit_code) if exit_code else ""
        if not exit_code and not arguments:  # arguments may name some of the tables
            with suppress(OSError):  # without the file, the next run starts Spark
                (folder / FINISHED_FILE).write_text(defined)
        return Outcome(exit_code, error, before, sizes(folder), tuple(heard.output), heard.rows, heard.lag)


def _spark(
    folder: Path, arguments: tuple[str, ...], lock: tuple[int, int], heard: _SparkOutput, cluster: str
) -> int:
    """Run ``spark-pipelines`` to its end; return the exit code."""
    process = subprocess.Popen(
        command(arguments), cwd=folder, env=environment(folder, cluster), text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True, pass_fds=lock,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        for line in process.stdout:
            heard.line(line.rstrip("\n"))
        return process.wait()
    finally:
        _end(process)


class _SparkOutput:
    """Parser of Spark's output."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.output: list[str] = []
        self.rows: dict[str, int] = {}
        self.lag: dict[str, int] = {}
        self.race = ""
        self._progress: list[str] | None = None
        self._error = ""
        self._error_continues = False
        """Whether the error's text is on a later line: the next, or after a traceback's frames."""

    def begin_again(self) -> None:
        """Spark is restarted: forget former errors, keep the counts of rows read."""
        self.race = self._error = ""
        self._progress = None

    def line(self, line: str) -> None:
        if self._progress is not None:
            self._progress.append(line)
            if line == "}":
                text, self._progress = "\n".join(self._progress), None
                self._progressed(text)
            return
        if _PROGRESS in line:
            self._progress = ["{"]
            return
        self.output.append(line)
        del self.output[:-OUTPUT_KEPT_LINES]
        race = _RACE.search(line)
        if race:
            self.race = race[0]
        flow = _FLOW.search(line)
        if flow:
            self.tell(f"{flow[1]}: {flow[2].lower()}")
        failed = _ERROR.match(line)
        if failed:
            self._error, self._error_continues = failed[1].strip(), True
        elif self._error_continues and line and not line[0].isspace() and not _LOG.match(line):
            self._error = f"{self._error.removesuffix(_TRACEBACK)}{line}"
        self._error_continues &= not self._error or self._error.endswith(_TRACEBACK)

    def _progressed(self, text: str) -> None:
        from geminga.spark.observing import query_lag

        try:
            progress: dict[str, Any] = json.loads(text)
        except ValueError:
            return  # lines of two queries mixed up: skip them, later ones follow
        flow = str(progress.get("name") or "").rpartition(".")[2]
        rows = int(progress.get("numInputRows") or 0)
        counts = [one.get("messages") for one in query_lag(progress).values()]
        known = [count for count in counts if count is not None]
        lag = sum(known) if counts and len(known) == len(counts) else None
        self.rows[flow] = self.rows.get(flow, 0) + rows
        if lag is not None:
            self.lag[flow] = lag
        rate = f"{rows:,} rows, {float(progress.get('processedRowsPerSecond') or 0):,.0f} a second"
        left = "" if lag is None else f", {lag:,} messages behind"
        self.tell(f"{flow}: micro-batch {int(progress['batchId'])}: {rate}{left}")

    def error(self, exit_code: int) -> str:
        if self._error:
            return self._error
        readable = [each for each in self.output if each and not _STACK.match(each) and not _LOG.match(each)]
        return readable[-1] if readable else f"spark-pipelines exited with {exit_code}"


def _end(process: subprocess.Popen[str]) -> None:
    """End Spark and its child processes, even if interrupted."""
    for name in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, name)
            # Python ends at once; Java, which has the same standard output, may still write to the tables.
            process.communicate(timeout=_STOP_SECONDS)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
        break
    if process.stdout is not None:
        process.stdout.close()
