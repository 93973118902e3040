"""How the flows of a project reach the cluster: by the project's own address, as the run was told to.

``geminga pipeline run --token-file ...`` hands the cluster over in the environment, as JSON: a project's
files hold no secrets. A template's flows ask `connection` for the options of their sources and sinks.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from geminga.client.cluster import Cluster
from geminga.errors import InvalidConfiguration, UsageError

VARIABLE = "GEMINGA_PIPELINE_CLUSTER"
"""Of the processes of a run: `handed_over`."""


def handed_over(cluster: Cluster, *, is_addressed: bool) -> str:
    """The text for `VARIABLE`, **with the secrets**. Not ``is_addressed``: projects keep their addresses."""
    return json.dumps({"cluster": cluster.as_dict(), "is_addressed": is_addressed})


def check_asks(folder: Path) -> None:
    """Raises `UsageError` for a project whose flows would not hear what a run is told."""
    for path in (folder / "transformations").rglob("*.py"):
        if "geminga.spark.pipelines.connection" in path.read_text(encoding="utf-8"):
            return
    raise UsageError(
        f"no flow of {folder} asks for the run's connection, so options that say how to connect would change "
        "nothing: from geminga.spark.pipelines.connection import connection, and "
        ".options(**connection(service_url)) in the place of .option('service.url', service_url)"
    )


def cluster_at(service_url: str) -> Cluster:
    """The cluster that a flow with this address is to reach."""
    text = os.environ.get(VARIABLE)
    if not text:
        return Cluster(service_url=service_url)
    given = json.loads(text)
    cluster = Cluster.from_dict(given["cluster"])
    if given["is_addressed"]:
        return cluster
    return replace(cluster, service_url=service_url, admin_url=None)


def connection(service_url: str | None = None, *, admin_url: str | None = None) -> dict[str, str]:
    """Options of ``format("pulsar")`` for a topic at ``service_url``, or of ``format("pulsar_stats")`` for a
    broker whose web port is at ``admin_url``: the address, and how one shows oneself there."""
    given: dict[str, Any] = json.loads(os.environ.get(VARIABLE) or '{"cluster": {}, "is_addressed": false}')
    cluster = Cluster.from_dict(given["cluster"])
    if given["is_addressed"]:
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
    if service_url is None and admin_url is None:
        raise InvalidConfiguration("connection() needs a service_url or an admin_url")
    return {name: value for name, value in options.items() if value is not None}
