"""Real processes that open, use and exit, with and without `close`, and with signals at random moments.

None hangs, none leaves a connection or output on stderr, and every message with a receipt is stored.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import geminga

PROGRAM = Path(__file__).parent / "exiting.py"
SECONDS_MAX = 60
ENDS = {0, 130, -signal.SIGTERM}
"""Exit statuses: normal end, Ctrl-C, SIGTERM without a handler."""


STOPPED = "Event loop stopped before Future completed."
"""Error that `asyncio.run` raises instead of the KeyboardInterrupt when it is interrupted while it ends."""


class Programs:
    """Runs `PROGRAM`, a fork of a process that is ready for it: a start and an end in milliseconds."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", str(PROGRAM)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *arguments: str, said: Path) -> int | None:
        """Return the exit status, None if the program hung; its output is in the file ``said``."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        given = {"arguments": arguments, "said": str(said), "seconds_max": SECONDS_MAX}
        self._server.stdin.write(json.dumps(given) + "\n")
        self._server.stdin.flush()
        code: int | None = json.loads(self._server.stdout.readline())
        return code

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        assert self._server.wait(SECONDS_MAX) == 0


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    programs = Programs()
    yield programs
    programs.close()


def run_and_look(programs: Programs, broker: Any, client: Any, topic: str, seed: int, folder: Path) -> None:
    receipts, said = folder / "receipts", folder / "said"
    receipts.write_bytes(b"")
    client.subscribe(topic, "keeps").close()
    code = programs.run(str(seed), broker.service_url, topic, str(receipts), said=said)
    assert code is not None, f"--seed {seed}: hangs; {said.read_text()}"
    assert not said.read_text() or of_python_itself(said.read_text()), f"--seed {seed}: {said.read_text()}"
    assert code in ENDS or (code == 1 and STOPPED in said.read_text()), f"--seed {seed}: ended with {code}"
    with client.create_reader(topic, geminga.MessageId.earliest) as reader:
        found = set()
        while reader.has_message_available():
            found.add(int(reader.read_next(60_000).data()))
    lost = set(map(int, receipts.read_text().split())) - found
    assert not lost, f"--seed {seed}: {len(lost)} receipted messages are lost"


def of_python_itself(said: str) -> bool:
    """Return whether the output is the report of an interpreter interrupted during its own shutdown.

    A task keeps the KeyboardInterrupt that it raised, and `asyncio` reports exceptions not retrieved.
    """
    if said.count("Task exception was never retrieved") == 1 and "exception=KeyboardInterrupt()" in said:
        return said.count("Traceback (most recent call last)") == 1
    if STOPPED in said:
        return str(Path(geminga.__file__).parent) not in said
    words = (
        "KeyboardInterrupt", "SystemExit", "__del__", "Exception ignored in thread started by",
        "coroutine 'BaseEventLoop.",
    )  # fmt: skip
    if all("RuntimeWarning: " in line for line in said.splitlines()):
        return True  # a task that had just been made, and never ran
    interrupted = any(word in said for word in words)
    return interrupted and str(Path(geminga.__file__).parent) not in said


def nobody_is_left(broker: Any) -> None:
    """But the client that looks."""
    deadline = time.monotonic() + 60
    while len(broker._server.connections) > 1:
        assert time.monotonic() < deadline, "connections of programs that have ended"
        time.sleep(0.01)


@pytest.mark.timeout(600)
@pytest.mark.simulation(60, 20)
def test_programs_end_in_every_scenario(
    pulsar_broker: Any, pulsar_client: Any, pulsar_topic: str, tmp_path: Path, programs: Programs,
    seeds: range,
) -> None:  # fmt: skip
    for seed in seeds:
        run_and_look(programs, pulsar_broker, pulsar_client, f"{pulsar_topic}-{seed}", seed, tmp_path)
    nobody_is_left(pulsar_broker)


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_ten_thousand_programs_end_in_every_scenario(
    pulsar_broker: Any, pulsar_client: Any, pulsar_topic: str, tmp_path: Path, programs: Programs
) -> None:
    for seed in range(1_000, 11_000):
        run_and_look(programs, pulsar_broker, pulsar_client, f"{pulsar_topic}-{seed}", seed, tmp_path)
        if seed % 100 == 0:
            nobody_is_left(pulsar_broker)
    nobody_is_left(pulsar_broker)


@pytest.mark.simulation(4, 4)
def test_a_program_with_an_interpreter_of_its_own_ends_as_well(
    pulsar_broker: Any, pulsar_client: Any, pulsar_topic: str, tmp_path: Path, seeds: range
) -> None:
    """Start the program without a fork, whose inherited state could hide a fault."""
    for seed in seeds:
        topic, receipts = f"{pulsar_topic}-{seed}", tmp_path / "receipts"
        pulsar_client.subscribe(topic, "keeps").close()
        done = subprocess.run(
            [sys.executable, str(PROGRAM), str(seed), pulsar_broker.service_url, topic, str(receipts)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS_MAX,
        )  # fmt: skip
        said = done.stdout
        assert not said or of_python_itself(said), f"--seed {seed}: {said}"
        assert done.returncode in ENDS or (done.returncode == 1 and STOPPED in said), f"--seed {seed}"


@pytest.mark.parametrize("action", ["raise KeyboardInterrupt", "raise SystemExit(0)"])
def test_interrupting_the_end_ends_the_process_at_once(broker: Any, action: str) -> None:
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
