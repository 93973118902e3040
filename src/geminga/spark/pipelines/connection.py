"""Connection options for a project's flows: the project's own addresses, with the run's credentials.

``geminga pipeline run --token-file ...`` passes the connection in the environment, as JSON: a project's files
hold no secrets. A template's flows call `connection` for the options of their sources and sinks.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from geminga.client.cluster import Cluster
from geminga.errors import InvalidConfiguration, PulsarException, TopicNotFound, UsageError

VARIABLE = "GEMINGA_PIPELINE_CLUSTER"
"""Environment variable of a run's processes, with the text of `handed_over`."""
REACH_SECONDS = 10.0
"""Time in which a project's broker must answer before a run."""
_PUBLISHING: Final = frozenset(("replay",))
"""Prefixes of settings whose ``topic`` is published to, and need not exist."""


def handed_over(cluster: Cluster, *, is_addressed: bool) -> str:
    """Return the text for `VARIABLE`, **with the secrets**. ``is_addressed``: whether the cluster's address
    replaces that of the flow."""
    return json.dumps({"cluster": cluster.as_dict(), "is_addressed": is_addressed})


def check_asks(folder: Path) -> None:
    """Raise `UsageError` for a project whose flows would ignore a run's connection options."""
    if any("geminga.spark.pipelines.connection" in text for text in _flows(folder)):
        return
    raise UsageError(
        f"no flow of {folder} calls connection(), so connection options would have no "
        "effect: use from geminga.spark.pipelines.connection import connection, and "
        ".options(**connection(service_url)) instead of .option('service.url', service_url)"
    )


def reach(folder: Path, settings: Mapping[str, object], given: str) -> None:
    """Connect to each broker whose address is among a project's ``settings``, with the run's connection
    (``given``, as in `VARIABLE`), and look for the topics that the flows read: Spark tries each flow three
    times, and reports it as completed in between.

    Raises `ServiceUnreachable` after `REACH_SECONDS`, and `TopicNotFound`.
    """
    from geminga.spark.cluster.clients import connect, discover
    from geminga.spark.options import read_options

    limit = {"operationTimeoutMs": str(round(3000 * REACH_SECONDS)), "topic": "address-check"}
    waits = any("waitingForNonExistedTopic" in text for text in _flows(folder))
    for name, value in settings.items():
        url = str(value)
        if not url.startswith(("pulsar://", "pulsar+ssl://")):
            continue
        cluster = connect(read_options({**connection(url, given=given), **limit}).connection)
        cluster.reach("address-check")
        prefix = name.removesuffix(".serviceUrl")
        topic = settings.get(f"{prefix}.topic")
        if topic and prefix not in _PUBLISHING and not waits:
            try:
                discover(cluster, (str(topic),), None, missing_is_empty=False)
            except TopicNotFound:
                raise
            except PulsarException:
                continue  # the flow's own requests raise it


def _flows(folder: Path) -> Iterator[str]:
    """Yield the texts of a project's flows in Python."""
    for path in (folder / "transformations").rglob("*.py"):
        yield path.read_text(encoding="utf-8", errors="replace")


def connection(
    service_url: str | None = None, *, admin_url: str | None = None, given: str | None = None
) -> dict[str, str]:
    """Return options of ``format("pulsar")`` for a topic at ``service_url``, or of ``format("pulsar_stats")``
    for a broker whose web port is at ``admin_url``: address, authentication and TLS. ``given`` replaces the
    text of `VARIABLE`."""
    if service_url is None and admin_url is None:
        raise InvalidConfiguration("connection() needs a service_url or an admin_url")
    text = os.environ.get(VARIABLE) if given is None else given
    run: dict[str, Any] = json.loads(text or '{"cluster": {}, "is_addressed": false}')
    cluster = Cluster.from_dict(run["cluster"])
    if run["is_addressed"]:
        service_url, admin_url = service_url and cluster.service_url, admin_url and cluster.find_admin_url()
    options = {
        "service.url": service_url,
        "admin.url": admin_url,
        "auth.plugin": cluster.auth_plugin,
        "auth.params": cluster.auth_params,
        "tls.trustCertsFilePath": cluster.tls_trust_certs_file_path,
        "tls.allowInsecureConnection": "true" if cluster.tls_allow_insecure_connection else None,
        "tls.validateHostname": None if cluster.tls_validate_hostname else "false",
    }
    return {name: value for name, value in options.items() if value is not None}
