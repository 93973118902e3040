"""Environment of a program: the library under its usual name, a broker, and topics of its own."""

import json
import re
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

KEYS = Path(__file__).parents[1] / "vectors" / "keys"
TIMEOUT_MILLIS = 40_000
"""For what has to come: many programs run at a time, on a machine that may be busy otherwise."""


@dataclass(frozen=True)
class Place:
    """``p`` is the library (geminga or pulsar), with its submodules imported."""

    p: Any
    service_url: str
    admin_url: str

    def client(self, **options: Any) -> Any:
        options = {
            "operation_timeout_seconds": 60,
            "logger": self.p.ConsoleLogger(self.p.LoggerLevel.Error),
            **options,
        }
        return self.p.Client(options.pop("service_url", self.service_url), **options)

    def topic(self, name: str) -> str:
        return f"persistent://public/default/{name}-{uuid4().hex[:10]}"

    def partitioned(self, name: str, count: int) -> str:
        topic = self.topic(name)
        self.admin("PUT", topic.replace("://", "/") + "/partitions", count)
        return topic

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"{self.admin_url}/admin/v2/{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            content = answer.read()
        return json.loads(content) if content.strip() else None


def take(consumer: Any, count: int) -> list[Any]:
    """Receive and acknowledge ``count`` messages."""
    messages = []
    for _ in range(count):
        message = consumer.receive(TIMEOUT_MILLIS)
        consumer.acknowledge(message)
        messages.append(message)
    return messages


def data(messages: list[Any]) -> list[str]:
    return [message.data().decode() for message in messages]


def raised(call: Callable[[], Any]) -> str:
    """The name of what a call raises, ``nothing`` if it returns."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def until(condition: Callable[[], Any], seconds: float = 40) -> bool:
    """Whether a condition comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def pattern(topic: str) -> re.Pattern[str]:
    """Matches topics that begin with a topic's name."""
    return re.compile(f"{topic}.*")
