from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from geminga.cli import doctor


def test_a_fit_machine_has_no_errors(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        doctor.command, ["--data-dir", str(tmp_path), "--json", "--port", "0", "--web-port", "0"]
    )
    assert done.exit_code == 0, done.output
    findings = [json.loads(line) for line in done.output.splitlines()]
    assert {f["check"] for f in findings} >= {"python", "java", "packages: core", "disk sync"}
    assert not [f for f in findings if f["status"] == "error"]


def test_a_port_in_use_is_a_warning_that_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        finding = doctor.check_port(taken.getsockname()[1], "broker")
    assert finding.status == "warning"
    assert "choose another" in finding.detail


def test_missing_java_is_a_warning_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_java", lambda: None)
    finding = doctor.check_java()
    assert finding.status == "warning"
    assert "geminga[java]" in finding.detail


def test_a_missing_core_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", {"core": ("no-such-package-here",), "spark": ("nor-this-one",)})
    core, spark = doctor.check_packages()
    assert (core.status, spark.status) == ("error", "warning")
    assert "pip install 'geminga[spark]'" in spark.detail


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    assert doctor.check_disk(tmp_path / "absent").status == "error"
