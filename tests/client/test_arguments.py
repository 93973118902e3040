import inspect
import logging
import re
from typing import Any

import pytest

import geminga
from geminga.client.options import arguments
from geminga.errors import InvalidConfiguration, PulsarException


def test_a_topic_that_is_named_twice_is_subscribed_once():
    names = arguments.checked_topics(["a", "a", "b"])
    assert names == ["persistent://public/default/a", "persistent://public/default/b"]


class Thing:
    """Something that no argument takes."""


WRONG_VALUES = [
    None, "x", b"x", -1, 0, 1.5, float("nan"), float("inf"), 10**30, True, [], {}, {"a": 1}, Thing(), len,
    ["x"], ("a", 5),
]  # fmt: skip
WITH_ANOTHER_NAME = {"service_url": "service URL", "encryption_key": "encrypt", "encryption_keys": "encrypt"}
"""Expected text of a refusal that does not name the argument."""


@pytest.fixture(scope="module")
def client(pulsar_module_broker):
    with pulsar_module_broker.client() as client:
        yield client


def refused_or_accepted(make, base, name, value):
    """None when the value was accepted or refused by name; else what was said instead."""
    try:
        make(**{**base, name: value}).close()
    except PulsarException as error:
        if name not in str(error) and WITH_ANOTHER_NAME.get(name, name) not in str(error):
            return f"{name}={value!r}: {type(error).__name__}: {error}"
    except Exception as error:
        return f"{name}={value!r}: {type(error).__name__}: {error}"
    return None


BASE = {
    "Client": {"service_url": "pulsar://localhost"},
    "create_producer": {"topic": "arguments"},
    "subscribe": {"topic": "arguments", "subscription_name": "s"},
    "create_reader": {"topic": "arguments", "start_message_id": geminga.MessageId.earliest},
}


@pytest.mark.parametrize("method", BASE)
@pytest.mark.filterwarnings("ignore:.* has no effect:UserWarning")
def test_every_wrong_value_is_refused_by_the_argument_s_name(client, method, monkeypatch):
    monkeypatch.setattr(logging.getLogger("geminga"), "disabled", True)
    make = geminga.Client if method == "Client" else getattr(client, method)
    faults = [
        fault
        for name in inspect.signature(make).parameters
        for value in WRONG_VALUES
        if (fault := refused_or_accepted(make, BASE[method], name, value))
    ]
    assert faults == []


REFUSED: dict[str, dict[str, list[Any]]] = {
    "Client": {
        "authentication": ["token"], "operation_timeout_seconds": [0, "30"], "io_threads": [0],
        "message_listener_threads": [0], "connection_timeout_ms": [0], "listener_name": [1],
        "service_url": [7], "tls_allow_insecure_connection": ["yes"], "logger": ["stdout"],
        "max_backoff_interval_ms": [1], "connections_per_broker": [0, True],
        "concurrent_lookup_requests": [0], "memory_limit_bytes": [-1], "stats_interval_in_seconds": [-1],
    },
    "create_producer": {
        "topic": [7], "producer_name": [0, 7], "schema": ["json"], "send_timeout_millis": [-1, 10**30],
        "compression_type": [1.5], "batching_enabled": [1, None], "batching_max_publish_delay_ms": ["10"],
        "message_routing_mode": ["RoundRobin"], "properties": [["a"]], "access_mode": [9.5],
        "chunking_enabled": ["yes"], "latency_budget_ms": [1, "50"], "interceptors": ["x", [Thing()]],
        "encryption_keys": ["key"],
    },
    "subscribe": {
        "topic": [re.compile(b"bytes")],
        "subscription_name": [""], "consumer_type": [1], "receiver_queue_size": [-1], "message_listener": [7],
        "initial_position": [0], "properties": [{"a": 1}], "key_shared_policy": [1],
        "negative_ack_redelivery_backoff": [5], "replicate_subscription_state_enabled": ["yes"],
        "broker_consumer_stats_cache_time_ms": ["x"], "unacked_messages_timeout_ms": [[], 999],
        "priority_level": [1 << 31], "consumer_name": [0], "subscription_properties": [{"a": 1}],
    },
    "create_reader": {"start_message_id": ["earliest"]},
}  # fmt: skip
"""Values that must be refused, by method and argument."""


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        (method, name, value)
        for method, names in REFUSED.items()
        for name, values in names.items()
        for value in values
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(client, method, name, value):
    make = geminga.Client if method == "Client" else getattr(client, method)
    with pytest.raises(ValueError, match=name):
        make(**{**BASE[method], name: value})


def test_arguments_that_contradict_each_other_are_refused(client):
    for options, name in (
        ({"chunking_enabled": True, "batching_enabled": True}, "chunking_enabled"),
        ({"latency_budget_ms": 1, "batching_enabled": True}, "latency_budget_ms"),
        ({"batching_max_messages": 500, "latency_budget_ms": 50}, "batching_max_messages"),
    ):
        with pytest.raises(InvalidConfiguration, match=name):
            client.create_producer("arguments", **options)


def test_calls_with_the_same_plain_arguments_share_their_settings(monkeypatch):
    made = []

    def opened(self, topic, settings, schema):
        made.append(settings)

    monkeypatch.setattr(geminga.Client, "_open_producer", opened)
    with geminga.Client("pulsar://127.0.0.1:1") as client:
        client.create_producer("a", batching_enabled=True)
        client.create_producer("b", batching_enabled=True)
        assert made[0] is made[1]
        client.create_producer("c")
        client.create_producer("d", schema=geminga.schema.StringSchema())
        client.create_producer("e")
        assert made[3].encode is not None
        assert made[4].encode is None
        assert not made[4].batching_enabled
        with pytest.raises(InvalidConfiguration, match="batching_enabled"):
            client.create_producer("f", batching_enabled=1)
        client.create_producer("g", properties={"a": "1"})
        client.create_producer("h", properties={"a": "1"})
        assert made[5] is not made[6]
