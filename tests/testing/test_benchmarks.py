"""Programs and figures of the benchmarks that compare the client with others."""

import pytest

import geminga
from benchmarks import brokers, everyday, figures, soak
from benchmarks.brokers import RunningBroker
from benchmarks.everyday_programs import PROGRAMS, Run
from benchmarks.latency import Latencies
from geminga.testing.apache_pulsar import ApachePulsar
from geminga.testing.processes import Process


@pytest.mark.parametrize(
    "name", ["receive-keyed", "json-receive", "send-async-keyed", "nack", "reader-has-next"]
)
def test_everyday_program_runs_and_reports_its_messages(name, tmp_path):
    program, count = PROGRAMS[name], 100
    with geminga.embedded() as broker:
        running = RunningBroker("Geminga", broker.service_url, "", 0, 0.0)
        topic = everyday.Topics(running, tmp_path).for_program(program, count)
        run = Run(geminga, broker.service_url, "", topic, count, str(tmp_path))
        program.run(run)
    assert run.found["messages"] >= count - count // 10
    assert run.found["seconds"] > 0


def test_apache_pulsar_is_measured_by_the_id_of_its_process(monkeypatch, tmp_path):
    process = Process.start("apache", tmp_path, ["sleep", "60"])
    started = ApachePulsar(home=tmp_path, folder=tmp_path, port=1, web_port=2, bookie_port=3, process=process)
    with started:
        monkeypatch.setattr(ApachePulsar, "start", lambda *arguments, **settings: started)
        with brokers.apache(tmp_path) as running:
            assert running.pid == process.process.pid


def row(name, who, seconds):
    return {
        "name": name,
        "work": name,
        "who": who,
        "runs": [{"messages": 100, "seconds": seconds, "cpu": 1.0}],
    }


def test_table_lists_programs_in_which_geminga_is_behind_first():
    ours, theirs = figures.OURS, figures.PULSAR_CLIENT
    values = {
        "machine": {"cores": 2, "processor": "P", "python": "3.11", "at": "2026-01-01"},
        "load": [0.1, 0.2], "quick": False, "failed": [],
        "rows": [row("ahead", ours, 1.0), row("ahead", theirs, 2.0), row("behind", theirs, 1.0),
                 row("behind", ours, 4.0), row("alone", ours, 1.0)],
    }  # fmt: skip
    table = figures.everyday(values, "embedded")
    assert table.index("| behind | 100 | 25 | **0.25** |") < table.index("| ahead | 50 | 100 | 2.00 |")
    assert table.index("| ahead |") < table.index("| alone |")


def test_latency_of_messages_behind_a_pause_includes_their_wait():
    latencies = Latencies()
    for millisecond in range(100):
        latencies.expect(millisecond / 1000, 1)
    latencies.came(0.1, 100)
    found = latencies.percentiles(0.0)
    assert found["p50"] == pytest.approx(50)
    assert found["p99"] == pytest.approx(99)


def test_soak_counts_missing_and_reordered_messages_and_those_that_come_again():
    ledger = soak.Ledger()
    for number in (1, 2, 3):
        ledger.receipt(7, number, 0.0, geminga.Result.Ok)
    assert ledger.missing() == 3
    payloads = {number: soak.HEAD.pack(number, 0.0, 7) for number in (1, 2, 3)}
    assert ledger.deliver(payloads[1]) == (7, 1)
    ledger.deliver(payloads[1])
    assert (ledger.again, ledger.missing()) == (0, 2)
    ledger.confirmed[7] = 1
    ledger.deliver(payloads[1])
    ledger.deliver(payloads[3])
    assert (ledger.again, ledger.gaps) == (1, 1)
