"""Programs with other versions of the official clients against our broker: one version in each run."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from readers import available

import geminga
from geminga.broker.rules.tokens import make_token
from geminga.broker.serving.embedded import embedded

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
other_python: Any = importlib.import_module("other_python")
fetch_pulsar: Any = importlib.import_module("fetch_pulsar")

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

PROGRAMS = Path(__file__).with_name("programs")
KEY = bytes(32)
POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>programs</groupId><artifactId>program</artifactId><version>1</version><dependencies><dependency>
<groupId>org.apache.pulsar</groupId><artifactId>pulsar-client</artifactId><version>{}</version>
</dependency></dependencies></project>"""


def run(*command: str | Path, folder: Path, **environment: str) -> str:
    """Run a command and return its output; raise `CalledProcessError` if it fails."""
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, timeout=600,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    print(done.stdout)
    done.check_returncode()
    return done.stdout


def java(version: str, folder: Path) -> list[str | Path]:
    (folder / "pom.xml").write_text(POM.format(version))
    assert fetch_pulsar.maven("build-classpath", "-Dmdep.outputFile=classpath", folder=folder)
    classpath = (folder / "classpath").read_text()
    return ["java", "-XX:TieredStopAtLevel=1", "-cp", classpath, PROGRAMS / "Program.java"]


def go(version: str, folder: Path) -> list[str | Path]:
    shutil.copy(PROGRAMS / "program.go", folder)
    (folder / "go.mod").write_text(
        f"module program\n\ngo 1.21\n\nrequire github.com/apache/pulsar-client-go v{version}\n"
    )
    run("go", "build", "-mod=mod", "-o", "program", folder=folder, CGO_ENABLED="0")
    return [folder / "program"]


def python(version: str, folder: Path) -> list[str | Path]:
    interpreter = other_python.interpreter("3.10" if version.startswith("2.") else "3.11")
    if interpreter is None:
        pytest.skip(f"no Python for pulsar-client {version}")
    uv = Path(sys.executable).with_name("uv")
    run(uv, "-q", "venv", "--python", interpreter, "venv", folder=folder)
    run(uv, "-q", "pip", "install", "--python", "venv/bin/python", f"pulsar-client=={version}", folder=folder)
    return [folder / "venv/bin/python", PROGRAMS / "program.py"]


VERSIONS = {
    java: ("2.8.4", "2.10.1", "3.0.7", "3.3.6", "4.2.4"),
    go: ("0.9.0", "0.14.0", "0.19.0"),
    python: ("2.10.2", "3.1.0", "3.7.0"),
}


@pytest.mark.rotating(1)
@pytest.mark.parametrize(
    ("prepared", "version"),
    [pytest.param(how, each, id=f"{how.__name__}-{each}") for how, all_ in VERSIONS.items() for each in all_],
)
def test_everyday_programs_run_with_other_versions_of_the_clients(prepared, version, tmp_path):
    try:
        program = prepared(version, tmp_path)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot be fetched: {error}")
    topic = f"persistent://public/default/{uuid4().hex[:8]}"
    token = make_token("admin", KEY, "HS256", expires_at=None)
    with (
        embedded(token_secret_key="data:;base64," + "A" * 43 + "=", super_user_roles=("admin",)) as broker,
        broker.client(authentication=geminga.AuthenticationToken(token)) as client,
        geminga.Admin(broker.admin_url, authentication=geminga.AuthenticationToken(token)) as admin,
    ):
        admin.topics.create(f"{topic}-partitions", partitions=3)
        producer = client.create_producer(f"{topic}-ours", compression_type=geminga.CompressionType.ZSTD)
        for number in range(20):
            producer.send_async(b"%d" % number, None)
        producer.flush()
        output = run(*program, broker.service_url, token, topic, folder=tmp_path)
        assert "all passed" in output.splitlines()
        reader = client.create_reader(f"{topic}-compression", geminga.MessageId.earliest)
        found = [int(message.data()) for message in available(reader)]
        assert len(found) >= 40
        assert found == list(range(len(found)))
