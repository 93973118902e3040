"""Pytest fixtures with a broker in the same process; loaded by pytest through the entry point.

=========================  ========  =================================================================
fixture                    scope     value
=========================  ========  =================================================================
``pulsar_broker``          function  a broker in memory for this test alone, ready in a few ms
``pulsar_module_broker``   module    a broker in memory that the tests of a module share
``pulsar_session_broker``  session   a broker in memory that all tests share
``pulsar_file_broker``     function  a broker with its store in a folder below ``tmp_path``
``pulsar_topic``           function  a topic name that no other test uses
``pulsar_client``          function  a `geminga.Client` of ``pulsar_broker``, closed after the test
``pulsar_admin``           function  a `geminga.Admin` of ``pulsar_broker``
``pulsar_settings``        module    settings of the brokers: override it to return a dict of
                                     `geminga.broker.settings.BrokerSettings` fields; that of the
                                     session has ``pulsar_session_settings``
=========================  ========  =================================================================

Pytest loads this module without importing the package: tests without these fixtures are not slowed down.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from geminga import Admin, Client
    from geminga.broker.serving.embedded import EmbeddedBroker


@pytest.fixture(scope="module")
def pulsar_settings() -> dict[str, Any]:
    """Broker settings for the fixtures of functions and modules; override to change them."""
    return {}


@pytest.fixture(scope="session")
def pulsar_session_settings() -> dict[str, Any]:
    """Broker settings for ``pulsar_session_broker``; override to change them."""
    return {}


def _broker(settings: dict[str, Any]) -> Iterator[EmbeddedBroker]:
    from geminga.broker.serving.embedded import embedded

    with embedded(**settings) as broker:
        yield broker


@pytest.fixture
def pulsar_broker(pulsar_settings: dict[str, Any]) -> Iterator[EmbeddedBroker]:
    """A broker in memory for this test alone."""
    yield from _broker(pulsar_settings)


@pytest.fixture(scope="module")
def pulsar_module_broker(pulsar_settings: dict[str, Any]) -> Iterator[EmbeddedBroker]:
    """A broker in memory that the tests of a module share; ``pulsar_topic`` keeps them apart."""
    yield from _broker(pulsar_settings)


@pytest.fixture(scope="session")
def pulsar_session_broker(pulsar_session_settings: dict[str, Any]) -> Iterator[EmbeddedBroker]:
    """A broker in memory that all tests share; ``pulsar_topic`` keeps them apart."""
    yield from _broker(pulsar_session_settings)


@pytest.fixture
def pulsar_file_broker(pulsar_settings: dict[str, Any], tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker whose store is the folder ``tmp_path / "pulsar"``."""
    from geminga.broker.serving.embedded import embedded

    with embedded(tmp_path / "pulsar", **pulsar_settings) as broker:
        yield broker


@pytest.fixture
def pulsar_topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses: ``persistent://public/default/<test name>-<random>``."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:60].strip("-")
    return f"persistent://public/default/{name}-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def pulsar_client(pulsar_broker: EmbeddedBroker) -> Iterator[Client]:
    """A client of ``pulsar_broker``."""
    client = pulsar_broker.client()
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
def pulsar_admin(pulsar_broker: EmbeddedBroker) -> Iterator[Admin]:
    """An admin of ``pulsar_broker``."""
    from geminga import Admin

    with Admin(pulsar_broker.admin_url) as admin:
        yield admin
