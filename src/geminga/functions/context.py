"""`Context`: a function's interface to its message, configuration, state and publishing, for one call.

Published messages and state changes of a call are collected and take effect when the call succeeds; a failed
call has no effect and is retried. The input message is acknowledged when all results have their receipts.
"""

import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from numbers import Number
from typing import Any

from geminga import CompressionType
from geminga._util.loggers import shield
from geminga.config import check_type
from geminga.functions.metrics import Metrics
from geminga.functions.settings import FunctionSettings
from geminga.functions.state import Change, State
from geminga.ids import TopicName
from geminga.producer.message import build_message


@dataclass(slots=True)
class Publish:
    """A payload to publish, or a value for the output's schema. ``options`` are those of ``send``."""

    topic: str
    payload: Any
    options: dict[str, Any]
    callback: Callable[..., Any] | None = None
    compression: Any = None

    def check(self) -> None:
        """Validate topic and options in the call that publishes, so that errors fail this call. Expands the
        topic's name. Raises `InvalidTopicName`, `InvalidMessage` and `TypeError`."""
        self.topic = str(TopicName.parse(self.topic))
        if self.options:
            if not self.options.keys() <= _OPTIONS:
                unknown = min(self.options.keys() - _OPTIONS, key=str)
                raise TypeError(f"message_conf has {unknown!r}; allowed: {', '.join(sorted(_OPTIONS))}")
            build_message(b"", **self.options)


_OPTIONS = frozenset(inspect.signature(build_message).parameters) - {"content", "now_ms"}
"""Options of ``send`` besides the content."""


class InstanceContext:
    """Data that the contexts of an instance share."""

    def __init__(self, settings: FunctionSettings, metrics: Metrics) -> None:
        self.settings = settings
        self.metrics = metrics
        self.logger = shield(logging.getLogger(f"geminga.function.{settings.name}"))
        self.state: State | None = None
        self.open_state: Callable[[], State] | None = None
        self.serialize: Callable[[str, Any], bytes]
        self.acknowledge: Callable[[Any, str], None]
        self.failed: Callable[[Exception], None] = lambda error: None
        """Called with the error that ends the function."""
        self.patiently: Callable[[str, Callable[[], Awaitable[Any]]], Coroutine[Any, Any, Any]]
        """Retries while a topic is unavailable; see `PendingResults.patiently`."""
        self.client: Any = None


