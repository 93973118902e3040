"""Functions in processes that are killed at random moments: nothing is lost, and with deduplication or
transactions nothing is there twice. A process that dies is started again."""

import contextlib
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from waiting import eventually, start_thread

import geminga
from geminga.functions import FunctionSettings
from geminga.functions.processes import supervise

ROOT = Path(__file__).parents[2]
KILLS = 6
BEHIND_MAX = 4000


def _instance(settings: FunctionSettings) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "geminga.functions.instance"], stdin=subprocess.PIPE, cwd=ROOT
    )
    process.stdin.write(settings.to_json().encode() + b"\n")
    process.stdin.flush()
    return process


@pytest.mark.rotating(1)
@pytest.mark.parametrize(
    ("guarantee", "function", "each"),
    [
        ("ATLEAST_ONCE", "shout", 1),
        ("EFFECTIVELY_ONCE", "shout", 1),
        ("EFFECTIVELY_ONCE", "two_of_each", 2),
        ("EFFECTIVELY_ONCE", "slowly", 1),
        ("TRANSACTIONAL", "two_of_each", 2),
        ("TRANSACTIONAL", "slowly", 1),
    ],
)
def test_killed_processes_keep_their_guarantee(
    guarantee, function, each, pulsar_broker, pulsar_client, pulsar_topic
):
    chance = random.Random(f"{guarantee}{function}")
    settings = FunctionSettings(
        function=f"tests.functions.relayed:{function}", inputs=(pulsar_topic,), output=pulsar_topic + "-out",
        guarantee=guarantee, service_url=pulsar_broker.service_url, name="killed-" + pulsar_topic[-10:],
        receiver_queue_size=500, transaction_messages=300, transaction_timeout_ms=5000,
    )  # fmt: skip
    results = pulsar_client.subscribe(settings.output, "results", receiver_queue_size=10_000)
    producer = pulsar_client.create_producer(pulsar_topic, batching_enabled=True, batching_max_messages=37)
    produced = 0
    done = threading.Event()
    seen: Counter[str] = Counter()

    def produce() -> None:
        nonlocal produced
        while not done.is_set():
            if produced * each > len(seen) + BEHIND_MAX:  # a slow machine is not given ever more
                time.sleep(0.01)
                continue
            for _ in range(100):
                producer.send_async(str(produced).encode(), lambda *_: None, partition_key=f"k{produced % 5}")
                produced += 1
            producer.flush()
            time.sleep(0.01)

    thread = start_thread(produce)

    def take(wanted: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while len(seen) < wanted and time.monotonic() < until:
            try:
                message = results.receive(100)
            except geminga.Timeout:
                continue
            results.acknowledge(message)
            seen[message.data().decode()] += 1

    for _ in range(KILLS):
        process = _instance(settings)
        take(len(seen) + 1, 60)  # it works
        take(len(seen) + chance.randrange(1, 1500), chance.random())
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdin.close()
    done.set()
    thread.join()
    process = _instance(settings)
    take(produced * each, 120)
    take(produced * each + 1, 0.5)
    process.stdin.close()  # as if the parent process had died
    assert process.wait(30) == 0
    suffixes = {"shout": ["!"], "two_of_each": ["a", "b"], "slowly": [""]}[function]
    expected = {f"{n}{suffix}" for n in range(produced) for suffix in suffixes}
    assert set(seen) == expected
    if guarantee != "ATLEAST_ONCE":
        assert max(seen.values()) == 1


def test_a_process_that_dies_is_started_again(pulsar_broker, pulsar_client, pulsar_topic):
    settings = FunctionSettings(
        function="tests.functions.relayed:shout", inputs=(pulsar_topic,), output=pulsar_topic + "-out",
        service_url=pulsar_broker.service_url, parallelism=2,
    )  # fmt: skip
    results = pulsar_client.subscribe(settings.output, "results")
    producer = pulsar_client.create_producer(pulsar_topic)
    said: list[str] = []
    stop = threading.Event()
    thread = start_thread(supervise, settings, said.append, stop)
    try:
        for n in range(20):
            producer.send(str(n).encode())
        for _ in range(20):
            results.acknowledge(results.receive(30_000))
        victims = _children()
        assert len(victims) == 2
        os.kill(victims[0], signal.SIGKILL)
        for n in range(20):
            producer.send(str(n).encode())
        for _ in range(20):
            results.acknowledge(results.receive(30_000))
        eventually(lambda: said and len(_children()) >= 2)
        assert len(said) == 1
        assert "signal SIGKILL" in said[0]
        assert "starts again in 0.2 s" in said[0]
        assert len(_children()) == 2
    finally:
        stop.set()
        thread.join(60)
    assert not _children()


def test_the_second_signal_ends_all_processes_at_once(pulsar_broker, pulsar_client, pulsar_topic):
    psutil = pytest.importorskip("psutil")
    settings = FunctionSettings(
        function="tests.functions.relayed:hangs", inputs=(pulsar_topic,), parallelism=2,
        service_url=pulsar_broker.service_url, drain_seconds=600,
    )  # fmt: skip
    program = (
        "import sys\nfrom geminga.functions import FunctionSettings\n"
        "from geminga.functions.processes import supervise\n"
        "supervise(FunctionSettings.from_json(sys.stdin.readline()))"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, cwd=ROOT,
    )  # fmt: skip
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(settings.to_json().encode() + b"\n")
    parent.stdin.flush()
    producer = pulsar_client.create_producer(pulsar_topic)
    for n in range(20):
        producer.send(str(n).encode())
    assert parent.stdout.readline() == b"hangs\n"
    instances = psutil.Process(parent.pid).children()
    assert len(instances) == 2
    parent.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        parent.wait(1)  # the instances are given their time
    parent.send_signal(signal.SIGINT)
    assert parent.wait(30) == 128 + signal.SIGINT
    assert psutil.wait_procs(instances, 30)[1] == []


def test_a_process_that_cannot_start_is_not_restarted(pulsar_broker, capfd):
    settings = FunctionSettings(
        function="tests.functions.relayed:nothing", inputs=("a",), parallelism=2,
        service_url=pulsar_broker.service_url,
    )  # fmt: skip
    said: list[str] = []
    assert supervise(settings, said.append, threading.Event()) == 2
    assert "cannot run" in said[0]
    assert "has no 'nothing'" in capfd.readouterr().err


def test_a_closed_standard_error_does_not_end_the_supervision(pulsar_broker, monkeypatch):
    settings = FunctionSettings(
        function="tests.functions.relayed:nothing", inputs=("a",), service_url=pulsar_broker.service_url
    )

    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr(sys, "stderr", os.fdopen(write, "w", buffering=1, closefd=False))
    monkeypatch.setattr(logging.getLogger("geminga"), "propagate", False)
    assert supervise(settings, stop=threading.Event()) == 2  # the line about it cannot be written
    monkeypatch.undo()
    os.close(write)


def _children() -> list[int]:
    psutil = pytest.importorskip("psutil")
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # one that has just ended has no command line any more
            if "geminga.functions.instance" in " ".join(child.cmdline()):
                found.append(child.pid)
    return found
