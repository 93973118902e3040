"""``geminga standalone``: run the broker as a process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from geminga.broker.settings import SYNC_MODES, BrokerSettings
from geminga.cli.common import PORT
from geminga.cli.units import SIZE

if TYPE_CHECKING:
    from aiohttp import web

    from geminga.broker.admin.auth import Key, RequiredPermission

DATA_DIR = "geminga-data"
FILE = click.Path(dir_okay=False, exists=True, path_type=Path)


@click.command("standalone")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Data folder; created if missing.  [default: {DATA_DIR} in the current folder]",
)
@click.option("--memory", is_flag=True, help="Keep all data in memory; it is lost when the broker stops.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=PORT,
    default=6650,
    show_default=True,
    help="Port of the binary protocol; 0: a free port.",
)
@click.option(
    "--web-port",
    type=PORT,
    default=8080,
    show_default=True,
    help="Port of admin REST and metrics; 0: a free port.",
)
@click.option(
    "--web-host", "web_hosts", multiple=True,
    help="Further host name that the web port answers to; may be repeated, '*' for any.",
)  # fmt: skip
@click.option(
    "--tls-port", type=PORT,
    help="Port of the binary protocol with TLS; --port stays without TLS. Pulsar's brokerServicePortTls.",
)  # fmt: skip
@click.option(
    "--web-tls-port", type=PORT,
    help="Port of admin REST with TLS; --web-port stays without TLS. Pulsar's webServicePortTls.",
)  # fmt: skip
@click.option(
    "--advertised-listeners", metavar="NAME:URL,...",
    help="Addresses returned to clients by listener name, such as "
    "internal:pulsar://10.0.0.5:6650,external:pulsar+ssl://example.org:6651.",
)  # fmt: skip
@click.option(
    "--internal-listener", metavar="NAME", help="Listener of clients that name none.  [default: the first]"
)
@click.option("--advertised-address", help="Host name that lookups return to clients.")
@click.option(
    "--sync", type=click.Choice(SYNC_MODES), default="always", show_default=True,
    help="Send receipts after fdatasync (always), or earlier.",
)  # fmt: skip
@click.option(
    "--auto-create-topics/--no-auto-create-topics", default=True, show_default=True,
    help="Create unknown topics for their first producer or consumer.",
)  # fmt: skip
@click.option("--max-message-size", default=5 * 1024 * 1024, show_default=True, help="Limit in bytes.")
@click.option(
    "--deduplication", is_flag=True, help="Drop repeated sequence ids, unless a policy disables it."
)
@click.option(
    "--retention-minutes", type=int, help="Minutes to keep acknowledged messages; -1: forever; 0: none."
)
@click.option(
    "--offload-location",
    help="Storage for offloaded ledgers (Parquet): a folder, or a URL such as s3://bucket/path.",
)
@click.option(
    "--offload-threshold", type=SIZE,
    help="Size of a topic in the data folder above which its oldest ledgers are offloaded, such as 10G.",
)  # fmt: skip
@click.option("--disk-limit", type=SIZE, help="Maximum size of the data folder, such as 20G.")
@click.option(
    "--disk-low-water", type=SIZE,
    help="Free space below which publishing is refused.  [default: 1G, or 5 % of a smaller disk]",
)  # fmt: skip
@click.option(
    "--redeliver-unacked-after", type=click.FloatRange(0), default=0.0, metavar="SECONDS",
    help="Redeliver messages that are not acknowledged within SECONDS; 0, the default: never.",
)  # fmt: skip
@click.option(
    "--token-secret-key", envvar="GEMINGA_TOKEN_SECRET_KEY", metavar="KEY",
    help="Require tokens signed with this secret: a file, file:///PATH, data:;base64,... or base64.",
)  # fmt: skip
@click.option(
    "--token-public-key", metavar="KEY",
    help="Require tokens signed with the private key of this public key; same forms.",
)  # fmt: skip
@click.option(
    "--basic-auth", envvar="GEMINGA_BASIC_AUTH", metavar="FILE",
    help="Require users and passwords of this htpasswd file; same forms.",
)  # fmt: skip
@click.option(
    "--super-user", "super_user_roles", multiple=True, metavar="ROLE",
    help="Role with all permissions; may be repeated.",
)  # fmt: skip
@click.option(
    "--tls-certificate", type=FILE,
    help="Certificate in PEM: both ports use TLS only, unless --tls-port or --web-tls-port is given. "
    "Reloaded when it changes.",
)  # fmt: skip
@click.option("--tls-key", type=FILE, help="Private key in PEM, if not in the certificate's file.")
@click.option(
    "--tls-trust-certificates", type=FILE,
    help="CA certificates of clients, in PEM; a client certificate's common name is the role.",
)  # fmt: skip
@click.option("--tls-require-client-certificate", is_flag=True, help="Reject clients without a certificate.")
@click.option(
    "--console/--no-console", default=True, show_default=True,
    help="Serve the web console at / of the web port.",
)  # fmt: skip
@click.option(
    "--anonymous", is_flag=True,
    help="Allow unauthenticated access from other machines.",
)  # fmt: skip
def command(
    data_dir: Path | None,
    memory: bool,
    host: str,
    port: int,
    web_port: int,
    web_hosts: tuple[str, ...],
    tls_port: int | None,
    web_tls_port: int | None,
    advertised_listeners: str | None,
    internal_listener: str | None,
    advertised_address: str | None,
    sync: str,
    auto_create_topics: bool,
    max_message_size: int,
    deduplication: bool,
    retention_minutes: int | None,
    offload_location: str | None,
    offload_threshold: int | None,
    disk_limit: int | None,
    disk_low_water: int | None,
    redeliver_unacked_after: float,
    token_secret_key: str | None,
    token_public_key: str | None,
    basic_auth: str | None,
    super_user_roles: tuple[str, ...],
    tls_certificate: Path | None,
    tls_key: Path | None,
    tls_trust_certificates: Path | None,
    tls_require_client_certificate: bool,
    console: bool,
    anonymous: bool,
) -> None:
    """Run the broker until Ctrl-C or SIGTERM.

    Topics and messages are stored in --data-dir; with --memory they are lost when the broker stops.
    """
    if data_dir is not None and memory:
        raise click.UsageError("give --data-dir DIR or --memory, not both")
    if data_dir is None and not memory:
        data_dir = Path(DATA_DIR).absolute()
        click.echo(f"geminga: data folder {data_dir} (--data-dir DIR: another; --memory: none)", err=True)
    from geminga.broker.serving.standalone import run

    settings = BrokerSettings(
        host=host,
        port=port,
        web_port=web_port,
        web_hosts=web_hosts,
        tls_port=tls_port,
        web_tls_port=web_tls_port,
        advertised_listeners=tuple(advertised_listeners.split(",")) if advertised_listeners else (),
        internal_listener=internal_listener,
        advertised_address=advertised_address,
        data_dir=data_dir,
        memory=memory,
        sync=sync,  # type: ignore[arg-type]  # click.Choice allows nothing else
        auto_create_topics=auto_create_topics,
        max_message_size=max_message_size,
        deduplication=deduplication,
        redeliver_unacked_after_seconds=redeliver_unacked_after,
        token_secret_key=token_secret_key,
        token_public_key=token_public_key,
        basic_auth=basic_auth,
        super_user_roles=super_user_roles,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        tls_trust_certificates=tls_trust_certificates,
        tls_require_client_certificate=tls_require_client_certificate,
    )
    if anonymous and settings.authenticates:
        raise click.UsageError("--anonymous is for a broker without authentication; leave one of both out")
    if settings.is_beyond_loopback and not settings.authenticates and not anonymous:
        raise click.UsageError(
            f"--host {host} lets others than this machine in, and nobody is asked who they are: "
            "give --token-secret-key, --token-public-key or --basic-auth, or --anonymous if that is meant"
        )
    if retention_minutes is not None:
        settings = replace(settings, retention_minutes=retention_minutes)
    if offload_location is not None:
        settings = replace(settings, offload_location=offload_location)
    if offload_threshold is not None:
        if offload_location is None:
            raise click.UsageError("--offload-threshold needs --offload-location")
        settings = replace(settings, offload_threshold_bytes=offload_threshold)
    if disk_limit is not None:
        settings = replace(settings, disk_limit_bytes=disk_limit)
    if disk_low_water is not None:
        settings = replace(settings, disk_low_water_bytes=disk_low_water, disk_low_water_fraction=0.9)
    raise click.exceptions.Exit(run(settings, site=_console if console else None))


def _console(application: web.Application) -> Mapping[Key, RequiredPermission]:
    """Add the console's pages; called at the first web request."""
    from geminga.console.site import attach

    return attach(application)
