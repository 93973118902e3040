"""Environment of a test's function: topics of the broker, and the results."""

from dataclasses import dataclass
from typing import Any

import pytest

import geminga
from geminga.client.admin import admin
from geminga.functions import FunctionSettings

BOTH = pytest.mark.parametrize("guarantee", ["ATLEAST_ONCE", "EFFECTIVELY_ONCE"])
ALL = pytest.mark.parametrize("guarantee", ["ATLEAST_ONCE", "EFFECTIVELY_ONCE", "TRANSACTIONAL"])


@dataclass
class Place:
    broker: Any
    client: Any
    topic: str

    def settings(self, function: Any, **given: Any) -> FunctionSettings:
        name = self.topic.rpartition("/")[2]
        return FunctionSettings(
            **{
                "function": function, "inputs": (self.topic,), "output": self.topic + "-out", "name": name,
                "service_url": self.broker.service_url, "retry_delay_ms": 300, **given,
            }
        )  # fmt: skip

    def dead_lettering(self, function: Any, **given: Any) -> FunctionSettings:
        """Settings by which a message that failed twice goes to the topic ``-dead``."""
        dead = self.topic + "-dead"
        return self.settings(
            function, **{"max_message_retries": 1, "retry_delay_ms": 200, "dead_letter_topic": dead, **given}
        )

    def send(self, *values: Any, batched: bool = True, **options: Any) -> None:
        """Send texts. A batch is redelivered whole: where retries are counted, it needs ``batched=False``."""
        producer = self.client.create_producer(self.topic, batching_enabled=batched, block_if_queue_full=True)
        for value in values:
            producer.send_async(str(value).encode(), lambda *_: None, **options)
        producer.close()

    def results(self, count: int, suffix: str = "-out") -> list[Any]:
        consumer = self.client.subscribe(
            self.topic + suffix, "results", initial_position=geminga.InitialPosition.Earliest
        )
        messages = []
        for _ in range(count):
            messages.append(consumer.receive(60_000))
            consumer.acknowledge(messages[-1])
        with pytest.raises(geminga.Timeout):
            consumer.receive(150)
        consumer.close()
        return messages

    def values(self, count: int, suffix: str = "-out") -> list[str]:
        return [message.data().decode() for message in self.results(count, suffix)]

    def admin(self, method: str, topic: str | None, what: str, body: Any = None) -> Any:
        """Call the admin API for a topic; ``what`` ends the path."""
        return admin(self.broker.admin_url, method, f"{str(topic).replace('://', '/')}/{what}", body)

    def terminate(self, topic: str | None) -> None:
        self.admin("POST", topic, "terminate")

    def backlog(self, subscription: str) -> int:
        """Return the number of messages that a consumer of the function's subscription would still
        receive."""
        consumer = self.client.subscribe(self.topic, subscription, consumer_type=geminga.ConsumerType.Shared)
        count = 0
        try:
            while True:
                consumer.receive(300)
                count += 1
        except geminga.Timeout:
            return count
        finally:
            consumer.close()
