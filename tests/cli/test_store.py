import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from waiting import eventually

from geminga.broker.serving.embedded import embedded
from geminga.cli import store as module
from geminga.errors import NotAStore, StoreError
from geminga.ledger.store import FileStore


@pytest.fixture
def folder(tmp_path):
    with FileStore.open(tmp_path / "store") as store:
        ledger = store.create_ledger("persistent://public/default/flights")
        for number in range(9):
            store.append(ledger, b"entry %d" % number * 50, lambda error: None)
        store.keys.put("policies/public/default", b"the policy")
    return tmp_path / "store"


def run(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(module.command, arguments, input=answer, standalone_mode=False)


def harm(folder: Path, what: bytes, replacement: bytes) -> None:
    log = folder / "log-0000000001"
    log.write_bytes(log.read_bytes().replace(what, replacement, 1))


def test_an_intact_store_has_no_findings(folder):
    done = run("check", str(folder))
    assert done.return_value == 0
    assert "1 ledgers, 1 keys: all is well." in done.output
    assert "all is well" in run("repair", str(folder)).output


def test_a_store_without_its_superblock_is_checked(folder):
    (folder / "superblock").unlink()
    assert "1 ledgers, 1 keys: all is well." in run("check", str(folder)).output
    assert not (folder / "superblock").exists()


def test_damage_is_reported_as_text_and_as_json(folder):
    harm(folder, b"entry 3entry 3", b"entry 3ENTRY 3")
    done = run("check", str(folder))
    assert done.return_value == 1
    assert "1 damaged thing." in done.output
    assert "ledger 0, entry 3 of persistent://public/default/flights" in done.output
    assert "given up" in done.output
    lines = [json.loads(line) for line in run("check", "--json", str(folder)).output.splitlines()]
    assert lines[0]["damaged"] == 1
    assert (lines[1]["lost"], lines[1]["owner"]) == ("entries", "persistent://public/default/flights")


def test_repair_asks_first(folder):
    harm(folder, b"entry 3entry 3", b"entry 3ENTRY 3")
    before = (folder / "log-0000000001").read_bytes()
    done = run("repair", str(folder), answer="n\n")
    assert done.return_value == 1
    assert "given up" in done.output
    assert (folder / "log-0000000001").read_bytes() == before
    assert run("check", str(folder)).return_value == 1
    assert "nothing is damaged any more" in run("repair", str(folder), answer="y\n").output
    assert run("check", str(folder)).return_value == 0


def test_a_backup_of_a_running_broker_is_restored(tmp_path):
    import geminga

    with geminga.embedded(tmp_path / "store") as broker, broker.client() as client:
        producer = client.create_producer("flights")
        for number in range(20):
            producer.send(b"%d" % number)
        done = run("backup", str(tmp_path / "store"), str(tmp_path / "backup"), "--verify")
        assert done.return_value == 0, done.output
        assert "backed up 1 log files" in done.output
        assert "all is well" in done.output
        producer.send(b"later")
    (row, report) = [
        json.loads(line)
        for line in run(
            "restore", str(tmp_path / "backup"), str(tmp_path / "again"), "--json"
        ).output.splitlines()
    ]
    assert (row["log_files"], report["damaged"]) == (1, 0)
    with geminga.embedded(tmp_path / "again") as broker, broker.client() as client:
        reader = client.create_reader("flights", geminga.MessageId.earliest)
        assert [reader.read_next(60_000).data() for _ in range(20)] == [b"%d" % n for n in range(20)]
        assert not reader.has_message_available()
    assert isinstance(run("backup", str(tmp_path / "none"), str(tmp_path / "x")).exception, NotAStore)
    full = run("restore", str(tmp_path / "backup"), str(tmp_path / "again")).exception
    assert isinstance(full, StoreError)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_backup_whose_summary_cannot_be_written_is_made(folder, tmp_path):
    backup = [sys.executable, "-m", "geminga", "store", "backup", str(folder), str(tmp_path / "backup")]
    with open("/dev/full", "w") as full:
        done = subprocess.run(backup, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, "the output cannot be written: No space left" in done.stderr) == (0, True)
    assert run("check", str(tmp_path / "backup")).return_value == 0


def test_a_copy_only_reads_offloaded_files_until_it_claims_the_location(tmp_path):
    place = ("--offload-location", str(tmp_path / "tier"))
    with embedded(tmp_path / "store", offload_location=place[1]):
        eventually(lambda: (tmp_path / "tier" / "_claim.json").exists())
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    original, copy = str(tmp_path / "store"), str(tmp_path / "copy")
    assert "is claimed by" not in run("check", original, *place).output
    done = run("check", copy, *place)
    assert done.return_value == 0
    assert "is claimed by" in done.output
    done = run("claim", copy, *place, answer="n\n")
    assert done.return_value == 1
    assert "Is it gone for good?" in done.output
    assert "the storage now belongs to this store" in run("claim", copy, "--yes", *place).output.lower()
    assert "is claimed by" not in run("check", copy, *place).output
    assert "is claimed by" in run("check", original, *place).output
    assert json.loads(run("claim", copy, "--json", *place).output) == {"claimed": True}
    assert isinstance(run("claim", str(tmp_path), *place).exception, NotAStore)
