"""The pages on other frameworks: their programs run, where the framework is installed.

FastAPI is among the development dependencies. Dagster, Airflow and FastStream are not, for they bring
hundreds of packages with them: ``pip install dagster`` beside Geminga, and these tests run, too.
"""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import eventually_async

import geminga
import geminga.asyncio

PAGES = Path(__file__).parents[2] / "docs/integrations"


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (PAGES / page).read_text(), re.M | re.S)


def program(page: str) -> dict[str, Any]:
    """The names that the page's programs make, one after the other."""
    names: dict[str, Any] = {"__name__": page.removesuffix(".md")}
    for text in blocks(page):
        exec(compile(text, str(PAGES / page), "exec", dont_inherit=True), names)
    return names


def test_fastapi(pulsar_broker, monkeypatch):
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx2")
    names = program("fastapi.md")
    names["test_an_order_is_shipped"](pulsar_broker, monkeypatch)


def test_fastapi_s_worker_survives_what_it_cannot_do(pulsar_broker, monkeypatch):
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx2")
    testclient = pytest.importorskip("fastapi.testclient")
    names = program("fastapi.md")
    tried: list[int] = []

    async def refuse(order: Any) -> None:
        tried.append(order.number)
        raise RuntimeError("no such item")

    names["ship"] = refuse
    monkeypatch.setenv("PULSAR_SERVICE_URL", pulsar_broker.service_url)
    with testclient.TestClient(names["app"]) as web, pulsar_broker.client() as client:
        client.create_producer("orders").send(b"no JSON")
        assert web.post("/orders", json={"number": 7, "item": "tea"}).status_code == 202
        while not tried:
            pass
        assert web.get("/health").status_code == 200
    assert tried[0] == 7


def test_the_page_on_testing(tmp_path):
    first, second, third = blocks("testing.md")
    (tmp_path / "test_orders.py").write_text(f"{first}\n\n{second}\n\n{third}")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True, text=True, cwd=tmp_path, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout
    assert "3 passed" in run.stdout


def test_dagster(pulsar_broker, monkeypatch):
    dagster = pytest.importorskip("dagster")
    monkeypatch.setenv("PULSAR_SERVICE_URL", pulsar_broker.service_url)
    names = program("dagster.md")
    sensor = names["uploads"]
    with pulsar_broker.client() as client, geminga.Admin(pulsar_broker.admin_url) as admin:
        admin.topics.create("uploads", partitions=2)
        empty = sensor.evaluate_tick(dagster.build_sensor_context())
        assert (empty.run_requests, empty.skip_message) == ([], "no new messages")
        with client.create_producer("uploads", schema=names["Upload"], batching_enabled=True) as producer:
            producer.send_many([names["Upload"](path=f"/{n}") for n in range(5)])
        told = sensor.evaluate_tick(dagster.build_sensor_context())
        assert len({request.run_key for request in told.run_requests}) == 5
        assert set(json.loads(told.cursor)) <= set(client.get_topic_partitions("uploads"))
        again = sensor.evaluate_tick(dagster.build_sensor_context(cursor=told.cursor))
        assert again.run_requests == []
        with client.create_producer("uploads", schema=names["Upload"]) as producer:
            producer.send(names["Upload"](path="/new"))
        more = sensor.evaluate_tick(dagster.build_sensor_context(cursor=told.cursor))
    (request,) = more.run_requests
    assert request.run_config["ops"]["import_file"]["config"] == {"path": "/new"}
    assert names["import_job"].execute_in_process(run_config=request.run_config).success


def test_airflow(pulsar_broker, tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    pytest.importorskip("airflow")
    names = program("airflow.md")
    assert {task.task_id for task in names["imports_dag"].tasks} == {"wait", "work", "done"}
    assert [task.task_id for task in names["orders_dag"].tasks] == ["handle"]
    url = pulsar_broker.service_url

    async def first_events(count: int) -> list[Any]:
        trigger = names["PulsarMessages"]("orders", "airflow", url)
        path, arguments = trigger.serialize()
        assert path.endswith(".PulsarMessages")
        events, found = type(trigger)(**arguments).run(), []
        async for event in events:
            found.append(event.payload["value"])
            if len(found) == count:
                await events.aclose()
        return found

    with pulsar_broker.client() as client:
        client.create_producer("orders").send(b"a")
        client.create_producer("orders").send(b"b")
        assert asyncio.run(first_events(2)) == ["a", "b"]
        sensor = names["PulsarSensor"](task_id="t", topic="uploads", service_url=url)
        producer = client.create_producer("uploads")
        producer.send(b"one")
        producer.send(b"two")
        first = sensor.poke({})
        assert (first.is_done, first.xcom_value["value"]) == (True, "one")
        assert sensor.poke({}).xcom_value["value"] == "one", "a run that failed: the next gets the same"
        names["acknowledge"](first.xcom_value, url)
        second = sensor.poke({})
        assert second.xcom_value["value"] == "two"
        names["acknowledge"](second.xcom_value, url)
        assert not sensor.poke({}).is_done


async def test_faststream(pulsar_broker, monkeypatch):
    pytest.importorskip("faststream.nats")
    from faststream import TestApp
    from faststream.nats import TestNatsBroker

    monkeypatch.setenv("PULSAR_SERVICE_URL", pulsar_broker.service_url)
    names = program("faststream.md")

    async with (
        TestNatsBroker(names["broker"]) as nats,
        TestApp(names["app"]),
        geminga.asyncio.Client(pulsar_broker.service_url) as client,
    ):
        await nats.publish({"number": 1, "item": "by NATS"}, "orders")
        producer = await client.create_producer("orders", schema=names["Order"])
        await producer.send(names["Order"](number=2, item="by Pulsar"))
        await eventually_async(lambda: len(names["shipped"]) >= 2)
    assert sorted(names["shipped"]) == [1, 2]
