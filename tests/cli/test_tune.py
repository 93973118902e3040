"""`geminga tune`: wrong options are reported in a sentence before work starts, without a traceback."""

import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import cases

import geminga
from geminga.cli.main import main

NOWHERE = ["--service-url", "pulsar://127.0.0.1:1", "--admin-url", "http://127.0.0.1:1"]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what the command prints on standard error; it must fail."""
    with pytest.raises(SystemExit) as ended:
        main(["tune", *arguments])
    assert ended.value.code not in (0, None)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return " ".join(said.split())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "nonsense.json").write_text("nonsense")
    (tmp_path / "list.json").write_text("[3]")
    (tmp_path / "unknown.json").write_text('{"speed": 3}')
    (tmp_path / "empty").write_text("")
    (tmp_path / "a-file").write_text("x")
    pq.write_table(pa.table({"topic": ["t"], "rate": [3.0]}), tmp_path / "columns.parquet")
    return tmp_path


@pytest.mark.parametrize(("arguments", "sentence"), cases("tune_options_refused"))
def test_wrong_options_are_reported(
    arguments, sentence, folder, capsys,
    monkeypatch
):  # fmt: skip
    monkeypatch.chdir(folder)
    assert sentence in told(capsys, *arguments.replace("FOLDER", str(folder)).split())


def test_a_missing_topic_is_reported(capsys):
    with geminga.embedded() as broker:
        here = ["--service-url", broker.service_url, "--admin-url", broker.admin_url]
        assert "is-not-there" in told(capsys, "advise", "--topic", "is-not-there", "--watch", "0.1", *here)
        nothing = told(capsys, "fleet", "--admin-url", broker.admin_url, "--watch", "0.1")
        assert "nothing was published to the 0 topics" in nothing
        told(capsys, "fleet", "--admin-url", broker.admin_url, "--namespace", "no/where", "--watch", "0.1")


def test_prove_names_a_missing_package_before_it_measures(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("geminga.extras._found", set())
    monkeypatch.delitem(sys.modules, "matplotlib", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said = told(capsys, "prove", *NOWHERE, "--output", str(tmp_path / "proof"))
    assert "geminga tune prove needs the package 'matplotlib': pip install 'geminga[tune]'" in said
    assert not (tmp_path / "proof").exists()
