"""``geminga health``: exit status and words for a broker that is ready, gone, or asks for credentials."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

import geminga
from geminga.cli.health import command
from geminga.errors import ConnectError
from geminga.testing.apache_pulsar import free_ports


@pytest.mark.parametrize(("arguments", "word"), [([], "ready"), (["--live"], "alive")])
def test_a_broker_that_takes_messages_is_ready(arguments, word):
    with geminga.embedded() as broker:
        found = CliRunner().invoke(command, ["--admin-url", broker.admin_url, *arguments])
    assert (found.exit_code, found.output) == (0, f"{word}\n")


def test_output_that_cannot_be_written_does_not_make_a_broker_unhealthy():
    with geminga.embedded() as broker, open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "geminga", "health", "--admin-url", broker.admin_url]
        assert subprocess.run(command, stdout=full, check=False, timeout=60).returncode == 0


def test_health_needs_no_credentials(tmp_path):
    key = tmp_path / "key"
    key.write_bytes(b"0123456789" * 4)
    with geminga.embedded(token_secret_key=str(key)) as broker:
        found = CliRunner().invoke(command, ["--admin-url", broker.admin_url])
    assert (found.exit_code, found.output) == (0, "ready\n")


def test_a_broker_that_does_not_answer_is_not_ready():
    (port,) = free_ports(1)
    found = CliRunner().invoke(command, ["--admin-url", f"http://127.0.0.1:{port}", "--timeout", "2"])
    assert found.exit_code == 1
    assert isinstance(found.exception, ConnectError)
