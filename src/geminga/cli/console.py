"""``geminga console``: web console for an Apache Pulsar or another Geminga broker."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from geminga.cli.common import PORT, discard_output
from geminga.cli.connecting import ConnectingCommand, connecting
from geminga.cli.contexts import Contexts, read_contexts
from geminga.client.cluster import Cluster

if TYPE_CHECKING:
    from geminga.broker.settings import BrokerSettings
    from geminga.console.remote import Remote


@click.command("console", cls=ConnectingCommand)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=PORT, default=8085, show_default=True, help="Port to listen on; 0: a free one.")
@click.option(
    "--web-host", "web_hosts", multiple=True,
    help="Further host name to answer to; may be repeated, '*' for any.",
)  # fmt: skip
@click.option(
    "--mask", "masked", metavar="TOPIC=NAME,...", multiple=True,
    help="Fields and properties to show as •••, such as shop/web/orders*=card,email; may be repeated.",
)  # fmt: skip
@click.option(
    "--also", "others", metavar="NAME", multiple=True,
    help="Further saved cluster to choose from, see `geminga context`; may be repeated.",
)  # fmt: skip
@click.option("--sign-in-issuer", metavar="URL", help="OpenID Connect issuer at which people sign in.")
@click.option("--sign-in-client-id", metavar="ID", help="Client id of the console at the issuer.")
@click.option("--sign-in-client-secret", metavar="FILE", help="File with the client secret, if it has one.")
@click.option(
    "--sign-in-scopes", default="openid email", show_default=True, help="Scopes that a sign-in requests."
)
@connecting
def command(
    host: str,
    port: int,
    web_hosts: tuple[str, ...],
    masked: tuple[str, ...],
    others: tuple[str, ...],
    cluster: Cluster,
    **sign_in: Any,
) -> None:
    """Serve a web console for a cluster, until Ctrl-C.

    A Geminga broker serves the console at / of its web port; use this command for Apache Pulsar, or if that
    port cannot be reached. Browsers that send no token act with the credentials given here; without
    credentials the console asks for a token. Addresses and credentials of --also stay in this process.
    """
    from geminga.broker.admin.masking import Masks
    from geminga.broker.settings import BrokerSettings
    from geminga.console.remote import Remote

    settings = BrokerSettings(
        host=host, memory=True, port=0, web_port=port, web_hosts=web_hosts, masked_fields=masked,
        **sign_in,
    )  # fmt: skip
    contexts = read_contexts() if others else Contexts()
    own = [name for name, fields in contexts.by_name.items() if fields == cluster.as_dict()]
    clusters = {own[0] if own else cluster.admin_url or cluster.service_url: cluster}
    clusters |= {name: Cluster.from_dict(contexts.get(name)) for name in others if name not in own}
    if settings.is_beyond_loopback and any(each.auth_plugin is not None for each in clusters.values()):
        raise click.UsageError(
            f"--host {host} accepts other machines, which would act with your credentials: "
            "leave one of both out"
        )
    masks = Masks(masked)
    asyncio.run(_serve({name: Remote(each, masks) for name, each in clusters.items()}, settings))


async def _serve(remotes: Mapping[str, Remote], settings: BrokerSettings) -> None:
    from aiohttp import web

    from geminga.broker.admin.redacted_log import unquoted
    from geminga.console.remote import make_application

    log = logging.getLogger("geminga.console")
    runner = web.AppRunner(
        make_application(remotes, settings),
        access_log=None,
        logger=unquoted(log, log.warning),
        shutdown_timeout=2.0,
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.host, settings.web_port)
        await site.start()
        host, port = runner.addresses[0][:2]
        shown = f"[{host}]" if ":" in host else host
        try:
            urls = " and ".join(each.url for each in remotes.values())
            click.echo(f"console of {urls}: http://{shown}:{port}/")
        except OSError:  # a full disk, a closed pipe: the console is served all the same
            discard_output()
        asked = asyncio.Event()
        for name in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(name, asked.set)
        await asked.wait()
    finally:
        await runner.cleanup()
