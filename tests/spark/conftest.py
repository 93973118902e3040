"""One Spark session for all tests of this folder; brokers are the package's own fixtures."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from geminga.broker.serving.embedded import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# For `scripted_cluster`: tests are imported file by file, without packages.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A small local session with ``format("pulsar")``; skips where Java is missing."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Java is missing")
    import geminga.spark

    folder: Path = tmp_path_factory.mktemp("spark")
    session = geminga.spark.session(
        "local[2]",
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


@pytest.fixture(scope="module")
def pulsar_broker(pulsar_module_broker: EmbeddedBroker) -> EmbeddedBroker:
    """The module's: Spark keeps connections for longer than a test."""
    return pulsar_module_broker
