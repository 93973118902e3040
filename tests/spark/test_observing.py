import json
import re
import urllib.request
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from waiting import eventually

import geminga.spark
from geminga.spark.observing import MetricsListener, query_lag

TOPIC = "persistent://public/default/t"


def progress(query: str = "q", **lag: Any) -> dict[str, Any]:
    latest = {TOPIC: {"0": "5:7"}, "lag": {TOPIC: lag}}
    return {
        "id": query, "name": 'a "name"', "batchId": 3, "numInputRows": 10, "inputRowsPerSecond": 5.5,
        "sources": [{"latestOffset": latest}, {"latestOffset": None}, {"latestOffset": "17"}],
    }  # fmt: skip


def test_the_lag_is_read_from_a_progress():
    lag = {"entries": 2, "messages": 20, "bytes": 600}
    assert query_lag(progress(**lag)) == {TOPIC: lag}
    assert query_lag(SimpleNamespace(json=json.dumps(progress(**lag)))) == {TOPIC: lag}
    assert query_lag(None) == {}


def test_progress_is_exported_for_prometheus():
    listener = MetricsListener()
    listener.onQueryProgress(SimpleNamespace(progress=progress(entries=2, messages=20, bytes=None)))
    labels = r'query="a \"name\"",id="q"'
    assert f"geminga_spark_input_rows{{{labels}}} 10" in listener.text()
    assert f'geminga_spark_lag_messages{{{labels},topic="{TOPIC}"}} 20' in listener.text()
    assert "lag_bytes" not in listener.text()
    found = {"pulsar": {"rows": 10, "malformed": 2, "newestPublishTime": "2024-01-01T00:00:00Z"}}
    listener.onQueryProgress(SimpleNamespace(progress={**progress(), "observedMetrics": found}))
    assert f'geminga_spark_observed{{{labels},metrics="pulsar",field="malformed"}} 2' in listener.text()
    assert "newestPublishTime" not in listener.text()
    listener.onQueryTerminated(SimpleNamespace(id="q"))
    assert listener.text() == ""


def scraped(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


@pytest.mark.spark
def test_the_lag_of_a_running_query_decreases(spark, pulsar_broker, pulsar_client, pulsar_topic, tmp_path):
    with pulsar_client.create_producer(pulsar_topic, batching_max_messages=10) as producer:
        producer.send_table(pa.table({"value": [b"%d" % number for number in range(100)]}))
    source = spark.readStream.format("pulsar").option("service.url", pulsar_broker.service_url)
    source = source.option("startingOffsets", "earliest").option("maxRowsPerTrigger", 40)
    with geminga.spark.serve_metrics(spark) as server:
        query = (
            source.load(pulsar_topic).writeStream.format("noop").queryName("lagging")
            .option("checkpointLocation", str(tmp_path)).trigger(processingTime="0 seconds").start()
        )  # fmt: skip
        try:
            eventually(
                lambda: (
                    len(query.recentProgress) >= 3
                    and not query_lag(query.lastProgress)[pulsar_topic]["messages"]
                )
            )
            behind = [query_lag(each)[pulsar_topic]["messages"] for each in query.recentProgress[:3]]
            assert behind == [60, 20, 0]
            # Spark tells its listeners after it has kept the progress.
            none_left = re.compile(rf'lag_messages.*topic="{re.escape(pulsar_topic)}"}} 0$', re.MULTILINE)
            eventually(lambda: none_left.search(scraped(server.url)))
            assert 'query="lagging"' in scraped(server.url)
        finally:
            query.stop()
