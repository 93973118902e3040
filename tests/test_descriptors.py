"""Programs that were started without standard streams use brokers and clients as others do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import geminga

PROGRAM = """
import os, pathlib, sys
sys.path.insert(0, {source!r})
import geminga
with geminga.embedded("store") as broker, broker.client() as client:
    consumer = client.subscribe("t", "s")
    client.create_producer("t").send(b"arrived")
    said = consumer.receive(60_000).data()
    for descriptor in range(3):
        os.write(descriptor, b"what no peer is to get")
pathlib.Path("said").write_bytes(said)
"""


@pytest.mark.skipif(os.name != "posix", reason="of the shell")
def test_a_program_without_standard_streams_is_not_ended_by_its_event_loop(tmp_path):
    source = str(Path(geminga.__file__).parents[1])
    given = [sys.executable, "-P", "-c", PROGRAM.format(source=source)]
    shell = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    assert subprocess.run([*shell, *given], cwd=tmp_path, timeout=240, check=False).returncode == 0
    assert (tmp_path / "said").read_bytes() == b"arrived"
