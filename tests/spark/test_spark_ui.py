"""Spark's own pages about a query over topics; see docs/decisions/what-sparks-pages-show.md."""

import json
import re
from dataclasses import dataclass

import pytest
from interpreter import run_python

from geminga.schema import AvroSchema, BytesSchema

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]

APPLICATION = """
import json, sys, time, urllib.request
import geminga.spark

url, topic, folder = sys.argv[1:]
spark = geminga.spark.session("local[2]", config={
    "spark.ui.enabled": "true", "spark.ui.port": "0",
})
options = {"service.url": url, "valueSchema": "TOPIC", "mode": "PERMISSIVE", "startingOffsets": "earliest"}
frame = spark.readStream.format("pulsar").options(**options).load(topic)
kept = geminga.spark.observed(frame).where("_corrupt_record IS NULL")
writer = kept.writeStream.format("noop").option("checkpointLocation", folder).queryName("readings")
query = writer.trigger(availableNow=True).start()
query.awaitTermination(300)

def page(path):
    with urllib.request.urlopen(spark.sparkContext.uiWebUrl + path, timeout=60) as answer:
        return answer.read().decode()

path = f"/api/v1/applications/{spark.sparkContext.applicationId}/sql?details=true&length=100"
deadline = time.monotonic() + 120
while True:  # listeners are notified a moment later
    executions = json.loads(page(path))
    list_of_all, statistics = page("/StreamingQuery/"), page(f"/StreamingQuery/statistics/?id={query.runId}")
    is_there = any(each["status"] == "COMPLETED" for each in executions) and "Input Rate" in statistics
    if is_there or time.monotonic() > deadline:
        break
    time.sleep(0.2)
print(json.dumps({"executions": executions, "list": list_of_all, "statistics": statistics}))
spark.stop()
"""


@dataclass
class Reading:
    station: str


def test_sparks_pages_show_rates_and_left_out_messages(pulsar_broker, pulsar_client, pulsar_topic, tmp_path):
    with pulsar_client.create_producer(pulsar_topic, schema=AvroSchema(Reading)) as good:
        for number in range(50):
            good.send(Reading(str(number)))
    with pulsar_client.create_producer(pulsar_topic, schema=BytesSchema()) as bad:
        for _ in range(7):
            bad.send(b"no reading")
    given = (pulsar_broker.service_url, pulsar_topic, str(tmp_path))
    done = run_python(APPLICATION, *given, seconds_max=500, SPARK_LOCAL_IP="127.0.0.1")
    told = json.loads(done.stdout.splitlines()[-1])
    assert "readings" in told["list"]
    assert all(name in told["statistics"] for name in ("Input Rate", "Process Rate", "Input Rows"))
    nodes = [node for each in told["executions"] for node in each["nodes"]]

    def shown(kind: str, metric: str) -> set[str]:
        """By all executions: the query's own has its micro-batches' plans within it."""
        found = [node["metrics"] for node in nodes if node["nodeName"].startswith(kind)]
        return {each["value"] for metrics in found for each in metrics if each["name"] == metric}

    rows = "number of output rows"
    told_of = {kind: shown(kind, rows) for kind in ("MicroBatchScan", "Filter")}
    assert "57" in told_of["MicroBatchScan"], told_of
    assert "50" in told_of["Filter"], told_of
    sizes = shown("MicroBatchScan", "data returned from Python workers")
    assert any(re.search(r"[1-9]", size) for size in sizes), sizes
