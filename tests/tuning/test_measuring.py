"""Measurements from outside: sockets, processes, and a proxy that slows one partition down."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

import geminga
from geminga.errors import ProducerQueueIsFull
from geminga.producer.settings import ProducerSettings
from geminga.tuning.measuring import host, load
from geminga.tuning.measuring.conversation import ChildFailedError, MeasuredProcess
from geminga.tuning.measuring.load import Pace, Receipts, Sender, library_arguments, memory_of_process
from geminga.tuning.measuring.outcome import Latency, RunOutcome, Spread
from geminga.tuning.measuring.payloads import STAMP_OFFSET, STAMP_SIZE, of_samples, structured_json
from geminga.tuning.measuring.run import producers_by_process
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.stock import JAVA


def test_the_listening_process_is_found():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert host.listening_pid(port) == os.getpid()
    assert host.listening_pid(port) is None


def test_local_addresses_are_recognised():
    assert host.is_local("localhost")
    assert host.is_local("127.0.0.1")
    assert not host.is_local("192.0.2.1")
    assert not host.is_local("no.such.host.invalid")
    assert host.host_and_port("pulsar://one:7000,two:7001", 6650) == ("one", 7000)
    assert host.host_and_port("127.0.0.1:33997", 0) == ("127.0.0.1", 33997)


def test_cpu_is_counted_to_the_microsecond():
    before = host.cpu_seconds(os.getpid())
    sum(range(200_000))
    assert 0 < host.cpu_seconds(os.getpid()) - before < 1
    with pytest.raises(ProcessLookupError):
        host.cpu_seconds(2**22 - 1)


def test_a_failing_child_process_reports_its_error():
    with (
        MeasuredProcess("geminga.tuning.measuring.load", {"library": "no_such_library"}) as child,
        pytest.raises(ChildFailedError, match="the load process failed: ModuleNotFoundError"),
    ):
        child.wait("ready", 60)
    with (
        MeasuredProcess("geminga.tuning.measuring.no_such_module", {}) as child,
        pytest.raises(ChildFailedError, match="ended before it reported 'ready'"),
    ):
        child.wait("ready", 60)


def test_an_interrupted_child_process_prints_nothing():
    program = (
        "from geminga.tuning.measuring import conversation as c; "
        "c.run(lambda _: (c.report('ready'), c.await_order('go')))"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"{}\n")
        child.stdin.flush()
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=60) == (b"", b"")


class Clock:
    """The nanoseconds by which loads are sent and stamped; who sleeps moves them on."""

    def __init__(self) -> None:
        self.ns = 1_000_000_000_000_000_000  # the stamps have nineteen digits

    def pass_time(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(load, "stamp_ns", lambda: clock.ns)
    # In this module only: other threads of the process (py4j's after Spark tests) sleep as before.
    own = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: clock.pass_time(seconds)})
    monkeypatch.setattr(load, "time", own)
    return clock


def test_messages_missed_in_the_warm_up_are_not_sent_later(clock):
    """Readers select the measured messages by due time: 64 of 4,030 once seemed lost."""
    start_ns, since_ns = clock.ns, clock.ns + 300_000_000
    sent: list[bytes] = []

    def send(payload: bytes, back: Callable[[object, object], None]) -> None:
        sent.append(payload)
        back("ok", None)
        # A stall near the end of the warm-up, longer than what is caught up with.
        clock.ns += 200_000_000 if len(sent) == 1000 else 100_000

    sender = Sender(structured_json(200, kind="logs", variation=0.0), Pace(4000), [])
    warm, measured = Receipts("ok"), Receipts("ok")
    sender.run([send], warm, start_ns, 0.3)
    warm_sent = sender.sent
    assert warm_sent == warm.received < 1200
    sender.run([send], measured, start_ns, 1.3, 0.3)
    stamps = [int(p[STAMP_OFFSET : STAMP_OFFSET + STAMP_SIZE]) for p in sent[warm_sent:]]
    assert len(stamps) == measured.received == sender.sent - warm_sent == 4000
    assert min(stamps) >= since_ns


def test_producers_of_one_process_take_turns(clock):
    sent: list[str] = []

    def sends_of(name: str) -> Callable[[bytes, Callable[[object, object], None]], None]:
        def send(_payload: bytes, back: Callable[[object, object], None]) -> None:
            sent.append(name)
            back("ok", None)

        return send

    sender, receipts = Sender(structured_json(200, kind="logs", variation=0.0), Pace(400), []), Receipts("ok")
    sender.run([sends_of(name) for name in "abc"], receipts, clock.ns, 1.0)
    assert sent == [*("abc" * 133), "a"]
    assert receipts.received == 400


def test_each_producer_sends_all_samples(clock):
    """Else, with two of each, batches were of one and compressed better than the user's messages do."""
    sent: list[list[bytes]] = [[], []]

    def sends_of(messages: list[bytes]) -> Callable[[bytes, Callable[[object, object], None]], None]:
        def send(payload: bytes, back: Callable[[object, object], None]) -> None:
            messages.append(payload[STAMP_OFFSET + STAMP_SIZE :])
            back("ok", None)

        return send

    sender = Sender(of_samples([b"1", b"2"]), Pace(8), [])
    sender.run([sends_of(messages) for messages in sent], Receipts("ok"), clock.ns, 1.0)
    assert sent == [[b',"m":1}', b',"m":2}'] * 2] * 2


