import json
import re
import socket
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from geminga.cli import doctor


def test_a_suitable_machine_has_no_errors(tmp_path):
    done = CliRunner().invoke(
        doctor.command, ["--data-dir", str(tmp_path), "--json", "--port", "0", "--web-port", "0"]
    )
    assert done.exit_code == 0, done.output
    findings = [json.loads(line) for line in done.output.splitlines()]
    assert {f["check"] for f in findings} >= {"python", "java", "packages: core", "disk sync"}
    assert not [f for f in findings if f["status"] == "error"]


def test_a_port_in_use_is_a_warning_that_says_what_to_do():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        finding = doctor.check_port(taken.getsockname()[1], "broker")
    assert finding.status == "warning"
    assert "choose another" in finding.detail


def test_missing_java_is_a_warning_with_the_remedy(monkeypatch):
    monkeypatch.setattr(doctor, "find_java", lambda: None)
    finding = doctor.check_java()
    assert finding.status == "warning"
    assert "geminga[java]" in finding.detail


def test_a_missing_core_package_is_an_error(monkeypatch):
    monkeypatch.setattr(doctor, "PACKAGES", {"core": ("no-such-package-here",), "spark": ("nor-this-one",)})
    core, spark = doctor.check_packages()
    assert (core.status, spark.status) == ("error", "warning")
    assert "pip install 'geminga[spark]'" in spark.detail


def test_every_extra_is_checked():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    del extras["all"], extras["otel"], extras["java"]  # made of others; java is checked by running it
    assert set(doctor.PACKAGES) == {"core", *extras}
    for extra, requirements in extras.items():
        named = {re.split(r"[\[<>=; ]", one)[0].lower() for one in requirements}
        assert set(doctor.PACKAGES[extra]) <= named | {"pyyaml"}, extra


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    assert doctor.check_disk(tmp_path / "absent").status == "error"


def test_a_java_home_without_java_is_what_spark_would_use(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    finding = doctor.check_java()
    assert (finding.status, "holds no bin/java" in finding.detail) == ("warning", True)


def test_the_versions_that_spark_will_use_are_shown(monkeypatch, tmp_path):
    pytest.importorskip("pyspark")
    for name in ("SPARK_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_DIRS"):
        monkeypatch.delenv(name, raising=False)
    assert [one.status for one in doctor.check_spark()] == ["ok", "ok", "ok"]
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert "holds no Spark" in doctor.check_spark()[0].detail
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars/spark-core_2.13-3.5.1.jar").touch()
    assert "is Spark 3.5.1" in doctor.check_spark()[0].detail
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "none"))
    assert "does not run" in doctor.check_spark()[1].detail
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert doctor.check_spark()[1].status == "ok"
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare))
    assert "lacks what workers need" in doctor.check_spark()[1].detail
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "absent"))
    assert "cannot write" in doctor.check_spark()[2].detail
