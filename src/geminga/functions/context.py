"""`Context`: a function's interface to its message, configuration, state and publishing."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any


class Context:
    """The current message, the function's names and configuration, metrics, state and publishing."""

    # --- the message ------------------------------------------------------------------------------

    @abstractmethod
    def get_message_id(self) -> Any:
        """The id of the message."""

    @abstractmethod
    def get_message_key(self) -> str:
        """The key of the message."""

    @abstractmethod
    def get_message_eventtime(self) -> int:
        """The event time of the message in milliseconds since 1970."""

    @abstractmethod
    def get_message_properties(self) -> dict[str, str]:
        """The properties of the message."""

    @abstractmethod
    def get_current_message_topic_name(self) -> str:
        """The topic that the message came from."""

    @abstractmethod
    def get_partition_key(self) -> str | None:
        """The partition key of the message, if it has one."""

    @abstractmethod
    def get_ordering_key(self) -> str | None:
        """The ordering key of the message, if it has one."""

    @abstractmethod
    def ack(self, msgid: Any, topic: str) -> Any:
        """Acknowledge a message of an input topic."""

    # --- the function -----------------------------------------------------------------------------

    @abstractmethod
    def get_function_tenant(self) -> str:
        """The tenant that the function runs under."""

    @abstractmethod
    def get_function_namespace(self) -> str:
        """The namespace that the function runs under."""

    @abstractmethod
    def get_function_name(self) -> str:
        """The name of the function."""

    @abstractmethod
    def get_function_id(self) -> str:
        """The id of the function."""

    @abstractmethod
    def get_instance_id(self) -> str:
        """The id of this instance of the function."""

    @abstractmethod
    def get_function_version(self) -> str:
        """The version of the function."""

    @abstractmethod
    def get_input_topics(self) -> list[str]:
        """The topics that the function reads."""

    @abstractmethod
    def get_output_topic(self) -> str:
        """The topic that results go to."""

    @abstractmethod
    def get_output_serde_class_name(self) -> str:
        """The serde of the output topic."""

    @abstractmethod
    def get_logger(self) -> logging.Logger:
        """The function's logger."""

    @abstractmethod
    def get_user_config_value(self, key: str) -> Any:
        """A value of the function's configuration, None without one."""

    @abstractmethod
    def get_user_config_map(self) -> dict[str, Any]:
        """The whole configuration, empty without one."""

    @abstractmethod
    def get_secret(self, secret_name: str) -> Any:
        """A secret by its name; None if it is not set."""

    # --- metrics, publishing, state ---------------------------------------------------------------

    @abstractmethod
    def record_metric(self, metric_name: str, metric_value: Any) -> None:
        """Report a number under a name."""

    @abstractmethod
    def publish(
        self,
        topic_name: str,
        message: Any,
        serde_class_name: str = "serde.IdentitySerDe",
        properties: Mapping[str, str] | None = None,
        compression_type: Any = None,
        callback: Callable[..., Any] | None = None,
        message_conf: Mapping[str, Any] | None = None,
    ) -> Any:
        """Publish a value, serialised by ``serde_class_name``, to a topic.

        ``message_conf`` takes the options of ``send``: ``properties``, ``partition_key``, ``ordering_key``,
        ``sequence_id``, ``replication_clusters``, ``disable_replication`` and ``event_timestamp``.
        """

    @abstractmethod
    def incr_counter(self, key: str, amount: int) -> Any:
        """Add to a counter of the function's state."""

    @abstractmethod
    def get_counter(self, key: str) -> int:
        """A counter of the function's state."""

    @abstractmethod
    def del_counter(self, key: str) -> Any:
        """Remove a counter of the function's state."""

    @abstractmethod
    def put_state(self, key: str, value: Any) -> Any:
        """Set a value of the function's state."""

    @abstractmethod
    def get_state(self, key: str) -> Any:
        """A value of the function's state."""