class Context:
    """The current message, the function's names and configuration, metrics, state and publishing.

    Runners create one for each call. A test of a function may give it a subclass with its own methods.
    """

    __slots__ = ("_message", "_shared", "changes", "publishes")

    def __init__(self, shared: Any = None, message: Any = None) -> None:
        self._shared: InstanceContext = shared
        self._message = message
        self.publishes: list[Publish] = []
        self.changes: list[Change] = []

    # --- the message ------------------------------------------------------------------------------

    def get_message(self) -> Any:
        """Return the message; None in a function of tables. Not in ``pulsar-client``."""
        return self._message

    def get_message_id(self) -> Any:
        """The id of the message."""
        return self._message.message_id()

    def get_message_key(self) -> str:
        """The key of the message."""
        return str(self._message.partition_key())

    def get_message_eventtime(self) -> int:
        """The event time of the message in milliseconds since 1970."""
        return int(self._message.event_timestamp())

    def get_message_properties(self) -> dict[str, str]:
        """The properties of the message."""
        return dict(self._message.properties())

    def get_current_message_topic_name(self) -> str:
        """The topic that the message came from."""
        return str(self._message.topic_name())

    def get_partition_key(self) -> str | None:
        """The partition key of the message, if it has one."""
        return str(self._message.partition_key())

    def get_ordering_key(self) -> str | None:
        """The ordering key of the message, if it has one."""
        return str(self._message.ordering_key())

    def get_message_sequence_id(self) -> int:
        """Return ledger and entry of the message as one number, as function workers do."""
        place = self._message.message_id()
        return int(place.ledger_id()) << 28 | int(place.entry_id())

    def get_message_partition_index(self) -> int:
        """The partition that the message came from, -1 without partitions."""
        return int(self._message.message_id().partition())

    def ack(self, msgid: Any, topic: str) -> None:
        """Acknowledge a message of an input topic."""
        self._shared.acknowledge(msgid, topic)

    # --- the function -----------------------------------------------------------------------------

    def get_function_tenant(self) -> str:
        """The tenant that the function runs under."""
        return self._shared.settings.tenant

    def get_function_namespace(self) -> str:
        """The namespace that the function runs under."""
        return self._shared.settings.namespace

    def get_function_name(self) -> str:
        """The name of the function."""
        return self._shared.settings.name

    def get_function_id(self) -> str:
        """The id of the function."""
        return self._shared.settings.full_name

    def get_instance_id(self) -> str:
        """The id of this instance of the function."""
        return str(self._shared.settings.instance_id)

    def get_function_version(self) -> str:
        """The version of the function."""
        return "0"

    def get_input_topics(self) -> list[str]:
        """The topics that the function reads."""
        return list(self._shared.settings.inputs)

    def get_output_topic(self) -> str:
        """The topic that results go to."""
        return self._shared.settings.output or ""

    def get_output_serde_class_name(self) -> str:
        """The serde of the output topic."""
        given = self._shared.settings.output_serde
        if given is None:
            return "serde.IdentitySerDe"
        return given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)

    def get_logger(self) -> logging.Logger:
        """The function's logger."""
        return self._shared.logger

    def get_user_config_value(self, key: str) -> Any:
        """A value of the function's configuration, None without one."""
        return self._shared.settings.user_config.get(key)

    def get_user_config_map(self) -> dict[str, Any]:
        """The whole configuration, empty without one."""
        return dict(self._shared.settings.user_config)

    def get_secret(self, secret_name: str) -> Any:
        """Return a secret: the value of the environment variable that the settings' ``secrets`` name."""
        where = self._shared.settings.secrets.get(secret_name)
        return None if where is None else os.environ.get(str(where))

    def get_pulsar_client(self) -> Any:
        """The `geminga.asyncio.Client` of this instance, for its own event loop."""
        return self._shared.client

    # --- metrics, publishing, state ---------------------------------------------------------------

    def record_metric(self, metric_name: str, metric_value: Any) -> None:
        """Report a number under a name. Raises `TypeError` if the value is not a number."""
        if not isinstance(metric_value, Number):
            raise TypeError(f"metric_value must be a number, not {type(metric_value).__name__}")
        self._shared.metrics.record(str(metric_name), float(metric_value))  # type: ignore[arg-type]

    def publish(
        self,
        topic_name: str,
        message: Any,
        serde_class_name: str = "serde.IdentitySerDe",
        properties: Mapping[str, str] | None = None,
        compression_type: Any = None,
        callback: Callable[..., Any] | None = None,
        message_conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Publish a value, serialised by ``serde_class_name``, to a topic, when the call has succeeded and
        before its message is acknowledged.

        ``message_conf`` takes the options of ``send``: ``properties``, ``partition_key``, ``ordering_key``,
        ``sequence_id``, ``replication_clusters``, ``disable_replication`` and ``event_timestamp``.
        """
        options = dict(message_conf or {})
        if properties:
            options["properties"] = dict(properties)
        payload = self._shared.serialize(str(serde_class_name), message)
        topic = topic_name if topic_name is None else str(topic_name)
        publish = Publish(topic, payload, options, callback, _compression(compression_type))
        publish.check()
        self.publishes.append(publish)

    def _state(self) -> State:
        if self._shared.state is None:
            assert self._shared.open_state is not None
            self._shared.state = self._shared.open_state()
        return self._shared.state

    def incr_counter(self, key: str, amount: int) -> None:
        """Add to a counter of the function's state."""
        self._state()
        self.changes.append((f"counter/{_key(key)}", check_type("amount", amount, int)))

    def get_counter(self, key: str) -> int:
        """Return a counter; 0 if it is not set."""
        total = self._state().counter(_key(key))
        for name, change in self.changes:
            if name == f"counter/{key}":
                total = 0 if change is None else total + int(change)
        return total

    def del_counter(self, key: str) -> None:
        """Remove a counter of the function's state."""
        self._state()
        self.changes.append((f"counter/{_key(key)}", None))

    def put_state(self, key: str, value: Any) -> None:
        """Set a value: bytes or text, or None to remove the key."""
        self._state()
        check_type("value", value, bytes, str, bytearray, memoryview, optional=True)
        payload = value.encode() if isinstance(value, str) else None if value is None else bytes(value)
        self.changes.append((f"value/{_key(key)}", payload))

    def get_state(self, key: str) -> bytes | None:
        """Return a value as bytes; None if the key is not set."""
        for name, change in reversed(self.changes):
            if name == f"value/{key}":
                return change  # type: ignore[return-value]
        return self._state().value(_key(key))


def _key(key: object) -> str:
    return str(check_type("key", key, str))


def _compression(given: Any) -> Any:
    """Return the compression type for a member of ours or of ``pulsar-client``'s enumeration."""
    if given is None:
        return None
    found = getattr(CompressionType, getattr(given, "name", ""), None)
    if found is None:
        raise TypeError(f"compression_type={given!r} is not allowed; allowed: a CompressionType")
    return found
