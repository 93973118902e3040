"""Real processes that open, use and exit, with and without `close`, and with signals at random moments.

None hangs, none leaves a connection or a word on stderr, and what it was told is receipted is there.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import geminga

PROGRAM = Path(__file__).parent / "exiting.py"
SECONDS_MAX = 40
ENDS = {0, 130, -signal.SIGTERM}
"""By itself, by Ctrl-C, by a SIGTERM that nobody handles."""


@pytest.mark.timeout(600)
@pytest.mark.simulation(24, 8)
def test_programs_end_whatever_happens(
    pulsar_broker: Any, pulsar_client: Any, pulsar_topic: str, tmp_path: Path, seeds: range
) -> None:
    ends: Counter[int] = Counter()
    for seed in seeds:
        topic, receipts = f"{pulsar_topic}-{seed}", tmp_path / f"{seed}"
        receipts.touch()
        pulsar_client.subscribe(topic, "keeps").close()
        program = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(seed), pulsar_broker.service_url, topic, str(receipts)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            said, _ = program.communicate(timeout=SECONDS_MAX)
        except subprocess.TimeoutExpired:
            program.kill()
            said, _ = program.communicate()
            pytest.fail(f"--seed {seed}: hangs; {said}")
        assert not said, f"--seed {seed}: {said}"
        assert program.returncode in ENDS, f"--seed {seed}: ended with {program.returncode}"
        ends[program.returncode] += 1
        with pulsar_client.create_reader(topic, geminga.MessageId.earliest) as reader:
            found = set()
            while reader.has_message_available():
                found.add(int(reader.read_next(5_000).data()))
        lost = set(map(int, receipts.read_text().split())) - found
        assert not lost, f"--seed {seed}: {len(lost)} receipted messages are lost"
    deadline = time.monotonic() + 10
    while len(pulsar_broker._server.connections) > 1:
        assert time.monotonic() < deadline, "connections of programs that have ended"
        time.sleep(0.01)


@pytest.mark.parametrize("action", ["raise KeyboardInterrupt", "raise SystemExit(0)"])
def test_who_interrupts_the_end_has_it_at_once(broker: Any, action: str) -> None:
    """The interpreter waits a little for what is pending; a signal's handler that raises then is no error."""
    from geminga.wire.proto import pulsar_wire_pb2 as pb

    broker.answers[pb.BaseCommand.SEND] = lambda peer, frame: None
    lines = [
        "import atexit, signal, os, threading, time, geminga",
        f"def handler(*_): {action}",
        "signal.signal(signal.SIGTERM, handler)",
        f"client = geminga.Client({broker.url!r})",
        "producer = client.create_producer('t')",
        "producer.send_async(b'never receipted', None)",
        "def fire():",
        "    time.sleep(0.3)",
        "    os.kill(os.getpid(), signal.SIGTERM)",
        # The last to be registered is the first to run: this is where the end begins.
        "atexit.register(threading.Thread(target=fire, daemon=True).start)",
    ]
    started = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=SECONDS_MAX
    )
    assert (started.stdout, started.stderr, started.returncode) == ("", "", 0)
