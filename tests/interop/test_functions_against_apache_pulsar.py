"""Functions with a real Apache Pulsar: a class written for pulsar-client's ``pulsar`` module, and kill -9 in
the middle with deduplication and with transactions."""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import geminga
from geminga.functions import FunctionRunner, FunctionSettings
from geminga.testing.apache_pulsar import ApachePulsar

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]


def test_a_function_written_for_pulsar_client_runs(apache_pulsar, topic, tmp_path):
    pytest.importorskip("pulsar")
    (tmp_path / "for_pulsar_client.py").write_text(
        "from pulsar import Function\n\n\n"
        "class Mark(Function):\n"
        "    def process(self, input, context):\n"
        "        context.incr_counter('seen', 1)\n"
        "        context.get_logger().info('marking')\n"
        "        context.publish(context.get_user_config_value('aside'), input, properties={'p': 'q'})\n"
        "        return input + '!' * context.get_counter('seen')\n"
    )
    where = topic("function-in")
    settings = FunctionSettings(
        function=f"{tmp_path}/for_pulsar_client.py:Mark", inputs=(where,), output=where + "-out",
        service_url=apache_pulsar.service_url, user_config={"aside": where + "-aside"},
        name=where.rpartition("/")[2],
    )  # fmt: skip
    with geminga.Client(apache_pulsar.service_url) as client:
        results = client.subscribe([where + "-out"], "s")
        aside = client.subscribe(where + "-aside", "s")
        producer = client.create_producer(where)
        for expected in (b"v!", b"v!!"):
            with FunctionRunner(settings):  # the second finds the state of the first
                producer.send(b"v")
                assert results.receive(60_000).data() == expected
                assert aside.receive(60_000).properties() == {"p": "q"}


@pytest.fixture(scope="module")
def with_transactions(pulsar_home, tmp_path_factory):
    with ApachePulsar.start(
        pulsar_home, tmp_path_factory.mktemp("functions"), timeout_seconds=180,
        transactionCoordinatorEnabled=True, acknowledgmentAtBatchIndexLevelEnabled=True,
    ) as found:  # fmt: skip
        yield found


@pytest.mark.parametrize(
    ("guarantee", "cluster"), [("EFFECTIVELY_ONCE", "apache_pulsar"), ("TRANSACTIONAL", "with_transactions")]
)
def test_a_killed_function_writes_each_result_once(request, topic, guarantee, cluster):
    apache_pulsar = request.getfixturevalue(cluster)
    where, count, chance = topic("function-killed"), 20_000, random.Random(3)
    settings = FunctionSettings(
        function="tests.functions.relayed:shout", inputs=(where,), output=where + "-out",
        service_url=apache_pulsar.service_url, guarantee=guarantee, name=where.rpartition("/")[2],
        receiver_queue_size=500, transaction_timeout_ms=5000,
    )  # fmt: skip
    seen: Counter[bytes] = Counter()
    with geminga.Client(apache_pulsar.service_url) as client:
        results = client.subscribe(where + "-out", "s", receiver_queue_size=10_000)
        producer = client.create_producer(
            where, batching_enabled=True, batching_max_messages=37, block_if_queue_full=True
        )
        for n in range(count):
            producer.send_async(b"%d" % n, lambda *_: None)
        producer.flush()

        def take(wanted: int, seconds: float) -> None:
            until = time.monotonic() + seconds
            while len(seen) < wanted and time.monotonic() < until:
                try:
                    message = results.receive(100)
                except geminga.Timeout:
                    continue
                results.acknowledge(message)
                seen[message.data()] += 1

        for run in range(5):
            process = subprocess.Popen(
                [sys.executable, "-m", "geminga.functions.instance"], stdin=subprocess.PIPE, cwd=ROOT
            )
            process.stdin.write(settings.to_json().encode() + b"\n")
            process.stdin.flush()
            if run < 4:
                take(len(seen) + 1, 60)
                take(len(seen) + chance.randrange(1, 2000), 1)
                process.send_signal(signal.SIGKILL)
            else:
                take(count, 240)
                take(count + 1, 1)
            process.stdin.close()
            process.wait(60)
    assert set(seen) == {b"%d!" % n for n in range(count)}
    assert max(seen.values()) == 1
