"""A sweep as a Spark job: thousands of settings and profiles through the model by batches, into Parquet.

The folder of a sweep holds its plan and its runs. Runs are done in portions, each a Spark job that appends
its rows when it is complete, so that an interrupted sweep loses a portion at most and the same command goes
on where it ended. A folder that holds another plan is refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geminga.errors import InvalidConfiguration, PulsarException
from geminga.tuning.cost import CostModel, Load
from geminga.tuning.modelled_broker import BrokerModel
from geminga.tuning.sweep_plan import RunSpec, SweepPlan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

PLAN_FILE, RUNS_FOLDER, COST_FILE = "plan.json", "runs", "cost-model.json"
PORTIONS = 25
"""Into how many portions a sweep is divided: what an interruption can cost, and the steps of its progress."""
PORTION_RUNS_MIN = 64
TASKS_PER_CORE = 4
"""Tasks of a portion for each core: runs take different times, and small tasks even that out."""

FIGURES = (
    "batch_fill", "entries_per_second", "wire_bytes_per_second", "rate", "latency_mean", "latency_p50",
    "latency_p90", "latency_p99", "latency_p999", "latency_max", "waited_seconds", "refused",
    "pending_messages_max", "stepped_over",
)  # fmt: skip
"""Columns that come from a `SimulatedRun`, under its names."""
COSTS = (
    "broker_cpu", "broker_cpu_low", "broker_cpu_high", "network_bytes_per_second", "memory_bytes",
)  # fmt: skip
"""Columns that come from the cost model, and the payload without a receipt that one client holds at most."""


def schema() -> pa.Schema:
    """Columns of the runs."""
    import pyarrow as pa

    return pa.schema(
        [
            ("run_id", pa.string()),
            ("profile", pa.string()),
            ("profile_json", pa.string()),
            ("settings_json", pa.string()),
            ("problem", pa.string()),
            ("rate_wanted", pa.float64()),
            ("delay_ms", pa.float64()),
            ("batch_messages", pa.int64()),
            ("batch_bytes", pa.int64()),
            ("permits", pa.int64()),
            ("stay", pa.int64()),
            ("compression", pa.string()),
            *[(name, pa.float64()) for name in FIGURES],
            *[(name, pa.float64()) for name in COSTS],
            ("cpu_seconds", pa.float64()),
        ]
    )


def run_one(spec: RunSpec, seconds: float, broker: BrokerModel, cost: CostModel) -> dict[str, Any]:
    """The row of one run. What cannot be run has a ``problem`` and no figures."""
    from geminga.tuning.batch_model import predict

    row: dict[str, Any] = {
        "run_id": spec.run_id,
        "profile": spec.profile.name,
        "profile_json": json.dumps(spec.profile.to_dict()),
        "problem": spec.problem,
        "rate_wanted": spec.profile.rate_messages_per_second,
    }
    if spec.settings is None:
        return row
    producer = spec.settings.producer
    row |= {
        "settings_json": json.dumps(spec.settings.to_dict()),
        "delay_ms": producer.batching_max_publish_delay_seconds * 1000,
        "batch_messages": producer.batching_max_messages,
        "batch_bytes": producer.batching_max_allowed_size_in_bytes,
        "permits": producer.max_pending_messages,
        "stay": producer.batching_partition_switch_frequency,
        "compression": producer.compression_type.name,
    }
    started = time.thread_time()
    try:
        run = predict(spec.profile, spec.settings, broker, seconds=seconds, seed=spec.seed)
    except PulsarException as error:
        return row | {"problem": str(error)}
    load = Load(
        entries_per_second=run.entries_per_second,
        stored_bytes_per_second=run.wire_bytes_per_second,
        subscriptions=spec.profile.subscriptions,
        write_quorum=spec.profile.write_quorum,
        partitions=spec.profile.partitions,
    )
    cpu = cost.broker_cpu(load)
    return row | {
        **{name: float(getattr(run, name)) for name in FIGURES},
        "broker_cpu": cpu.value,
        "broker_cpu_low": cpu.low,
        "broker_cpu_high": cpu.high,
        "network_bytes_per_second": cost.network(load),
        "memory_bytes": run.pending_messages_max * spec.profile.message_bytes,
        "cpu_seconds": time.thread_time() - started,
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """How fast a sample of the runs went with so many tasks at once."""

    tasks: int
    runs: int
    seconds: float

    @property
    def runs_per_second(self) -> float:
        return self.runs / self.seconds


class Sweep:
    """A sweep in its folder. Raises `InvalidConfiguration` for a folder that holds another one."""

    def __init__(self, plan: SweepPlan, folder: Path, cost: CostModel) -> None:
        self.plan = plan
        self.folder = folder
        self.cost = cost
        folder.mkdir(parents=True, exist_ok=True)
        wanted = json.dumps(plan.to_dict(), indent=1, sort_keys=True)
        file, costs = folder / PLAN_FILE, folder / COST_FILE
        if not file.exists():
            cost.save(costs)
            file.write_text(wanted)
        elif file.read_text() != wanted or CostModel.load(costs) != cost:
            raise InvalidConfiguration(
                f"{folder} holds a sweep with another plan or cost model: go on with the same options, or "
                "name another folder"
            )

    @property
    def runs_folder(self) -> Path:
        return self.folder / RUNS_FOLDER

    def done(self) -> set[str]:
        """Runs that are complete."""
        import pyarrow.parquet as pq

        if not self.runs_folder.exists():
            return set()
        found: set[str] = set()
        for file in sorted(self.runs_folder.glob("*.parquet")):
            found.update(pq.read_table(file, columns=["run_id"]).column("run_id").to_pylist())
        return found

    def left(self) -> list[RunSpec]:
        """Runs that are to be done."""
        done = self.done()
        return [spec for spec in self.plan.specs() if spec.run_id not in done]

    def play(self, spark: SparkSession, progress: Callable[[int], None] = lambda done: None) -> int:
        """Do what is left; the number of runs done. ``progress`` is told after each portion."""
        left = self.left()
        size = max(PORTION_RUNS_MIN, -(-len(left) // PORTIONS))
        done = 0
        for first in range(0, len(left), size):
            portion = left[first : first + size]
            tasks = spark.sparkContext.defaultParallelism * TASKS_PER_CORE
            self._frame(spark, portion, min(tasks, len(portion))).write.mode("append").parquet(
                str(self.runs_folder)
            )
            done += len(portion)
            progress(done)
        return done

    def speeds(self, spark: SparkSession, runs: int) -> list[Speed]:
        """How the same sample of runs goes with one task, with two, four, ... up to all cores."""
        sample = self.plan.specs()[:runs]
        cores = spark.sparkContext.defaultParallelism
        self._frame(spark, sample[: 4 * cores], cores).collect()  # workers start, kernels are loaded
        steps = [tasks for tasks in (1 << bit for bit in range(16)) if tasks < cores] + [cores]
        found = []
        for tasks in steps:
            started = time.perf_counter()
            self._frame(spark, sample, tasks).collect()
            found.append(Speed(tasks=tasks, runs=len(sample), seconds=time.perf_counter() - started))
        return found

    def _frame(self, spark: SparkSession, specs: list[RunSpec], tasks: int) -> Any:
        """A data frame whose rows are the runs' results; dealt out so that neighbours are apart."""
        from pyspark.sql.pandas.types import from_arrow_schema

        dealt = [specs[index] for start in range(tasks) for index in range(start, len(specs), tasks)]
        rows = spark.sparkContext.parallelize([(spec.to_json(),) for spec in dealt], tasks)
        return rows.toDF("spec string").mapInArrow(
            _player(self.plan.seconds, self.plan.broker, self.cost), from_arrow_schema(schema())
        )


def _player(
    seconds: float, broker: BrokerModel, cost: CostModel
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What Spark's tasks do: specifications in, rows out."""

    def play(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            rows = [
                run_one(RunSpec.from_json(text), seconds, broker, cost)
                for text in batch.column("spec").to_pylist()
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=schema())

    return play


def read(folder: Path) -> pa.Table:
    """The runs of a sweep that are complete. Raises `InvalidConfiguration` for a folder without any."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = sorted((folder / RUNS_FOLDER).glob("*.parquet"))
    if not files:
        raise InvalidConfiguration(f"{folder} holds no runs of a sweep")
    return pa.concat_tables([pq.read_table(file) for file in files])


__all__ = ["FIGURES", "Speed", "Sweep", "read", "run_one", "schema"]
