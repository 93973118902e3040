"""The client's synchronous and asyncio APIs: one is generated from the other, with arguments from the
settings."""

import ast
import dataclasses
import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

import geminga
import geminga.asyncio
from geminga.client.options import arguments
from geminga.client.options.service import ServiceInfo
from geminga.client.options.settings import ClientSettings
from geminga.consumer.settings import ConsumerSettings, ReaderSettings
from geminga.producer.settings import IN_MILLISECONDS, ProducerSettings
from geminga.schema import BytesSchema

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
generate_sync: Any = importlib.import_module("generate_sync")
compare_clients: Any = importlib.import_module("compare_clients")
client_differences: Any = importlib.import_module("client_differences")
signatures: Any = importlib.import_module("signatures")

CLIENTS = pytest.mark.parametrize(
    "client", [geminga.Client, geminga.asyncio.Client], ids=["threads", "asyncio"]
)
URL = "pulsar://localhost:6650"


def test_the_face_for_threads_is_fresh():
    for path, text in generate_sync.files().items():
        assert path.read_text() == text, f"client/{path.name} is stale: run `make docs`"


def test_an_option_is_written_once(monkeypatch):
    """A new field of the settings is an argument with its kind and default; one that changes changes it."""
    fields = signatures.fields_of

    def changed(options: Any) -> Any:
        kind = ast.parse("Patience | None", mode="eval").body
        new = fields(options)
        new["receiver_queue_size"] = dataclasses.replace(new["receiver_queue_size"], default=ast.Constant(7))
        return new | {"patience": signatures._Field(kind, ast.Constant(None))}

    monkeypatch.setattr(signatures, "fields_of", changed)
    monkeypatch.setattr(signatures, "METHODS", {"subscribe": signatures.METHODS["subscribe"]})
    source = (generate_sync.CLIENT / "aio.py").read_text()
    drawn = signatures.with_signatures(source)
    assert "receiver_queue_size: int=7" in drawn
    assert "patience: Patience | None=None,) -> AsyncConsumer" in drawn


def test_fields_that_are_no_arguments_are_named_with_a_reason(monkeypatch):
    options = signatures.METHODS["create_reader"]
    assert all(options.none.values())
    for none in ({}, {**options.none, "no_such_field": "x"}, {**options.none, "reader_name": "x"}):
        other = dataclasses.replace(options, none=none)
        monkeypatch.setitem(signatures.METHODS, "create_reader", other)
        source = (generate_sync.CLIENT / "aio.py").read_text()
        if none:
            with pytest.raises(SystemExit, match="is an argument, or no field"):
                signatures.with_signatures(source)
        else:
            assert "reader_listener: " in signatures.with_signatures(source)


def made(text: str) -> str:
    """Return the generated synchronous form of a method."""
    (given,) = ast.parse(text).body
    return str(ast.unparse(generate_sync.method(given)))


def test_a_coroutine_becomes_a_call():
    assert made(
        "async def get(self, topic: str, schema: Schema | None = None, *, more: int = 1) -> AsyncReader:\n"
        "    return await self._open(await self._ask(topic), [await x for x in schema])"
    ) == (
        "def get(self, topic: str, schema: Schema[T] | type[T] | None=_BYTES, *, more: int=1) -> Reader:\n"
        "    return self._open(self._ask(topic), [x for x in schema])"
    )


def test_arguments_of_one_face_alone():
    found = made(
        "async def subscribe(self, topic, consumer_type=1, receiver_queue_size=2, initial_position=3, "
        "is_pattern_topic=False, *, pattern_auto_discovery_period=60):\n"
        "    '''Text. With ``is_pattern_topic`` the topic is the text of a pattern.'''\n"
        "    return await self.f(topic, is_pattern_topic)"
    )
    assert found.splitlines() == [
        "def subscribe(self, topic, consumer_type=1, "
        "message_listener: Callable[[Consumer[T], Message[T]], Any] | None=None, receiver_queue_size=2, "
        "pattern_auto_discovery_period=60, initial_position=3, *, "
        "failure_listener: Callable[[Consumer[T], Message[T]], Any] | None=None, start_paused: bool=False):",
        '    """Text."""',
        "    return self.f(topic)",
    ]


