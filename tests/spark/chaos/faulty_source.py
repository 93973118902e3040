"""``format("pulsar-with-faults")``: Pulsar's data source, in which a script strikes at a named point.

It is imported by the processes of Spark: the drivers' Python processes and the workers of executors. All
that it adds to `geminga.spark` are points at which a process may be struck, another order of rows in every
attempt, and smaller pieces, so that a few hundred rows have an inside.

A point counts how often it was passed, by files in the script's folder, over all processes and restarts:
a script strikes once.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from geminga.spark.datasource import PulsarDataSource, PulsarReader, PulsarStreamReader
from geminga.spark.sink import exactly_once, frames
from geminga.spark.sink.exactly_once import ExactlyOnceWriter, NumberedWriter
from geminga.spark.sink.staging import Staging
from geminga.spark.sink.writing import PulsarStreamWriter, PulsarWriter
from geminga.spark.source import reading

PIECE_ROWS = 40
"""Number of rows that a task reads, writes or stages at once."""
WAIT_SECONDS = 90.0
STALL_SECONDS = 12.0

OF_THE_SOURCE = ("starting", "looking", "planning", "planned")
"""Points in the driver's process of a source; a query has one such process."""
OF_READING = ("opening", "reading", "read")
OF_WRITING = ("writing", "staging", "written")
"""Points in a task: before and while it writes, and before it reports that it is done."""
OF_THE_SINK = ("committing", "deciding", "decided", "publishing", "published", "finished")
"""Points in the driver's process of an exactly-once sink."""


@dataclass(frozen=True)
class Script:
    """Fault that happens at the ``hit``-th pass (from 0) of ``point``.

    ``kill``: SIGKILL for the process; ``kill executor``: for its executor; ``fail``: an exception; ``full``:
    no file may grow from now on; ``stall``: the process is slow, so that a speculative copy overtakes it;
    ``wait``: it waits until the file ``go`` exists.
    """

    folder: str
    point: str = ""
    hit: int = 0
    fault: str = ""

    @property
    def text(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def parse(text: str) -> Script:
        return Script(**json.loads(text))

    @property
    def has_struck(self) -> bool:
        return (Path(self.folder) / "struck").exists()

    def reach(self, point: str) -> None:
        if point != self.point or self.has_struck or self._passes() != self.hit:
            return
        (Path(self.folder) / "struck").touch()
        _FAULTS[self.fault](self)

    def _passes(self) -> int:
        """Return how many times the point was passed before."""
        number = 0
        while True:
            try:
                os.close(os.open(f"{self.folder}/{self.point}-{number}", os.O_CREAT | os.O_EXCL))
                return number
            except FileExistsError:
                number += 1

    def wait(self) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not (Path(self.folder) / "go").exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody said go at {self.point}")
            time.sleep(0.01)


def _kill(script: Script) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_executor(script: Script) -> None:
    pid = os.getpid()
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGKILL)
    time.sleep(STALL_SECONDS)


def _stall(script: Script) -> None:
    time.sleep(STALL_SECONDS)


def _fail(script: Script) -> None:
    raise RuntimeError(f"the script fails at {script.point}")


def _full(script: Script) -> None:
    # As with a full disk or an exceeded quota, no file can be written; sockets can.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


_FAULTS: dict[str, Callable[[Script], None]] = {
    "kill": _kill, "kill executor": _kill_executor, "fail": _fail, "full": _full, "stall": _stall,
    "wait": Script.wait,
}  # fmt: skip