@pytest.mark.parametrize(
    ("producers", "per_client", "limit", "memory"),
    [
        (1, 1, 64 << 20, 64 << 20), (7, 1, 64 << 20, 448 << 20), (7, 4, 64 << 20, 128 << 20),
        (4, 4, 64 << 20, 64 << 20), (2, 50, 64 << 20, 64 << 20), (100, 1, 0, 0), (100, 1, 1 << 40, 1 << 40),
    ],
)  # fmt: skip
def test_a_process_has_the_memory_limits_of_its_producers_clients(producers, per_client, limit, memory):
    settings = PublishSettings(producer=ProducerSettings(), memory_limit_bytes=limit)
    assert memory_of_process(settings, producers, per_client) == memory


@pytest.mark.parametrize(
    ("producers", "cores", "shares"),
    [(1, 8, [1]), (4, 2, [2, 2]), (5, 2, [3, 2]), (100, 64, [13] * 4 + [12] * 4), (3, 1, [3])],
)
def test_producers_share_as_many_processes_as_there_are_cores(producers, cores, shares):
    assert producers_by_process(producers, cores) == shares


def test_a_latency_counts_for_each_message_of_its_chunk():
    """In a burst a chunk holds many: percentiles of chunks were those of the quiet time."""
    receipts = Receipts("ok")
    receipts.timed(load.stamp_ns() - 5_000_000_000, 3, "ok", None)
    receipts.timed(load.stamp_ns(), 1, "ok", None)
    receipts.timed(load.stamp_ns(), 7, "failed", None)
    slow = [latency for latency in receipts.all_latencies_ns().tolist() if latency >= 5_000_000_000]
    assert (len(slow), len(receipts.all_latencies_ns())) == (3, 4)
    assert Receipts("ok").all_latencies_ns().tolist() == []


def test_a_message_is_sent_as_soon_as_it_is_due(clock):
    """Not when the next one is: at 500 a second that made every latency 2 ms longer."""
    receipts = Receipts("ok")
    sender = Sender(structured_json(200, kind="logs", variation=0.0), Pace(500), [])
    sender.run([lambda _payload, back: back("ok", None)], receipts, clock.ns, 1.0)
    assert receipts.received == 500
    assert max(receipts.all_latencies_ns().tolist()) <= 1e9 * load.TICK_SECONDS


def test_the_latency_of_a_chunk_is_that_of_its_middle(clock, monkeypatch):
    pass_time = clock.pass_time
    monkeypatch.setattr(clock, "pass_time", lambda _: pass_time(0.001))  # 21 messages at a time
    receipts = Receipts("ok")
    sender = Sender(structured_json(200, kind="logs", variation=0.0), Pace(21_000), [])
    sender.run([lambda _payload, back: back("ok", None)], receipts, clock.ns, 1.0)
    latencies = receipts.all_latencies_ns()
    assert len(latencies) == receipts.received == 21_000
    assert latencies.mean() == pytest.approx(0.5e6, rel=0.1)


def test_a_refused_send_ends_the_load_and_earlier_messages_count():
    def send(payload: bytes, back: Callable[[object, object], None]) -> None:
        if receipts.received == 100:
            raise ProducerQueueIsFull("full")
        back("ok", None)

    receipts = Receipts("ok")
    sender = Sender(structured_json(200, kind="logs", variation=0.0), Pace(1e6), [])
    with pytest.raises(ProducerQueueIsFull):
        sender.run([send], receipts, load.stamp_ns(), 1.0)
    assert sender.sent == 100


def test_pulsar_client_gets_only_settings_that_it_has():
    pulsar = pytest.importorskip("pulsar")
    client, producer = library_arguments(pulsar, JAVA.settings)
    assert client == {}
    assert producer["batching_max_publish_delay_ms"] == 1
    assert producer["compression_type"] == pulsar.CompressionType.NONE
    assert "step_over_blocked_partitions" not in producer
    ours, mine = library_arguments(geminga, JAVA.settings)
    assert ours == {"memory_limit_bytes": 64 << 20}
    assert mine["batching_partition_switch_frequency"] == 10


def test_percentiles_and_rates_of_runs_are_computed():
    latency = Latency.of_nanoseconds([1_000_000 * n for n in range(1, 101)])
    assert latency.p50_ms == pytest.approx(50.5)
    assert latency.p99_ms == pytest.approx(99.01)
    assert Latency.of_nanoseconds([]).p99_ms is None
    assert Spread.of([3.0, None, 1.0, 2.0]) == Spread(median=2.0, low=1.0, high=3.0, count=3)
    assert Spread.of([None]) is None
    outcome = RunOutcome(
        subject="x", library="geminga", settings={}, seconds=4.0, offered=300, receipts=300,
        broker_cpu_seconds=1.0, broker_idle_per_second=0.05, window_seconds=2.0,
        receipts_in_window=200, wire_published_bytes=10, wire_delivered_bytes=5,
    )  # fmt: skip
    assert outcome.rate == 100.0  # receipts after the last due time do not count
    assert outcome.broker_cpu_above_idle == pytest.approx(0.8)
    assert outcome.wire_bytes == 15
