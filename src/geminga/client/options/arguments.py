"""Conversion of the public API's arguments, which are ``pulsar-client``'s, to frozen settings.

The synchronous and the asyncio API share these functions, which take the arguments of a call by name. An
argument with the name, unit and type of a settings field is not mentioned here: it is copied, and the
settings check it.
"""

import datetime as dt
import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast

from geminga._util.values import T
from geminga.client.options import crypto
from geminga.client.options.authentication import Authentication
from geminga.client.options.enums import PartitionsRoutingMode
from geminga.client.options.service import ServiceInfo
from geminga.client.options.settings import ClientSettings, security_of
from geminga.config import (
    MILLISECONDS_MAX,
    check_int,
    check_milliseconds,
    check_seconds,
    check_type,
    refuse,
    utf8,
)
from geminga.consumer.settings import ConsumerSettings, ReaderSettings
from geminga.errors import InvalidConfiguration, InvalidTopicName
from geminga.ids import MessageId, TopicName
from geminga.producer.interceptors import ProducerInterceptor
from geminga.producer.settings import (
    IN_MILLISECONDS,
    LATENCY_BUDGET_MAX_SECONDS,
    LATENCY_BUDGET_MIN_SECONDS,
    ProducerSettings,
    SchemaInfo,
)
from geminga.schema import BytesSchema, JsonSchema, Record, Schema
from geminga.schema.schema import from_wire
from geminga.wire.proto import pulsar_wire_pb2 as pb

Topics = str | list[str] | re.Pattern[str]
"""A topic name, several names, or a pattern of names."""

Given = Mapping[str, Any]
"""The arguments of a call by name; other names in it are ignored."""

S = TypeVar("S", ProducerSettings, ConsumerSettings, ReaderSettings)
MakeSettings = Callable[[Given, Schema], S]


_PLAIN = (str, int, float, type(None), Enum)
"""Types of arguments that never change."""


def _shared(*others: str) -> Callable[[MakeSettings[S]], MakeSettings[S]]:
    """Give calls with `BytesSchema` the settings object of the call before if their arguments are the same
    plain values, but for ``others``, which settings do not contain: programs open many handles alike."""
    ignored = frozenset(("self", "schema", *others))

    def decorate(make: MakeSettings[S]) -> MakeSettings[S]:
        last: tuple[type, list[Any], S] | None = None

        def settings(given: Given, schema: Schema) -> S:
            nonlocal last
            if "self" not in given or type(schema) is not BytesSchema:
                return make(given, schema)
            before, client = last, type(given["self"])
            if before is not None and before[0] is client:
                pairs = zip(given.items(), before[1], strict=True)
                if ignored.issuperset([name for (name, value), old in pairs if value is not old]):
                    return before[2]
            made = make(given, schema)
            values = [None if name in ignored else value for name, value in given.items()]
            if all(isinstance(value, _PLAIN) or value == () for value in values):
                last = client, values, made
            return made

        return settings

    return decorate


def client_settings(given: Given, info: ServiceInfo) -> ClientSettings:
    """Return the settings of `geminga.Client` and `geminga.asyncio.Client`. ``info`` names the cluster to
    connect to first; it replaces three of the arguments."""
    check_type("service_url", info.service_url, str)
    authentication: Authentication | None = check_type(
        "authentication", info.authentication, Authentication, optional=True
    )
    _warn_of_ineffective(given, str(info.service_url))
    check_int("message_listener_threads", given["message_listener_threads"], 1, 1000)
    check_int("stats_interval_in_seconds", given["stats_interval_in_seconds"], 0)
    check_seconds("keep_alive_interval_seconds", given["keep_alive_interval_seconds"], 0.001)
    shortest = given["initial_backoff_interval_ms"]
    chosen = _of_the_same_name(ClientSettings, given)
    chosen.update(
        service_url=str(info.service_url),
        backoff_initial_seconds=check_milliseconds("initial_backoff_interval_ms", shortest, 1),
        backoff_max_seconds=check_milliseconds(
            "max_backoff_interval_ms", given["max_backoff_interval_ms"], shortest
        ),
        connection_timeout_seconds=check_int(
            "connection_timeout_ms", given["connection_timeout_ms"], 1, MILLISECONDS_MAX
        )
        / 1000,
        keepalive_interval_seconds=given["keep_alive_interval_seconds"],
        listener_threads=given["message_listener_threads"],
        statistics_interval_seconds=given["stats_interval_in_seconds"],
        **security_of(given, authentication, info.tls_trust_certs_file_path),
    )
    return ClientSettings(**chosen)


