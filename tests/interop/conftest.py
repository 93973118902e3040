"""A real Apache Pulsar for the whole run, and our own broker beside it for its Java tools."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from geminga.testing.apache_pulsar import ApachePulsar

CACHED = Path(__file__).parents[2] / ".cache/apache-pulsar-4.0.4"


@pytest.fixture(scope="session")
def pulsar_home() -> Path:
    home = Path(os.environ.get("PULSAR_HOME", CACHED))
    if not (home / "bin/pulsar").exists():
        pytest.fail(f"no Apache Pulsar in {home}: run `make interop`, which fetches it")
    return home


@pytest.fixture(scope="session")
def apache_pulsar(pulsar_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApachePulsar]:
    """Batch-index acknowledgement is on, so that both ways of acknowledging a batch are met.

    Tenants and namespaces may be deleted with all that is in them, as Geminga's may without a setting. Topics
    that nobody uses for a minute stay: how long a test takes does not decide whether its topic is there. The
    statistics of the whole broker, which are a minute old otherwise, are of the last seconds.
    """
    folder = tmp_path_factory.mktemp("apache-pulsar")
    with ApachePulsar.start(
        pulsar_home, folder, timeout_seconds=180, acknowledgmentAtBatchIndexLevelEnabled=True,
        brokerDeduplicationEnabled=True, forceDeleteNamespaceAllowed=True, forceDeleteTenantAllowed=True,
        brokerDeleteInactiveTopicsEnabled=False,
        statsUpdateFrequencyInSecs=2, statsUpdateInitialDelayInSecs=2,
    ) as broker:  # fmt: skip
        yield broker


@pytest.fixture
def topic() -> Callable[[str], str]:
    """A fresh topic name for each call."""
    return lambda name: f"persistent://public/default/{name}-{uuid4().hex[:10]}"
