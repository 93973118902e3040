"""Units and container recipe in ``deploy/``: what they run is run, with a service manager's socket."""

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from geminga.cli.standalone import FIELDS
from geminga.testing.apache_pulsar import free_ports

ROOT = Path(__file__).parents[2]
SYSTEMD, CONTAINER = ROOT / "deploy/systemd", ROOT / "deploy/container"
COMMAND = [sys.executable, "-m", "geminga"]

pytestmark = pytest.mark.timeout(120)


def unit(name: str) -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None)
    found.optionxform = str
    found.read(SYSTEMD / name)
    return found


def run_of(name: str, **replaced: str) -> list[str]:
    """Return the command of a unit, with this Python's geminga and other paths."""
    program, *arguments = shlex.split(unit(name)["Service"]["ExecStart"])
    assert program == "/opt/geminga/bin/geminga"
    return [*COMMAND, *(replaced.get(each, each) for each in arguments)]


def test_the_unit_starts_reloads_backs_up_and_stops(tmp_path):
    key, data, backups = tmp_path / "secret.key", tmp_path / "data", tmp_path / "backups"
    key.write_bytes(b"0123456789" * 4)
    port, web_port, health_port = free_ports(3)
    text = (SYSTEMD / "geminga.toml").read_text()
    changes = {
        "/var/lib/geminga": str(data), "0.0.0.0": "127.0.0.1", "8081": str(health_port),
        "/etc/geminga/secret.key": str(key),
    }  # fmt: skip
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    config = tmp_path / "geminga.toml"
    config.write_text(f"port = {port}\nweb_port = {web_port}\n{text}")
    service = unit("geminga.service")["Service"]
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)

        def state() -> str:
            """Return the next state but those of the watchdog."""
            while (found := manager.recv(1000).decode()) == "WATCHDOG=1":
                pass
            return found.partition("\n")[0]

        process = subprocess.Popen(
            run_of("geminga.service", **{"/etc/geminga/geminga.toml": str(config)}),
            env={
                **os.environ,
                "NOTIFY_SOCKET": str(tmp_path / "notify"),
                "WATCHDOG_USEC": f"{int(service['WatchdogSec']) * 1_000_000}",
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert state() == "READY=1"
            address = ["--admin-url", f"http://127.0.0.1:{health_port}"]
            assert subprocess.run([*COMMAND, "health", *address], check=False, timeout=60).returncode == 0
            process.send_signal(signal.SIGHUP)
            assert [state(), state()] == ["RELOADING=1", "READY=1"]
            names = {"/var/lib/geminga": str(data), "/var/backups/geminga": str(backups)}
            subprocess.run(run_of("geminga-backup.service", **names), check=True, timeout=60)
            process.terminate()
            assert state() == "STOPPING=1"
            _, log = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, log
    assert "configuration reloaded" in log
    assert len(list(backups.glob("2*"))) == 1


def test_a_unit_is_not_restarted_after_a_wrong_setting(tmp_path):
    config = tmp_path / "geminga.toml"
    config.write_text("no_such_setting = 1\n")
    command = run_of("geminga.service", **{"/etc/geminga/geminga.toml": str(config)})
    done = subprocess.run(command, check=False, timeout=60, capture_output=True)
    assert str(done.returncode) == unit("geminga.service")["Service"]["RestartPreventExitStatus"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path):
    for path in SYSTEMD.glob("geminga*.*"):
        if path.suffix in (".service", ".timer"):
            (tmp_path / path.name).write_text(
                path.read_text().replace("/opt/geminga/bin/geminga", "/bin/true")
            )
    names = sorted(str(path) for path in tmp_path.iterdir())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *names],
        check=False, timeout=60, capture_output=True, text=True,
    )  # fmt: skip
    assert not [line for line in done.stderr.splitlines() if "geminga" in line]


def instructions(word: str) -> list[str]:
    text = (CONTAINER / "Dockerfile").read_text()
    return [line.removeprefix(f"{word} ") for line in text.splitlines() if line.startswith(f"{word} ")]


def test_the_container_needs_authentication_and_its_health_check_succeeds(tmp_path):
    variables = dict(line.split("=", 1) for line in instructions("ENV"))
    assert {name.removeprefix("GEMINGA_").lower() for name in variables} - {"path"} <= set(FIELDS)
    port, web_port, health_port = free_ports(3)
    environment = {
        **os.environ, **variables, "PATH": os.environ["PATH"], "GEMINGA_DATA_DIR": str(tmp_path / "data"),
        "GEMINGA_HEALTH_PORT": f"{health_port}", "GEMINGA_PORT": f"{port}", "GEMINGA_WEB_PORT": f"{web_port}",
    }  # fmt: skip
    entry, command = json.loads(instructions("ENTRYPOINT")[0]), json.loads(instructions("CMD")[0])
    assert entry == ["geminga"]
    refused = subprocess.run(
        [*COMMAND, *command], env=environment, check=False, timeout=60, capture_output=True, text=True
    )
    assert (refused.returncode, "without authentication" in refused.stderr) == (2, True)
    process = subprocess.Popen(
        [*COMMAND, *command],
        env={**environment, "GEMINGA_ANONYMOUS": "true"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while "geminga broker ready" not in process.stderr.readline():
            assert process.poll() is None
        (check,) = instructions("HEALTHCHECK")
        program, *arguments = json.loads(check.partition("CMD ")[2].replace("8081", f"{health_port}"))
        assert program == "geminga"
        assert subprocess.run([*COMMAND, *arguments], check=False, timeout=60).returncode == 0
        process.send_signal(getattr(signal, instructions("STOPSIGNAL")[0]))
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_the_container_installs_extras_that_there_are():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (named,) = re.findall(r'pip install .*"/src\[(.*)\]"', (CONTAINER / "Dockerfile").read_text())
    assert set(named.split(",")) <= set(extras)


def test_the_variables_of_the_kubernetes_recipe_are_settings():
    names = re.findall(r"name: GEMINGA_(\w+)", (CONTAINER / "kubernetes.yaml").read_text())
    assert names
    assert {name.lower() for name in names} <= set(FIELDS)
