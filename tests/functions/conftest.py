from __future__ import annotations

from typing import Any

import pytest

from tests.functions.place import Place


@pytest.fixture(scope="module")
def pulsar_settings() -> dict[str, Any]:
    return {"deduplication": True}


@pytest.fixture
def place(pulsar_broker: Any, pulsar_client: Any, pulsar_topic: str) -> Place:
    return Place(pulsar_broker, pulsar_client, pulsar_topic)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "geminga.function")
    caplog.set_level("CRITICAL", "geminga.functions")
