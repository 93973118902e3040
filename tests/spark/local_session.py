"""The Spark session that tests share: a small one in this process, whose tasks have two attempts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHAOS = Path(__file__).parent / "chaos"


@contextmanager
def local_session(folder: Path) -> Iterator[SparkSession]:
    """With ``format("pulsar")``, and what `chaos` needs in Spark's processes; skips where Java is missing."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Java is missing")
    import geminga.spark

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CHAOS), os.environ.get("PYTHONPATH")]))
    session = geminga.spark.session(
        "local[2,2]",
        "geminga-tests",
        {
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
            "spark.sql.streaming.stopTimeout": "30s",
        },
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
