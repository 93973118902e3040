"""The commands of docs/security.md work, one after the other, as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

from geminga.testing.apache_pulsar import free_ports

PAGE = Path(__file__).parents[2] / "docs/security.md"


def test_the_page_works(tmp_path):
    lines = ["set -euo pipefail", "trap 'kill $(jobs -p); wait' EXIT"]
    for language, block in re.findall(r"^```(bash|python)\n(.*?)^```", PAGE.read_text(), re.M | re.S):
        if language == "python":
            imports = "import geminga\n"
            lines.append(f"python - <<'END'\n{imports}{block}client.close()\nEND")
        else:
            lines.append(block)
            if "18080" in block and "standalone" in block:
                lines.append("until curl -s localhost:18080/status.html; do sleep 0.1; done")
    assert len(lines) == 10
    script = "\n".join(lines)
    named = ("16650", "18080", "16651", "18443")
    free = dict(zip(named, map(str, free_ports(len(named))), strict=True))
    script = re.sub("|".join(named), lambda port: free[port[0]], script)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"shop":["produce","consume"]' in done.stdout
    secret = (tmp_path / "secret.key").read_bytes()
    assert secret not in (done.stdout + done.stderr).encode("latin-1", "replace")
