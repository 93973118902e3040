"""Settings of a function: topics, guarantee, instances and more; reading of `FunctionConfig` files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from geminga.config import (
    MILLISECONDS_MAX,
    check_choice,
    check_int,
    check_milliseconds,
    check_seconds,
    check_type,
    refuse,
    suggestion,
)
from geminga.errors import InvalidConfiguration
from geminga.ids import TopicName

GUARANTEES = ("ATLEAST_ONCE", "EFFECTIVELY_ONCE", "TRANSACTIONAL", "ATMOST_ONCE", "MANUAL")
POSITIONS = ("earliest", "latest")
PARALLELISM_MAX = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionSettings:
    """Settings of a function: inputs, callable, output and processing.

    Raises `InvalidConfiguration` and `InvalidTopicName`.
    """

    function: str | Callable[..., Any]
    """A callable, or ``module:callable`` (``package.module.Class`` and ``file.py:callable`` as well)."""
    inputs: tuple[str, ...] = ()
    """Topics, partitioned or not."""
    topics_pattern: str | None = None
    """A pattern of topic names instead of ``inputs``."""
    output: str | None = None
    """Topic of results; None drops them."""
    service_url: str = "pulsar://127.0.0.1:6650"
    """Service URL of the cluster."""
    connection: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Authentication and TLS, as fields of `geminga.client.cluster.Cluster`."""
    tenant: str = "public"
    """Tenant of the function's full name, ``tenant/namespace/name``."""
    namespace: str = "default"
    """Namespace of the function's full name."""
    name: str = ""
    """Name of the function; empty: the callable's name."""
    subscription: str = ""
    """Name of the subscription; empty: ``tenant/namespace/name``."""
    subscription_position: str = "earliest"
    """Start position of a new subscription: ``earliest`` or ``latest``."""
    guarantee: str = "ATLEAST_ONCE"
    """Processing guarantee: ``ATLEAST_ONCE``, ``EFFECTIVELY_ONCE``, ``TRANSACTIONAL``, ``ATMOST_ONCE`` or
    ``MANUAL``."""
    transaction_messages: int = 1000
    """Maximum inputs of a transaction, with ``TRANSACTIONAL``."""
    transaction_delay_ms: int = 100
    """Longest time that results wait for those of further queued inputs before their transaction begins."""
    transaction_timeout_ms: int = 30_000
    """Time limit of a transaction. Readers of the output may wait this long after the function was killed."""
    max_message_retries: int | None = None
    """Retries of a failing message before it goes to ``dead_letter_topic``; None: without limit. With
    ``ATLEAST_ONCE`` every redelivery of a batch counts for all of its messages."""
    dead_letter_topic: str | None = None
    """Topic of failed messages; None: ``<topic>-<subscription>-DLQ``, with slashes as dashes."""
    retry_delay_ms: int = 1000
    """Delay of the first retry; it doubles with each retry up to 60 s."""
    timeout_ms: int | None = None
    """Messages not acknowledged within this time are redelivered; None: never."""
    max_concurrency: int = 100
    """Maximum concurrent calls of an async callable."""
    keep_order: bool = True
    """Publish results of an async callable in the order of the input."""
    max_pending: int = 20_000
    """Maximum messages whose results have no receipt yet; fewer if they are large (128 MiB in all)."""
    receiver_queue_size: int | None = None
    """Receiver queue size in messages; None: 5,000, with ``arrow`` twice ``max_rows``."""
    arrow: bool = False
    """The callable takes and returns Arrow tables."""
    max_rows: int = 100_000
    """Approximate maximum of rows in a table."""
    input_schema: Any = None
    """Schema of the input: a schema of the client, or ``module:NAME``."""
    output_schema: Any = None
    """Schema of results: a schema of the client, or ``module:NAME``."""
    input_serde: Any = None
    """Serde class of the input, or its name, if no schema is given."""
    output_serde: Any = None
    """Serde class of results, or its name, if no schema is given."""
    forward_keys: bool = True
    """Results without a key get the input's key."""
    source_properties: bool = False
    """Add ``__pfn_input_topic__`` and ``__pfn_input_msg_id__`` to results' properties, as function workers
    do."""
    user_config: Mapping[str, Any] = field(default_factory=dict)
    """Values of `Context.get_user_config_value`, by name."""
    secrets: Mapping[str, Any] = field(default_factory=dict)
    """Environment variable of each secret of `Context.get_secret`, by name."""
    state_topic: str | None = None
    """Topic of the state; None: ``<namespace>/<name>-state``."""
    log_topic: str | None = None
    """Topic that also receives the log lines of `Context.get_logger`."""
    metrics_port: int | None = None
    """Port of Prometheus' ``/metrics`` on loopback; instance N uses port + N. None: no metrics."""
    parallelism: int = 1
    """Number of instances, each a process."""
    instance_id: int = 0
    """Number of this instance, from 0."""
    compression: str = "NONE"
    """Compression of results, a name of `CompressionType`."""
    batching_max_publish_delay_ms: float = 1.0
    """Longest time that a result waits for its batch."""
    drain_seconds: float = 30.0
    """Time limit at the end for calls and sends in flight."""

    def __post_init__(self) -> None:
        if not callable(self.function):
            check_type("function", self.function, str)
        inputs = (self.inputs,) if isinstance(self.inputs, str) else tuple(self.inputs)
        object.__setattr__(self, "inputs", tuple(str(TopicName.parse(topic)) for topic in inputs))
        if bool(inputs) == bool(self.topics_pattern):
            refuse("inputs", inputs, "at least one topic, or topics_pattern instead")
        for name in ("output", "log_topic", "dead_letter_topic", "state_topic"):
            topic = getattr(self, name)
            if topic is not None:
                object.__setattr__(self, name, str(TopicName.parse(check_type(name, topic, str))))
        if not self.name:
            object.__setattr__(self, "name", self._default_name())
        for name in ("tenant", "namespace", "name"):
            value = check_type(name, getattr(self, name), str)
            if not value or "/" in value:
                refuse(name, value, "a name without '/'")
        check_choice("guarantee", self.guarantee, GUARANTEES)
        check_choice("subscription_position", self.subscription_position, POSITIONS)
        check_choice("compression", self.compression, ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"))
        if self.max_message_retries is not None:
            check_int("max_message_retries", self.max_message_retries, 1)
        elif self.dead_letter_topic is not None:
            refuse("dead_letter_topic", self.dead_letter_topic, "a topic together with max_message_retries")
        check_int("retry_delay_ms", self.retry_delay_ms, 1, MILLISECONDS_MAX)
        if self.timeout_ms is not None:
            check_int("timeout_ms", self.timeout_ms, 10_000, MILLISECONDS_MAX)
        check_int("transaction_messages", self.transaction_messages, 1)
        check_int("transaction_delay_ms", self.transaction_delay_ms, 1, MILLISECONDS_MAX)
        check_int("transaction_timeout_ms", self.transaction_timeout_ms, 1000, MILLISECONDS_MAX)
        check_int("max_concurrency", self.max_concurrency, 1)
        check_int("max_pending", self.max_pending, 1)
        if self.receiver_queue_size is not None:
            check_int("receiver_queue_size", self.receiver_queue_size, 1)
        check_int("max_rows", self.max_rows, 1)
        check_int("parallelism", self.parallelism, 1, PARALLELISM_MAX)
        check_int("instance_id", self.instance_id, 0)
        check_milliseconds("batching_max_publish_delay_ms", self.batching_max_publish_delay_ms)
        check_seconds("drain_seconds", self.drain_seconds)
        if self.metrics_port is not None:
            check_int("metrics_port", self.metrics_port, 0, 65535)
        if self.arrow and self.guarantee != "ATLEAST_ONCE":
            refuse("guarantee", self.guarantee, "'ATLEAST_ONCE' with arrow=True")
        if self.guarantee == "EFFECTIVELY_ONCE" and self.output is None:
            refuse("output", None, "a topic whose deduplication is on, with guarantee='EFFECTIVELY_ONCE'")

    def _default_name(self) -> str:
        if isinstance(self.function, str):
            return self.function.replace(":", ".").rsplit(".", 1)[-1]
        return str(getattr(self.function, "__name__", type(self.function).__name__)).strip("<>")

    @property
    def full_name(self) -> str:
        """``tenant/namespace/name``."""
        return f"{self.tenant}/{self.namespace}/{self.name}"

    @property
    def subscription_name(self) -> str:
        """``subscription``, or ``tenant/namespace/name``."""
        return self.subscription or self.full_name

    def to_json(self) -> str:
        """Encode for another process. Raises `InvalidConfiguration` for a value that cannot be passed on."""
        found: dict[str, Any] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name.startswith(("input_s", "output_s", "function")) and not (
                value is None or isinstance(value, str)
            ):
                value = _importable(one.name, value)
            found[one.name] = dict(value) if isinstance(value, Mapping) else value
        try:
            return json.dumps(found)
        except TypeError as error:
            raise InvalidConfiguration(f"the settings cannot be given to other processes: {error}") from None

    @staticmethod
    def from_json(text: str) -> FunctionSettings:
        """Return the settings that `to_json` encoded."""
        found = json.loads(text)
        return FunctionSettings(**{**found, "inputs": tuple(found["inputs"])})


def _importable(name: str, value: Any) -> str:
    """Return the ``module:name`` by which other processes import a value."""
    import sys

    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if module in (None, "__main__") or "<" in path or not path:
        refuse(name, value, "with parallelism above 1, something that a module has by name: 'module:name'")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is not value:
        refuse(name, value, "with parallelism above 1, something that a module has by name: 'module:name'")
    return f"{module}:{path}"


_OF_CONFIG = {
    "tenant": "tenant", "namespace": "namespace", "name": "name", "output": "output",
    "className": "function", "userConfig": "user_config", "subName": "subscription",
    "subscriptionName": "subscription", "processingGuarantees": "guarantee", "timeoutMs": "timeout_ms",
    "maxMessageRetries": "max_message_retries", "deadLetterTopic": "dead_letter_topic",
    "parallelism": "parallelism", "logTopic": "log_topic", "secrets": "secrets",
    "topicsPattern": "topics_pattern", "outputSerdeClassName": "output_serde", "retainOrdering": "keep_order",
}  # fmt: skip
"""Names in ``pulsar-admin functions create --function-config-file``, and their settings here."""

_WITHOUT_EFFECT = {
    "jar", "go", "runtime", "runtimeFlags", "resources", "cleanupSubscription", "windowConfig",
    "exposePulsarAdminClientEnabled", "maxPendingAsyncRequests", "outputTypeClassName",
    "customRuntimeOptions", "inputTypeClassName",
}  # fmt: skip


def from_config(config: Mapping[str, Any], **given: Any) -> FunctionSettings:
    """Return settings from a mapping with ``pulsar-admin``'s names; ``given`` (our names) take precedence.

    Raises `InvalidConfiguration` for unknown names and for unsupported values.
    """
    found: dict[str, Any] = {}
    inputs: list[str] = []
    for key, value in config.items():
        if value is None:
            continue
        if key in _OF_CONFIG:
            found[_OF_CONFIG[key]] = value
        elif key == "inputs":
            inputs += [value] if isinstance(value, str) else list(value)
        elif key in ("customSerdeInputs", "inputSpecs"):
            for topic, spec in dict(value).items():
                if topic not in inputs:
                    inputs.append(topic)
                serde, schema = _of_input(
                    key, spec if isinstance(spec, Mapping) else {"serdeClassName": spec}
                )
                if found.setdefault("input_serde", serde) != serde:
                    refuse(key, value, "one serde for all inputs")
                if found.setdefault("input_schema", schema) != schema:
                    refuse(key, value, "one schema for all inputs")
        elif key == "outputSchemaType":
            found["output_schema"] = _schema_of_type(key, value, "output_schema")
        elif key == "autoAck":
            if value is False or str(value).lower() == "false":
                found["guarantee"] = "MANUAL"
        elif key == "subscriptionPosition":
            found["subscription_position"] = str(value).lower()
        elif key == "py":
            found["_file"] = value
        elif key == "retainKeyOrdering":
            if value is True:
                refuse(key, value, "False: instances share the messages without regard to keys")
        elif key == "windowConfig":
            refuse(key, value, "nothing: windows are not supported; aggregate with Spark, or keep state")
        elif key not in _WITHOUT_EFFECT:
            known = [*_OF_CONFIG, "inputs", "autoAck", "subscriptionPosition", "customSerdeInputs", "py"]
            refuse("name in the function's config", key, f"Pulsar's names{suggestion(key, known)}")
    if inputs:
        found["inputs"] = tuple(inputs)
    if "user_config" in found:
        found["user_config"] = _mapping("userConfig", found["user_config"])
    file = found.pop("_file", None)
    found.update(given)
    if file and isinstance(found.get("function"), str) and ":" not in found["function"]:
        found["function"] = f"{file}:{found['function'].rsplit('.', 1)[-1]}"
    if "function" not in found:
        refuse("className", None, "the function's class or callable")
    return FunctionSettings(**found)


def _of_input(key: str, spec: Mapping[str, Any]) -> tuple[Any, str | None]:
    """Return serde and schema of an input."""
    for name, value in spec.items():
        if value and name not in ("serdeClassName", "schemaType"):
            refuse(f"{key}.{name}", value, "serdeClassName and schemaType; topicsPattern for a pattern")
    return spec.get("serdeClassName") or None, _schema_of_type(key, spec.get("schemaType"), "input_schema")


def _schema_of_type(key: str, value: Any, setting: str) -> str | None:
    kind = str(value or "").lower()
    if kind == "string":
        return "geminga.schema:StringSchema"
    if kind not in ("", "bytes"):
        option = "--" + setting.replace("_", "-")
        refuse(key, value, f"'string' or 'bytes'; {option} MODULE:NAME ({setting}) names any other schema")
    return None


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            refuse(name, value, "a mapping, or JSON of one")
    return dict(check_type(name, value, Mapping))


def read_config(path: str | Path) -> dict[str, Any]:
    """Read a mapping from a YAML or JSON file. Raises `InvalidConfiguration` for any other content."""
    text = Path(path).read_text(encoding="utf-8")
    try:
        found = json.loads(text)
    except ValueError:
        try:
            import yaml
        except ImportError:
            raise InvalidConfiguration(
                f"{path} is no JSON, and for YAML the package pyyaml is needed: pip install pyyaml"
            ) from None
        try:
            found = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise InvalidConfiguration(f"{path} is no YAML: {error}") from None
    if not isinstance(found, dict):
        raise InvalidConfiguration(f"{path} holds {type(found).__name__}; allowed: names and values")
    return found


__all__ = ["GUARANTEES", "FunctionSettings", "from_config", "read_config", "replace"]