def _warn_of_ineffective(given: Given, service_url: str) -> None:
    """Warn about arguments that exist only because ``pulsar-client`` has them."""
    threads = check_int("io_threads", given["io_threads"], 1, 1_000_000)
    if threads > 1:
        _warn(
            f"io_threads={threads}: a client has one I/O thread, which carries all its connections; "
            "create more clients to use more"
        )
    if check_type("log_conf_file_path", given["log_conf_file_path"], str, optional=True) is not None:
        _warn("log_conf_file_path has no effect, as in pulsar-client: use logger")
    encrypted = service_url.startswith(("pulsar+ssl://", "https://"))
    if check_type("use_tls", given["use_tls"], bool) and not encrypted:
        _warn(
            f"use_tls=True has no effect, as in pulsar-client: connections to {service_url} are NOT "
            "encrypted; the service URL decides, write pulsar+ssl:// (or https://)"
        )


_CALLS_ABOVE = 5
"""Stack depth from `_warn` to the caller that creates a client."""


def _warn(sentence: str) -> None:
    warnings.warn(sentence, UserWarning, stacklevel=_CALLS_ABOVE)


def checked_topic(topic: object) -> str:
    """Return the full name of a topic argument. Raises `InvalidTopicName` or `InvalidConfiguration`."""
    check_type("topic", topic, str)
    return str(TopicName.parse(str(topic)))


def checked_schema(schema: Schema[T] | type[T] | None) -> Schema[T]:
    """Return the schema of an argument; None gives `BytesSchema`, a dataclass or a similar class its
    `JsonSchema`."""
    if schema is None:
        return cast("Schema[T]", BytesSchema())
    if isinstance(schema, type):
        from geminga.schema.models import is_model

        if issubclass(schema, Record) or is_model(schema):
            return JsonSchema(schema)
    checked: Schema = check_type("schema", schema, Schema)
    return checked


def schema_info(schema: pb.Schema | None) -> SchemaInfo | None:
    """Return a schema of the protocol in the form of the public API."""
    return None if schema is None else from_wire(schema)


def schema_version_bytes(version: int | bytes | None) -> bytes | None:
    """Return a schema version as messages carry it: 8 bytes, big-endian."""
    if version is None or isinstance(version, bytes):
        return version
    return check_int("version", version, 0, (1 << 63) - 1).to_bytes(8, "big")


@_shared("topic")
def producer_settings(given: Given, schema: Schema) -> ProducerSettings:
    """Return the settings of ``create_producer``. Arguments named like a field are copied."""
    check_type("producer_name", given["producer_name"], str, optional=True)
    check_type("properties", given["properties"], Mapping, optional=True)
    check_int("send_timeout_millis", given["send_timeout_millis"], 0, MILLISECONDS_MAX)
    check_int("blocked_after_ms", given["blocked_after_ms"], 0, MILLISECONDS_MAX)
    for name, item_type in (("encryption_keys", str), ("interceptors", ProducerInterceptor)):
        check_type(name, given[name], list, tuple)
        for item in given[name]:
            check_type(name, item, item_type)
    if given["latency_budget_ms"] is not None:
        check_milliseconds(
            "latency_budget_ms",
            given["latency_budget_ms"],
            LATENCY_BUDGET_MIN_SECONDS * 1000,
            LATENCY_BUDGET_MAX_SECONDS * 1000,
        )
    chosen = _of_the_same_name(ProducerSettings, given)
    for field, name in IN_MILLISECONDS.items():
        if given[name] is not None:
            chosen[field] = check_milliseconds(name, given[name])
    if given["latency_budget_ms"] is not None:
        chosen["batching_enabled"] = True  # the budget limits the duration of batches
    if given["message_router"] is not None:
        chosen["message_routing_mode"] = PartitionsRoutingMode.CustomPartition
    chosen.update(
        producer_name=given["producer_name"] or None,
        properties=_texts(given["properties"]),
        schema=schema.told_to_topic(),
        encode=None if type(schema) is BytesSchema else schema.encode_message,
        interceptors=tuple(given["interceptors"]),
        encryptor=crypto.encryptor(
            given["encryption_key"],
            given["encryption_keys"],
            given["crypto_key_reader"],
            given["crypto_failure_action"],
        ),
    )
    return ProducerSettings(**chosen)


def checked_topics(topic: object, is_pattern: bool = False) -> Topics:
    """Return the checked topic argument of ``subscribe``; with ``is_pattern`` it is the text of a pattern."""
    if is_pattern:
        if not isinstance(topic, str):
            refuse("is_pattern_topic", True, "False with a list of topics or a compiled pattern")
        return re.compile(topic)
    if isinstance(topic, str):
        return checked_topic(topic)
    if isinstance(topic, (list, tuple)):
        return list(dict.fromkeys(checked_topic(name) for name in topic))
    if isinstance(topic, re.Pattern) and isinstance(topic.pattern, str):
        return topic
    refuse("topic", topic, "a topic name, a list of topic names, or re.compile(...) of a text pattern")


