"""Transactions in the source: aborted messages are not copied, committed ones once and in order."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from waiting import eventually

import geminga
from geminga.testing.apache_pulsar import ApachePulsar
from tests.mirror.helpers import left, mirror, mirrored

pytestmark = [pytest.mark.interop, pytest.mark.long, pytest.mark.timeout(400)]
TOPIC = "persistent://public/default/paid"


class Transactions:
    """Java's client, which can do transactions, in a process of its own."""

    def __init__(self, home: Path, service_url: str) -> None:
        py4j = pytest.importorskip("py4j.java_gateway")
        pyspark = pytest.importorskip("pyspark")
        (jar,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
        java_home = os.environ.get("JAVA_HOME")
        port, token = py4j.launch_gateway(
            java_path=f"{java_home}/bin/java" if java_home else "java", classpath=f"{home}/lib/*",
            jarpath=str(jar), die_on_exit=True, enable_auth=True, javaopts=["-Xmx256m", "-Dlog4j2.level=OFF"],
        )  # fmt: skip
        self._gateway = py4j.JavaGateway(
            gateway_parameters=py4j.GatewayParameters(port=port, auth_token=token)
        )
        jvm = self._jvm = self._gateway.jvm
        builder = jvm.org.apache.pulsar.client.api.PulsarClient.builder().serviceUrl(service_url)
        self.client = builder.enableTransaction(True).build()
        wait = jvm.java.util.concurrent.TimeUnit.SECONDS
        self.producer = self.client.newProducer().topic(TOPIC).sendTimeout(0, wait).create()

    def begin(self) -> Any:
        minutes = self._jvm.java.util.concurrent.TimeUnit.MINUTES
        return self.client.newTransaction().withTransactionTimeout(10, minutes).build().get()

    def send(self, text: str, transaction: Any = None) -> None:
        message = self.producer.newMessage() if transaction is None else self.producer.newMessage(transaction)
        message.value(text.encode()).send()

    def close(self) -> None:
        self.client.close()
        self._gateway.shutdown()


@pytest.fixture
def source(pulsar_home, tmp_path):
    with ApachePulsar.start(pulsar_home, tmp_path / "pulsar", transactionCoordinatorEnabled=True) as found:
        yield found


def test_no_message_of_an_aborted_transaction_is_mirrored(pulsar_home, source):
    java = Transactions(pulsar_home, source.service_url)
    with geminga.embedded(cluster="home") as target:
        try:
            with geminga.Client(source.service_url) as client:
                client.subscribe(TOPIC, "s").close()
            java.send("plain-0")
            committed, aborted, left_open = java.begin(), java.begin(), java.begin()
            for number in range(3):
                java.send(f"committed-{number}", committed)
                java.send(f"aborted-{number}", aborted)
            committed.commit().get()
            aborted.abort().get()
            with mirror(source, target) as running:
                eventually(lambda: running.status().messages == 4)
                java.send("open-0", left_open)
                java.send("plain-1")
                java.send("open-1", left_open)
                time.sleep(2)
                # Messages behind an open transaction wait in the source, for the mirror as for all consumers.
                assert running.status().messages == 4
                left_open.commit().get()
                eventually(lambda: running.status().messages == 7)
            late = java.begin()
            java.send("aborted-late", late)
            late.abort().get()
            java.send("plain-2")
            status = mirrored(source, target)
            assert (status.messages, status.partitions[0].duplicates) == (1, 0)
            expected = [b"plain-0", *(b"committed-%d" % n for n in range(3))]
            expected += [b"open-0", b"plain-1", b"open-1", b"plain-2"]
            assert left(target, TOPIC, "s") == expected
        finally:
            java.close()