@contextlib.contextmanager
def _room_again() -> Iterator[None]:
    """Workers are used again: a disk that was full is so for one piece of work."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class _Scripted:
    """Base of the classes below, which replace the class of an object that Geminga made."""

    script: Script
    stands_for: ClassVar[type]

    @classmethod
    def take_over(cls, made: Any, script: Script) -> Any:
        assert type(made) is cls.stands_for, type(made)
        mine = cls.__new__(cls)
        mine.__dict__.update(made.__dict__, script=script)
        return mine


# --- sources ---
class _Reading(_Scripted):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self.script.reach("opening")
        with patch.object(reading, "BATCH_ROWS", PIECE_ROWS):
            for batch in super().read(partition):
                yield batch
                self.script.reach("reading")
        self.script.reach("read")


class FaultyReader(_Reading, PulsarReader):
    stands_for = PulsarReader

    def partitions(self) -> Any:
        self.script.reach("planning")
        found = super().partitions()
        self.script.reach("planned")
        return found


class FaultyStreamReader(_Reading, PulsarStreamReader):
    stands_for = PulsarStreamReader

    def initialOffset(self) -> Any:
        self.script.reach("starting")
        return super().initialOffset()

    def latestOffset(self, start: Any, limit: Any) -> Any:
        self.script.reach("looking")
        return super().latestOffset(start, limit)

    def partitions(self, start: Any, end: Any) -> Any:
        self.script.reach("planning")
        found = super().partitions(start, end)
        self.script.reach("planned")
        return found


# --- sinks ---
class _Writing(_Scripted):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        stage = Staging.stage
        script = self.script

        def stage_in_pieces(staging: Staging, batches: Iterable[pa.RecordBatch]) -> str:
            return stage(staging, _passing(batches, lambda: script.reach("staging")))

        with (
            _room_again(),
            patch.object(frames, "TABLE_ROWS", PIECE_ROWS),
            patch.object(Staging, "stage", stage_in_pieces),
        ):
            done = super().write(_torn(iterator, lambda: script.reach("writing")))
            script.reach("written")
        return done


def _passing(batches: Iterable[pa.RecordBatch], after_each: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        after_each()


def _torn(batches: Iterable[pa.RecordBatch], after_each: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    """The rows of a task in pieces, in another order at every attempt."""
    for batch in batches:
        order = random.Random().sample(range(batch.num_rows), batch.num_rows)
        mixed = batch.take(pa.array(order, pa.int64()))
        for first in range(0, batch.num_rows, PIECE_ROWS):
            yield mixed.slice(first, PIECE_ROWS)
            after_each()


class _Committing(_Writing):
    def commit(self, *arguments: Any) -> None:
        script = self.script
        script.reach("committing")
        with _room_again(), _points_of_staging(script), patch.object(exactly_once, "GROUP_BYTES", 1):
            super().commit(*arguments)
        script.reach("finished")


@contextlib.contextmanager
def _points_of_staging(script: Script) -> Iterator[None]:
    """Each staged batch is given to the producer at once; what was handed over may be on its way."""
    decide, staged, finish, remove = Staging.decide, Staging.staged, Staging.finish, Staging.remove

    def decide_(self: Staging, *arguments: Any, **named: Any) -> None:
        script.reach("deciding")
        decide(self, *arguments, **named)
        script.reach("decided")

    def staged_(self: Staging, name: str) -> Iterator[dict[str, Any]]:
        for batch in staged(self, name):
            yield batch
            script.reach("publishing")

    def finish_(self: Staging, *arguments: Any, **named: Any) -> None:
        script.reach("published")
        finish(self, *arguments, **named)

    def remove_(self: Staging) -> None:
        script.reach("published")
        remove(self)

    with contextlib.ExitStack() as patched:
        for name, function in (
            ("decide", decide_), ("staged", staged_), ("finish", finish_), ("remove", remove_),
        ):  # fmt: skip
            patched.enter_context(patch.object(Staging, name, function))
        yield


class FaultyWriter(_Writing, PulsarWriter):
    stands_for = PulsarWriter


class FaultyStreamWriter(_Writing, PulsarStreamWriter):
    stands_for = PulsarStreamWriter


class FaultyNumberedWriter(_Committing, NumberedWriter):
    stands_for = NumberedWriter


class FaultyExactlyOnceWriter(_Committing, ExactlyOnceWriter):
    stands_for = ExactlyOnceWriter


class FaultyDataSource(PulsarDataSource):
    """Pulsar's data source with one option more: ``script``."""

    def __init__(self, options: Any) -> None:
        self.script = Script.parse(options.pop("script"))
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "pulsar-with-faults"

    def reader(self, schema: StructType) -> Any:
        return FaultyReader.take_over(super().reader(schema), self.script)

    def streamReader(self, schema: StructType) -> Any:
        return FaultyStreamReader.take_over(super().streamReader(schema), self.script)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        made = super().writer(schema, overwrite)
        return (FaultyNumberedWriter if isinstance(made, NumberedWriter) else FaultyWriter).take_over(
            made, self.script
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        made = super().streamWriter(schema, overwrite)
        kind = FaultyExactlyOnceWriter if isinstance(made, ExactlyOnceWriter) else FaultyStreamWriter
        return kind.take_over(made, self.script)
