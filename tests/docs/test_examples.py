"""The examples of the pages run: each page's blocks, one after the other, in one namespace.

Every page with ```` ```python ```` or ```` ```bash ```` blocks is run; what needs Spark or minutes is named
in `ELSEWHERE`, with the tests that hold it. On a page with ```` ```bash ```` all blocks together are one
script. Nothing is defined beforehand; only the address of a standalone broker is replaced.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import geminga
from geminga.testing.apache_pulsar import free_ports

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ELSEWHERE = {
    **{
        f"integrations/{page.name}": "tests/docs/test_integrations.py"
        for page in (DOCS / "integrations").glob("*.md")
    },
    "coming-from-kafka.md": "tests/spark/test_page.py",
    "offloading.md": "tests/spark/test_page.py",
    "pipelines.md": "tests/spark/pipelines",
    "spark.md": "tests/spark/test_page.py",
    "transactions.md": "tests/interop/test_transactions.py",
}
"""Pages whose examples are not run here, and what holds them."""
FILES = re.compile(r"--apply (\w+\.toml)\n.*?^```toml\n(.*?)^```", re.M | re.S)
"""A file that a page shows, with the command that would write it."""
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.M | re.S)


def blocks_of(page: Path) -> list[re.Match[str]]:
    return list(BLOCK.finditer(page.read_text()))


PAGES = sorted(
    ["../README.md", *(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if blocks_of(page))]
)
SCRIPTS = [page for page in PAGES if any(block[1] == "bash" for block in blocks_of(DOCS / page))]


def test_pages_that_are_left_out_are_there_and_have_their_tests():
    assert set(ELSEWHERE) <= set(PAGES)
    for page, where in ELSEWHERE.items():
        for path in re.findall(r"(?:tests|tools)/[\w/.]+", where):
            assert (ROOT / path.rstrip(".")).exists(), f"{page}: {path} is not there"


@pytest.mark.parametrize("page", [page for page in PAGES if page not in {*ELSEWHERE, *SCRIPTS}])
def test_examples_run(page, pulsar_broker, tmp_path, monkeypatch, capsys):
    example = ModuleType("example")  # as the classes of a program have one
    names = vars(example)
    monkeypatch.setitem(sys.modules, "example", example)
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.findall((DOCS / page).read_text()):
        (tmp_path / name).write_text(text)
    for block in blocks_of(DOCS / page):
        lines_before = block.string.count("\n", 0, block.start(2))
        code = block[2].replace("pulsar://localhost:6650", pulsar_broker.service_url)
        exec(compile("\n" * lines_before + code, str(DOCS / page), "exec"), names)
    for name in ("client", "broker"):
        if isinstance(names.get(name), geminga.Client | geminga.EmbeddedBroker):
            names[name].close()
    if page == "../README.md":
        assert capsys.readouterr().out.startswith("hello as (")


NEEDS = {
    "import pyarrow": "columnar", "send_table(": "columnar", "receive_table(": "columnar",
    ".tables(": "columnar", "read_pandas": "pandas", "AvroSchema": "avro", "opentelemetry": "otel",
    "telemetry import": "telemetry", "CryptoKeyReader": "encryption", "load_settings": "tune",
}  # fmt: skip
"""Text in a program, and the extra or package that it needs."""


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ELSEWHERE])
def test_a_page_that_needs_an_extra_starts_with_it(page):
    text = (DOCS / page).read_text()
    first = " ".join(re.findall(r"pip install [^`\n]+", text[:1500]))
    programs = "".join(block[2] for block in blocks_of(DOCS / page))
    missing = {extra for word, extra in NEEDS.items() if word in programs and extra not in first}
    assert missing <= {"telemetry"} if "otel" in first else not missing


@pytest.mark.parametrize("command", ["pipeline", "tune", "token", "demo"])
def test_a_page_with_a_command_of_an_extra_starts_with_the_extra(command):
    extra = {"pipeline": "pipelines", "token": "security"}.get(command, command)
    pages = [*DOCS.glob("*.md"), *(DOCS / "how-to").glob("*.md"), *(DOCS / "tutorials").glob("*.md")]
    used = [page for page in pages if re.search(rf"^ *geminga {command}\b", page.read_text(), re.M)]
    assert used
    for page in used:
        first = " ".join(re.findall(r"pip install [^`\n]+", page.read_text()[:1500]))
        assert re.search(rf"[\[,]{extra}[],]", first), page


def script_of(page: Path) -> str:
    """Return the blocks of a page as one shell script, with free ports instead of the page's."""
    lines = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT"]
    for block in blocks_of(page):
        inner = block[2]
        lines.append(inner if block[1] == "bash" else f"python - <<'END'\n{inner}\nEND")
    script = "\n".join(lines)
    named = sorted(set(re.findall(r"\b1[68]\d{3}\b", script)))
    free = dict(zip(named, map(str, free_ports(len(named))), strict=True))
    return re.sub(r"\b1[68]\d{3}\b", lambda port: free[port[0]], script)


@pytest.mark.parametrize("page", [page for page in SCRIPTS if page not in ELSEWHERE])
def test_commands_run(page, tmp_path):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script_of(DOCS / page)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    said = (done.stdout + done.stderr).encode("latin-1", "replace")
    assert not [key for key in tmp_path.glob("*.key") if key.read_bytes() in said], "secrets are not shown"
