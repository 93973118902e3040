"""Units and container recipe in ``deploy/``: what they run is run, the units by a systemd."""

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import eventually

from geminga.cli.standalone import FIELDS
from geminga.testing.apache_pulsar import free_ports

ROOT = Path(__file__).parents[2]
SYSTEMD, CONTAINER = ROOT / "deploy/systemd", ROOT / "deploy/container"
COMMAND = [sys.executable, "-m", "geminga"]


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


BOOT = """
set -eu
mount --make-rprivate /
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs /run
for each in etc var opt; do
    mkdir -p /run/$each/up /run/$each/work
    mount -t overlay -o lowerdir=/$each,upperdir=/run/$each/up,workdir=/run/$each/work overlay /$each
done
mkdir -p /opt/geminga/bin /opt/geminga/python /opt/geminga/src /opt/geminga/packages /run/units
mount --bind "$PYTHON" /opt/geminga/python
mount --bind "$SRC" /opt/geminga/src
mount --bind "$PACKAGES" /opt/geminga/packages
echo '#!/bin/sh
export PYTHONHOME=/opt/geminga/python LD_LIBRARY_PATH=/opt/geminga/python/lib
export PYTHONPATH=/opt/geminga/src:/opt/geminga/packages
exec /opt/geminga/python/bin/python3 -m geminga "$@"' > /opt/geminga/bin/geminga
chmod 755 /opt/geminga/bin/geminga
useradd --system --home-dir /var/lib/geminga geminga
install -d -o root -g geminga -m 750 /etc/geminga
install -d -o geminga -m 700 /var/backups/geminga
cp "$UNITS"/geminga*.service "$UNITS"/geminga*.timer /etc/systemd/system/
for each in sysinit basic shutdown multi-user network-online timers; do
    printf '[Unit]\\nDefaultDependencies=no\\n' > /run/units/$each.target
done
export container=unshare SYSTEMD_UNIT_PATH=/etc/systemd/system:/run/units
exec /lib/systemd/systemd --system --unit=basic.target --log-target=null --show-status=0
"""
"""Starts a systemd in namespaces of its own, with changes of /etc, /var and /opt in memory."""


@pytest.fixture
def machine() -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Boot a systemd; yields a function that runs a command beside it."""
    groups = [
        each.split()[1] for each in Path("/proc/mounts").read_text().splitlines() if " cgroup2 rw" in each
    ]
    tools = ("/lib/systemd/systemd", "unshare", "nsenter", "useradd")
    if os.geteuid() or not groups or None in map(shutil.which, tools):
        pytest.skip("needs root, systemd and control groups")
    group = Path(groups[0], f"geminga-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    boot = 'exec unshare --fork --kill-child --mount-proc -pmCiu sh -c "$BOOT"'
    environment = {
        "PATH": os.environ["PATH"], "BOOT": BOOT, "PYTHON": sys.base_prefix, "SRC": str(ROOT / "src"),
        "PACKAGES": sysconfig.get_path("purelib"), "UNITS": str(SYSTEMD),
    }  # fmt: skip
    process = subprocess.Popen(["sh", "-c", f"echo $$ > {group}/cgroup.procs && {boot}"], env=environment)

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        assert process.poll() is None
        first = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        inside = ["nsenter", "-t", *(first or ["0"]), "-a", *command]
        return subprocess.run(inside, check=False, timeout=60, capture_output=True, text=True)

    try:
        eventually(lambda: run("systemctl", "is-system-running").stdout == "running\n", 30)
        yield run
    finally:
        process.kill()
        process.wait()
        for each in (*sorted(group.rglob("*/"), reverse=True), group):
            eventually(lambda each=each: each.rmdir() is None, but=OSError)


def test_a_real_systemd_starts_reloads_restarts_and_stops_the_broker(machine):
    def state(*names: str) -> list[str]:
        shown = machine("systemctl", "show", "geminga", *(f"--property={name}" for name in names))
        found = dict(line.split("=", 1) for line in shown.stdout.splitlines())
        return [found[name] for name in names]

    def control(verb: str, name: str = "geminga") -> int:
        return machine("systemctl", verb, name).returncode

    def write(text: str) -> None:
        done = machine(
            "sh", "-c", 'cd /etc/geminga; echo "$0" > geminga.toml; chgrp geminga *; chmod 640 *', text
        )
        assert done.returncode == 0, done.stderr

    port, web_port, health_port = free_ports(3)
    text = f"port = {port}\nweb_port = {web_port}\n{(SYSTEMD / 'geminga.toml').read_text()}"
    text = text.replace("0.0.0.0", "127.0.0.1").replace("8081", f"{health_port}")
    text = text.replace("/etc/geminga/secret.key", "k")
    machine("/opt/geminga/bin/geminga", "token", "create-secret-key", "--output", "/etc/geminga/k")
    write(f"{text}no_such_setting = 1")
    assert control("start") == 1
    assert state("ActiveState", "ExecMainStatus", "NRestarts") == ["failed", "2", "0"]
    write(text)
    machine("sed", "-i", "s/WatchdogSec=60/WatchdogSec=3/", "/etc/systemd/system/geminga.service")
    machine("systemctl", "daemon-reload")
    assert control("start") == 0
    health = ("/opt/geminga/bin/geminga", "health", "--admin-url", f"http://127.0.0.1:{health_port}")
    assert machine(*health).returncode == 0
    assert control("reload") == 0
    eventually(lambda: state("ActiveState") == ["active"], 60)
    for restarts, signal_name in enumerate(("KILL", "STOP"), 1):  # the watchdog ends the second one
        machine("kill", f"-{signal_name}", *state("MainPID"))
        expected = ["active", str(restarts)]
        eventually(lambda expected=expected: state("ActiveState", "NRestarts") == expected, 60)
        assert machine(*health).returncode == 0
    assert control("start", "geminga-backup") == 0
    assert len(machine("ls", "/var/backups/geminga").stdout.split()) == 2
    assert [control("stop"), state("ActiveState", "Result")] == [0, ["inactive", "success"]]


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
    environment["GEMINGA_ANONYMOUS"] = "true"
    process = subprocess.Popen([*COMMAND, *command], env=environment, stderr=subprocess.PIPE, text=True)
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
