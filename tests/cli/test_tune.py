"""`geminga tune`: wrong options are reported in a sentence before work starts, without a traceback."""

import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import geminga
from geminga.cli.main import main

NUMBERS = ["advise", "--rate", "100", "--message-bytes", "200"]
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


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["advise"], "--rate and --message-bytes missing"),
        (["advise", "--rate", "0", "--message-bytes", "1"], "'--rate': 0.0 is not in the range"),
        (["advise", "--rate", "nan", "--message-bytes", "1"], "'nan' is not a number"),
        ([*NUMBERS, "--partitions", "0"], "'--partitions': 0 is not in the range"),
        ([*NUMBERS, "--partitions", "100001"], "partitions=100001"),
        ([*NUMBERS, "--latency-budget", "1"], "1.0 is not in the range x>=2"),
        ([*NUMBERS, "--latency-budget", "1e9"], "latency_budget_seconds=1000000.0"),
        ([*NUMBERS, "--compression", "BROTLI"], "'BROTLI' is not one of"),
        ([*NUMBERS, "--compression", "LZ4", "--compression-level", "3"], "only ZSTD and ZLib have levels"),
        ([*NUMBERS, "--compression", "ZLIB", "--compression-level", "12"], "<= 9 with compression ZLib"),
        ([*NUMBERS, "--compression-level", "3"], "--compression-level goes with --compression"),
        ([*NUMBERS, "--stock", "kafka"], "'kafka' is not one of"),
        ([*NUMBERS, "--apply", "FOLDER/none/x.toml"], "none is no folder"),
        ([*NUMBERS, "--apply", "FOLDER"], "is a directory"),
        ([*NUMBERS, "--sample", "FOLDER/none"], "does not exist"),
        ([*NUMBERS, "--sample", "FOLDER/empty"], "holds no messages"),
        (["advise", "--topic", "t", *NOWHERE], "nothing listens there"),
        (["advise", "--topic", "non://sense", *NOWHERE], "non://sense"),
        (["prove", "--repeats", "0"], "'--repeats': 0 is not in the range"),
        (["prove", "--client", "rust"], "'rust' is not one of"),
        (["prove", "--client", "geminga", "--only", "nobody"], "patterns of: Geminga, stock"),
        (["prove", "--output", "FOLDER/a-file"], "is a file"),
        (["prove", "--client", "geminga", "--output", "FOLDER/p", *NOWHERE], "nothing listens there"),
        (["capacity", "--crossings", "0"], "'--crossings': 0 is not in the range"),
        (["capacity", "--only", "nobody"], "patterns of: Geminga, stock"),
        (["capacity", "--output", "FOLDER/p", *NOWHERE], "nothing listens there"),
        (["fleet", "--admin-url", "http://127.0.0.1:1"], "no answer from http://127.0.0.1:1"),
        (["fleet", "--admin-url", "127.0.0.1"], "127.0.0.1"),
        (["fleet", "--topics", "FOLDER/nonsense.json"], "is no Parquet file"),
        (["fleet", "--topics", "FOLDER/columns.parquet"], "rate_messages_per_second"),
        (["fleet", "--latency-budget", "0"], "0.0 is not in the range"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_options_are_reported(
    arguments, sentence, folder, capsys,
    monkeypatch
):  # fmt: skip
    monkeypatch.chdir(folder)
    assert sentence in told(capsys, *(argument.replace("FOLDER", str(folder)) for argument in arguments))


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
