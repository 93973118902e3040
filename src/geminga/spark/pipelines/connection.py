"""Connection options for a project's flows: the project's own addresses, with the run's credentials.

``geminga pipeline run --token-file ...`` passes the connection in the environment, as JSON: a project's files
hold no secrets. A template's flows call `connection` for the options of their sources and sinks.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from geminga.client.cluster import Cluster
from geminga.errors import InvalidConfiguration, UsageError

VARIABLE = "GEMINGA_PIPELINE_CLUSTER"
"""Environment variable of a run's processes, with the text of `handed_over`."""
REACH_SECONDS = 10.0
"""Time in which a project's broker must answer before a run."""


def handed_over(cluster: Cluster, *, is_addressed: bool) -> str:
    """Return the text for `VARIABLE`, **with the secrets**. ``is_addressed``: whether the cluster's address
    replaces that of the flow."""
    return json.dumps({"cluster": cluster.as_dict(), "is_addressed": is_addressed})


def check_asks(folder: Path) -> None:
    """Raise `UsageError` for a project whose flows would ignore a run's connection options."""
    for path in (folder / "transformations").rglob("*.py"):
        if "geminga.spark.pipelines.connection" in path.read_text(encoding="utf-8"):
            return
    raise UsageError(
        f"no flow of {folder} calls connection(), so connection options would have no "
        "effect: use from geminga.spark.pipelines.connection import connection, and "
        ".options(**connection(service_url)) instead of .option('service.url', service_url)"
    )


def reach(values: Iterable[object], given: str) -> None:
    """Connect to each broker whose address is among the ``values``, with the run's connection (``given``, as
    in `VARIABLE`). Raises `ServiceUnreachable` after `REACH_SECONDS`."""
    from geminga.spark.cluster import connect
    from geminga.spark.options import read_options

    limit = {"operationTimeoutMs": str(round(3000 * REACH_SECONDS)), "topic": "address-check"}
    for url in {str(each) for each in values if str(each).startswith(("pulsar://", "pulsar+ssl://"))}:
        connect(read_options({**connection(url, given=given), **limit}).connection).reach("address-check")


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