def test_a_missing_sentence_is_reported():
    with pytest.raises(SystemExit, match=r"not said in aio\.py any more"):
        made("async def create_table_view(self, topic):\n    '''Another text.'''")


def test_every_difference_between_the_faces_has_its_reason():
    found = {(d.where, d.theirs, d.ours) for d in compare_clients.between_faces()}
    explained = {(row.where, row.theirs, row.ours) for row in client_differences.FACES}
    assert found == explained, "tools/client_differences.py"
    assert all(row.why for row in client_differences.FACES)
    assert compare_clients.plain_calls() == client_differences.PLAIN_CALLS


def given(method: Any) -> dict[str, Any]:
    """The arguments of a call that gives none but those without a default."""
    return {name: p.default for name, p in inspect.signature(method).parameters.items() if name != "self"}


@CLIENTS
def test_defaults_are_those_of_the_settings(client):
    """Each option has one default, whether it is given by argument or by settings."""
    plain = BytesSchema()
    made = arguments.client_settings(given(client.__init__), ServiceInfo(URL))
    wanted = ClientSettings(service_url=URL)
    for field in dataclasses.fields(ClientSettings):
        if field.name != "credentials":
            assert getattr(made, field.name) == getattr(wanted, field.name), field.name
    assert type(made.credentials) is type(wanted.credentials)
    batching = client is geminga.asyncio.Client  # as in pulsar-client's two clients
    assert arguments.producer_settings(given(client.create_producer), plain) == ProducerSettings(
        batching_enabled=batching
    )
    assert arguments.consumer_settings(given(client.subscribe), plain) == ConsumerSettings()
    assert arguments.reader_settings(given(client.create_reader), plain) == ReaderSettings()


TRANSLATED = {
    "__init__": {
        "authentication", "io_threads", "message_listener_threads", "log_conf_file_path",
        "stats_interval_in_seconds", "use_tls", "tls_trust_certs_file_path", "tls_allow_insecure_connection",
        "tls_validate_hostname", "logger", "connection_timeout_ms", "tls_private_key_file_path",
        "tls_certificate_file_path", "keep_alive_interval_seconds", "initial_backoff_interval_ms",
        "max_backoff_interval_ms",
    },
    "create_producer": {
        "topic", "encryption_key", "encryption_keys", "crypto_key_reader", "crypto_failure_action",
        *IN_MILLISECONDS.values(),
    },
    "subscribe": {"topic", "subscription_name", "crypto_key_reader", "is_pattern_topic"},
    "create_reader": {"topic", "start_message_id", "start_time", "crypto_key_reader"},
}  # fmt: skip
"""Arguments that have another name, unit or kind than their field; `client/options/arguments.py` names
each."""


@CLIENTS
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("__init__", ClientSettings),
        ("create_producer", ProducerSettings),
        ("subscribe", ConsumerSettings),
        ("create_reader", ReaderSettings),
    ],
)
def test_no_argument_gets_lost(client, name, settings):
    """An argument is a field of the settings, or one of the few that are translated. A new one that is
    neither would be accepted without effect."""
    fields = {field.name for field in dataclasses.fields(settings)}
    assert set(given(getattr(client, name))) - fields <= TRANSLATED[name]


def test_arguments_arrive_in_the_settings():
    """One value of each kind, by both ways: the same name, and a translated one."""
    chosen = given(geminga.Client.create_producer) | {
        "batching_enabled": True, "batching_max_messages": 7, "batching_max_publish_delay_ms": 2.5,
        "send_timeout_millis": 1500, "encryption_keys": [], "properties": {"a": "b"}, "producer_name": "",
        "message_router": lambda message, count: 0, "compression_level": 0,
    }  # fmt: skip
    settings = arguments.producer_settings(chosen, BytesSchema())
    assert settings.batching_max_messages == 7
    assert settings.batching_max_publish_delay_seconds == 0.0025
    assert settings.send_timeout_seconds == 1.5
    assert settings.properties == {"a": "b"}
    assert settings.producer_name is None
    assert settings.message_routing_mode is geminga.PartitionsRoutingMode.CustomPartition
    assert settings.latency_budget_seconds is None
