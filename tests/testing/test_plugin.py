"""The pytest fixtures, used the way a project that installs the package uses them."""

import subprocess
import sys
from pathlib import Path

from interpreter import run_python

MODULE = """
import pytest

@pytest.fixture(scope="module")
def pulsar_settings():
    return {"cluster": "mine"}

def test_memory(pulsar_broker, pulsar_topic):
    assert pulsar_broker.settings.cluster == "mine"
    assert pulsar_broker.settings.memory
    assert "test-memory" in pulsar_topic

@pytest.mark.parametrize("round_", [1, 2])
def test_clean(round_, pulsar_client, pulsar_admin):
    assert pulsar_admin.topics.list("public/default") == []
    pulsar_client.create_producer("same").send(b"x")

@pytest.mark.parametrize("round_", [1, 2])
def test_same_broker(round_, pulsar_module_broker, pulsar_session_broker, request):
    urls = request.config.stash.setdefault(KEY, [])
    urls.append((pulsar_module_broker.service_url, pulsar_session_broker.service_url))
    assert len(set(urls)) == 1

def test_file(pulsar_file_broker, tmp_path):
    assert (tmp_path / "pulsar").is_dir()
    assert not pulsar_file_broker.settings.memory

KEY = pytest.StashKey()
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip


def test_fixtures_come_with_the_package(tmp_path):
    (tmp_path / "test_mine.py").write_text(MODULE)
    ended = run_pytest(tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "6 passed" in ended.stdout


def test_fixtures_are_documented(tmp_path):
    (tmp_path / "test_mine.py").write_text(MODULE)
    shown = run_pytest(tmp_path, "--fixtures").stdout
    for name in (
        "pulsar_broker",
        "pulsar_module_broker",
        "pulsar_session_broker",
        "pulsar_file_broker",
        "pulsar_topic",
        "pulsar_client",
        "pulsar_admin",
        "pulsar_settings",
    ):
        assert name in shown


def test_loading_the_plugin_costs_nothing():
    program = (
        "import sys; import pytest; before = set(sys.modules); import geminga.testing.plugin; "
        "print([m for m in set(sys.modules) - before if m.split('.')[0] not in ('geminga', 'uuid')])"
    )
    ended = run_python(program)
    loaded = ended.stdout
    for heavy in ("asyncio", "aiohttp", "uvloop", "google.protobuf", "pyarrow", "numpy"):
        assert f"'{heavy}'" not in loaded
