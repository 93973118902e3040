"""Stores of earlier releases are opened, read and continued; those of later ones are refused."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import geminga
from geminga.cli.main import command
from geminga.errors import StoreError
from geminga.ledger.files import folder as store_folder
from geminga.ledger.files import format as store_format
from tests.kept_stores.content import SETTINGS, check, fill

ARCHIVES = sorted(Path(__file__).parent.glob("*.tar.xz"))


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def kept(request, tmp_path):
    """A folder with a kept store, the files it offloaded, and what is in them."""
    with tarfile.open(request.param) as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path


def start(folder: Path) -> geminga.EmbeddedBroker:
    return geminga.embedded(folder / "store", offload_location=str(folder / "tier"), **SETTINGS)


def test_a_store_of_an_earlier_release_is_read_and_continued(kept):
    expected: dict[str, Any] = json.loads((kept / "expected.json").read_text())
    with start(kept) as broker:
        check(broker, expected)
        with broker.client() as client:
            client.create_producer("rows").send(b"row of today")
    for values in (expected["topics"]["rows"], *expected["subscriptions"]["rows"].values()):
        values.append("row of today")
    store_check = CliRunner().invoke(command, ["store", "check", str(kept / "store")])
    assert store_check.exit_code == 0, store_check.output
    with start(kept) as broker:
        check(broker, expected)


def test_a_store_of_this_version_has_everything_after_a_restart(tmp_path):
    with start(tmp_path) as broker:
        expected = json.loads(json.dumps(fill(broker)))
        check(broker, expected)
    with start(tmp_path) as broker:
        check(broker, expected)


def test_a_store_that_a_later_format_has_opened_is_refused_by_this_one(kept, monkeypatch):
    with monkeypatch.context() as later:
        later.setattr(store_format, "FORMAT_VERSION", 2)
        later.setattr(store_folder, "FORMAT_VERSION", 2)
        start(kept).close()
    before = {path: path.read_bytes() for path in (kept / "store").iterdir() if path.name != "lock"}
    with pytest.raises(StoreError, match=r"has format 2, .* knows up to 1.*newer version"):
        start(kept)
    assert before == {path: path.read_bytes() for path in before}


def test_offloaded_ledgers_of_a_later_format_are_left_alone(kept):
    (manifest,) = (kept / "tier").rglob("manifest.json")
    content = json.loads(manifest.read_text()) | {"version": 3}
    manifest.write_text(json.dumps(content))
    with start(kept) as broker, broker.client() as client:
        reader = client.create_reader("offloaded", geminga.MessageId.earliest)
        assert reader.read_next(60_000).data() == b"old 0"
    assert json.loads(manifest.read_text()) == content


def test_offsets_and_decisions_of_a_kept_spark_checkpoint_are_understood(tmp_path):
    offsets = pytest.importorskip("geminga.spark.offsets")
    staging = pytest.importorskip("geminga.spark.sink.staging")
    of_0_2_0 = '{"persistent://public/default/flights":{"0":"5:1041","1":"6:988:3","2":"-1:-1"}}'
    found = offsets.from_json(of_0_2_0)
    assert json.dumps(offsets.to_json(found), separators=(",", ":")) == of_0_2_0
    epochs = tmp_path / "sink/epochs"
    epochs.mkdir(parents=True)
    decision = {
        "files": ["a.arrow"],
        "rows": 3,
        "plan": "p",
        "since": {"t": "5:7"},
        "decided_ms": 1_790_000_000_000,
    }
    (epochs / "4.json").write_text(json.dumps(decision))
    kept_epoch = staging.Staging(str(tmp_path / "sink")).epoch(4)
    assert (kept_epoch.files, kept_epoch.rows, kept_epoch.since) == (("a.arrow",), 3, {"t": "5:7"})