def checked_subscription(subscription_name: object) -> str:
    check_type("subscription_name", subscription_name, str)
    if not str(subscription_name):
        refuse("subscription_name", subscription_name, "a text that is not empty")
    return str(subscription_name)


class SubscribeArguments(NamedTuple):
    """Arguments of one ``subscribe`` call."""

    topics: Topics
    subscription: str
    settings: ConsumerSettings
    schema: Schema[Any]


def checked_subscriptions(subscribe: Callable[..., Any], subscriptions: object) -> list[SubscribeArguments]:
    """Check the argument of ``subscribe_many``: a list of mappings, each with the arguments of one
    ``subscribe`` call. Raises the errors of ``subscribe``, with the index of the wrong mapping."""
    if not isinstance(subscriptions, (list, tuple)):
        refuse("subscriptions", subscriptions, "a list of mappings, each with the arguments of subscribe()")
    asked = []
    for number, one in enumerate(subscriptions):
        name = f"subscriptions[{number}]"
        check_type(name, one, Mapping)
        try:
            call = inspect.signature(subscribe).bind(**one)
            call.apply_defaults()
            given = call.arguments
            topics = checked_topics(given["topic"], given.get("is_pattern_topic", False))
            schema = checked_schema(given["schema"])
            settings = consumer_settings(given, schema)
            asked.append(
                SubscribeArguments(topics, checked_subscription(given["subscription_name"]), settings, schema)
            )
        except (TypeError, InvalidConfiguration, InvalidTopicName) as error:
            kind = InvalidConfiguration if isinstance(error, TypeError) else type(error)
            raise kind(f"{name}: {error}") from error
    return asked


@_shared("topic", "subscription_name")
def consumer_settings(given: Given, schema: Schema) -> ConsumerSettings:
    """Return the settings of ``subscribe``; only the synchronous API has ``message_listener``."""
    listener = given.get("message_listener")
    if listener is not None and not callable(listener):
        refuse("message_listener", listener, "a callable that takes (consumer, message), or None")
    for name in ("properties", "subscription_properties"):
        check_type(name, given[name], Mapping, optional=True)
    check_type("consumer_name", given["consumer_name"], str, optional=True)
    chosen = _of_the_same_name(ConsumerSettings, given)
    chosen.update(
        schema=None if type(schema) is BytesSchema else schema,
        consumer_name=given["consumer_name"] or None,
        properties=_texts(given["properties"]),
        subscription_properties=_texts(given["subscription_properties"]),
        decryptor=crypto.decryptor(given["crypto_key_reader"]),
    )
    return ConsumerSettings(**chosen)


def checked_start(
    start_message_id: object, start_time: object = None, now_ms: int | None = None
) -> MessageId | int:
    """Return the start of a reader: an id, or a publish time in milliseconds since 1970. ``start_time`` is
    such a number, a datetime with a time zone, or a timedelta back from ``now_ms``."""
    if start_time is None:
        start: MessageId = check_type("start_message_id", start_message_id, MessageId)
        return start
    if start_message_id is not None:
        refuse("start_time", start_time, "None with a start_message_id: give only one of them")
    if isinstance(start_time, dt.datetime):
        if start_time.tzinfo is None:
            refuse("start_time", start_time, "a datetime with a time zone")
        start_time = (start_time - _EPOCH) // dt.timedelta(milliseconds=1)
    elif isinstance(start_time, dt.timedelta):
        assert now_ms is not None
        start_time = now_ms - start_time // dt.timedelta(milliseconds=1)
    return check_int("start_time", start_time, 0, MILLISECONDS_MAX * 100)


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@_shared("topic", "start_message_id", "start_time")
def reader_settings(given: Given, schema: Schema) -> ReaderSettings:
    """Return the settings of ``create_reader``; only the synchronous API has ``reader_listener``."""
    listener = given.get("reader_listener")
    if listener is not None and not callable(listener):
        refuse("reader_listener", listener, "a callable that takes (reader, message), or None")
    for name in ("reader_name", "subscription_role_prefix"):
        check_type(name, given[name], str, optional=True)
    chosen = _of_the_same_name(ReaderSettings, given)
    chosen.update(
        schema=None if type(schema) is BytesSchema else schema,
        reader_name=given["reader_name"] or None,
        subscription_role_prefix=given["subscription_role_prefix"] or None,
        decryptor=crypto.decryptor(given["crypto_key_reader"]),
    )
    return ReaderSettings(**chosen)


def _texts(properties: Mapping[Any, Any] | None) -> dict[Any, Any]:
    return {utf8(key): utf8(value) for key, value in (properties or {}).items()}


def _of_the_same_name(settings: type, given: Given) -> dict[str, Any]:
    """Return the arguments that are named like a field of the settings, which check them."""
    return {name: given[name] for name in _field_names(settings) if name in given}


@cache
def _field_names(settings: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(settings))
