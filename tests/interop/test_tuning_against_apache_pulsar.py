"""The advisor against a real Apache Pulsar: the saving shows."""

import threading
from pathlib import Path

import pytest
from waiting import start_thread

import geminga
from geminga.client.admin import admin
from geminga.testing.apache_pulsar import ApachePulsar
from geminga.tuning.advise import advise
from geminga.tuning.expectation import expected
from geminga.tuning.measuring.outcome import RunOutcome
from geminga.tuning.observe import observe
from geminga.tuning.proof_report import picture, table
from geminga.tuning.prove import ProofPlan, Prover
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.sample import standard_sample
from geminga.tuning.stock import JAVA
from geminga.tuning.traffic import TrafficProfile

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(600)]

PROFILE = TrafficProfile(rate_messages_per_second=10_000, message_bytes=200, partitions=20)
SECONDS = 5.0
"""Duration of each measurement."""


def proof_of(broker: ApachePulsar, folder: Path, **chosen: object) -> dict[str, RunOutcome]:
    values = {
        "service_url": broker.service_url, "admin_url": broker.admin_url, "profile": PROFILE,
        "repeats": 1, "seconds": SECONDS, "warm_seconds": 1.0, "idle_seconds": 1.0,
        "jvm_warm_seconds": 8.0, **chosen,
    }  # fmt: skip
    proof = Prover(ProofPlan(**values), folder, print).prove()
    assert proof.stopped == ""
    assert proof.broker == "Apache Pulsar 4.0.4"
    print(table(proof))
    picture(proof, folder / "proof.png")
    return {name: runs[0] for name, runs in proof.by_subject().items()}


def _apart(outcome: RunOutcome) -> float:
    """Return the tolerance of a batch fill: messages are counted by receipts, entries when they are stored,
    so that the messages published during one receipt's latency are missing from one count."""
    assert outcome.receipt.p99_ms
    return 0.05 + outcome.receipt.p99_ms / 1000 / SECONDS


def test_the_formula_saves_the_promised_share(apache_pulsar, tmp_path):
    runs = proof_of(
        apache_pulsar, tmp_path,
        only=("Geminga, stock, LZ4", "Geminga, formula, ZSTD", "pulsar-client, stock"),
    )  # fmt: skip
    stock, tuned = runs["Geminga, stock, LZ4"], runs["Geminga, formula, ZSTD"]
    for outcome in runs.values():
        assert outcome.failure == ""
        assert outcome.batch_fill > 1 - _apart(outcome)
        assert outcome.wire_bytes
        assert outcome.disk_bytes
    assert tuned.receipts == tuned.sent == tuned.delivered
    assert tuned.offered == 50_000
    # All messages that were due, less those of the time for which a busy machine was behind its schedule.
    assert tuned.sent >= 0.98 * tuned.offered - 10_000 * tuned.behind_seconds_max
    # Late stock producers of a busy machine fill their batches, too: shares are of what they should send.
    usual = expected("", PROFILE, PublishSettings.from_dict(stock.settings), sample=standard_sample(200))
    assert tuned.entries < min(stock.entries, usual.entries_per_second * SECONDS / 10)
    # The size of the difference is the proof's subject: five seconds have one garbage collection, or none.
    assert tuned.broker_cpu_above_idle < stock.broker_cpu_above_idle
    assert (tuned.wire_bytes or 0) < (stock.wire_bytes or 0)
    assert (tuned.wire_published_bytes or 0) < 0.6 * usual.stored_bytes_per_second * SECONDS
    single = runs["pulsar-client, stock"]
    assert single.batch_fill == pytest.approx(1.0, abs=_apart(single))
    # The measured batch fill is the expected one. On a busy machine a late sender puts more messages into a
    # batch, up to the batch's limit.
    foreseen = expected("", PROFILE, PublishSettings.from_dict(tuned.settings), sample=standard_sample(200))
    limit = PublishSettings.from_dict(tuned.settings).producer.batching_max_messages
    least = (1 - max(0.1, _apart(tuned))) * foreseen.batch_fill
    assert least < tuned.batch_fill < max(1.1 * foreseen.batch_fill, 1.02 * limit)
    assert (tuned.wire_published_bytes or 0) / tuned.sent == pytest.approx(
        foreseen.stored_bytes_per_second / PROFILE.rate_messages_per_second, rel=0.15
    )


def test_a_live_topic_is_observed_as_it_is(apache_pulsar):
    admin(apache_pulsar.admin_url, "PUT", "persistent/public/default/watched/partitions", 4)
    ending = threading.Event()
    with geminga.Client(apache_pulsar.service_url) as client:
        producer = client.create_producer(
            "watched", batching_enabled=True, batching_max_publish_delay_ms=1,
            compression_type=geminga.CompressionType.ZSTD, block_if_queue_full=True,
        )  # fmt: skip

        def publish() -> None:
            number = 0
            while not ending.wait(0.001):
                for _ in range(5):
                    producer.send_async(b'{"number":%d,"what":"reading of a sensor"}' % number, None)
                    number += 1

        thread = start_thread(publish)
        try:
            seen = observe(apache_pulsar.service_url, apache_pulsar.admin_url, "watched", seconds=3)
        finally:
            ending.set()
            thread.join()
    assert (seen.profile.partitions, seen.producers) == (4, 1)
    assert seen.compression is geminga.CompressionType.ZSTD
    assert 2 < seen.batch_fill < 60
    assert seen.sample is not None
    found = advise(seen.profile, sample=seen.sample, stock=JAVA, observed=seen)
    assert found.after.entries_per_second < found.before.entries_per_second / 3
