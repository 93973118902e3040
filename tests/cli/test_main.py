"""The command line as a user meets it: a process of its own."""

import errno
import io
import logging
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request

import click
import pytest
from click.testing import CliRunner
from doubles import raising
from interpreter import run_python

from geminga.cli.common import confirm, say, show_warnings
from geminga.cli.main import SECTIONS, command, main
from geminga.errors import AdminTopicNotFound
from geminga.ledger.store import FileStore
from geminga.testing.apache_pulsar import free_ports

GEMINGA = [sys.executable, "-m", "geminga.cli.main"]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*GEMINGA, *arguments], capture_output=True, text=True, timeout=120, check=False)


def test_help_names_every_command_and_loads_nothing_heavy():
    code = (
        "import sys\n"
        "from geminga.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "names = 'pyarrow numpy numba aiohttp pyspark pandas google.protobuf asyncio logging json rich'\n"
        "heavy = set(names.split()) & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))\n"
    )
    done = run_python(code)
    assert "HEAVY []" in done.stdout
    for name in ("standalone", "produce", "consume", "topics", "demo", "doctor"):
        assert name in done.stdout


def test_help_groups_the_commands_by_task():
    shown = CliRunner().invoke(command, ["--help"]).stdout
    for title, first in (("Send and read messages", "produce"), ("Manage a cluster", "topics")):
        assert f"{title}:\n  {first} " in shown
    listed = [name for section in SECTIONS.values() for name in section]
    assert len(listed) == len(set(listed)) == len(command.list_commands(click.Context(command)))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(shell):
    assert "_GEMINGA_COMPLETE" in CliRunner().invoke(command, ["completion", shell]).stdout


def test_commands_are_completed_without_loading_their_modules():
    found = command.shell_complete(click.Context(command), "t")
    assert [one.value for one in found] == [
        "token",
        "tail",
        "top",
        "topics",
        "transactions",
        "tenants",
        "tune",
    ]


def test_an_error_names_neither_its_class_nor_the_request(capsys, monkeypatch):
    monkeypatch.setattr(
        command,
        "main",
        raising(AdminTopicNotFound("Topic t not found (HTTP 404 for GET a/b/t) (did you mean 'u'?)")),
    )
    with pytest.raises(SystemExit, match="1"):
        main([])
    assert capsys.readouterr().err == "geminga: Topic t not found (did you mean 'u'?)\n"


def test_an_argument_that_is_not_utf_8_is_named(capsys, monkeypatch):
    monkeypatch.setattr(command, "main", lambda **_: "t\udcff".encode())
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert capsys.readouterr().err == "geminga: 't\\udcff' cannot be written in utf-8\n"


def test_an_error_of_the_system_names_the_file(capsys, tmp_path):
    with pytest.raises(SystemExit, match="1"):
        main(["config", "init", str(tmp_path)])
    assert capsys.readouterr().err == f"geminga: {tmp_path}: File exists\n"


def test_standalone_keeps_its_data_in_a_default_folder(tmp_path):
    with subprocess.Popen(
        [*GEMINGA, "standalone", "--port", "0", "--web-port", "0"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as broker:  # fmt: skip
        try:
            assert broker.stderr is not None
            told = next(line for line in broker.stderr if "pulsar://" in line)
            url = next(word for word in told.split() if word.startswith("pulsar://"))
            assert _run("produce", "t", "-m", "x", "--url", url).returncode == 0
        finally:
            broker.send_signal(signal.SIGTERM)
            broker.communicate(timeout=60)
    assert f"store {tmp_path / 'geminga-data'} " in told
    assert broker.returncode == 0
    assert _run("store", "check", str(tmp_path / "geminga-data")).returncode == 0


def test_the_exit_code_of_a_command_is_that_of_the_process(tmp_path):
    (tmp_path / "not-a-store").touch()
    done = _run("standalone", "--data-dir", str(tmp_path), "--port", "0", "--web-port", "0")
    assert (done.returncode, "is no store" in done.stderr) == (3, True), done.stderr


def test_a_question_without_a_terminal_names_the_option():
    done = subprocess.run(
        [*GEMINGA, "topics", "delete", "t", "--url", "pulsar://127.0.0.1:1"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, "give --yes" in done.stderr) == (2, True)


def test_a_closed_pipe_is_no_failure():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*GEMINGA, "--help"], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_the_console_is_served_although_its_address_cannot_be_printed():
    (port,) = free_ports(1)
    with open("/dev/full", "w") as full:
        running = subprocess.Popen(
            [*GEMINGA, "console", "--port", str(port), "--admin-url", "http://127.0.0.1:1"], stdout=full
        )
    try:
        deadline = time.monotonic() + 60
        while running.poll() is None and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as page:
                    assert b"<title>Geminga</title>" in page.read()
                break
            except OSError:
                select.select([], [], [], 0.05)
        running.terminate()
        assert running.wait(60) == 0
    finally:
        running.kill()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_a_failure_without_a_traceback():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*GEMINGA, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False
        )
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_closed_standard_streams_are_filled_before_a_socket_takes_their_number():
    command = [*GEMINGA, "consume", "t", "--url", "pulsar://127.0.0.1:1", "--timeout", "1"]
    done = subprocess.run(["/bin/sh", "-c", '"$@" <&- >&- 2>&-', "sh", *command], timeout=30, check=False)
    assert done.returncode == 3  # and not killed by an assertion in the event loop


def test_a_backup_is_made_with_closed_standard_streams(tmp_path):
    FileStore.open(tmp_path / "store").close()
    command = [*GEMINGA, "store", "backup", str(tmp_path / "store"), str(tmp_path / "backups"), "--keep", "1"]
    done = subprocess.run(["/bin/sh", "-c", '"$@" <&- >&- 2>&-', "sh", *command], timeout=60, check=False)
    assert done.returncode == 0
    assert len([each for each in (tmp_path / "backups").iterdir() if each.is_dir()]) == 1


def test_an_unwritable_standard_error_changes_no_exit_status(monkeypatch):
    class FullDisk(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys, "stderr", FullDisk())
    say("a line of the mirror's status")
    with click.Context(command):
        show_warnings()
        logging.getLogger("geminga").warning("a warning of the client's")
    for wrong in (["prodce"], ["standalone", "--memory", "--data-dir", "x"]):
        with pytest.raises(SystemExit, match="2"):
            main(wrong)


HANGUP_AT_THE_START = """
import os, signal, sys
from geminga.cli import standalone

read = standalone.read_configuration

def hang_up_and_read(context):
    standalone.read_configuration = read
    os.kill(os.getpid(), signal.SIGHUP)
    return read(context)

standalone.read_configuration = hang_up_and_read
standalone.command.main(["--memory", "--port", "0", "--web-port", "none"], prog_name="geminga standalone")
"""


def test_a_hangup_while_the_broker_starts_reloads_it_once_it_serves():
    with subprocess.Popen(
        [sys.executable, "-c", HANGUP_AT_THE_START], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        log = ""
        for line in process.stderr:
            log += line
            if "configuration reloaded; changed: nothing" in line:
                process.terminate()
        assert process.wait(60) == 0, log
    assert log.index("geminga broker ready") < log.index("configuration reloaded")


def test_another_answer_than_yes_ends_with_1():
    @click.command()
    def asking() -> None:
        confirm("Delete it?")
        raise AssertionError("deleted")

    done = CliRunner().invoke(asking, input="n\n", standalone_mode=False)
    assert (done.exception, done.return_value) == (None, 1)
    assert done.stderr.endswith("nothing was changed\n")
