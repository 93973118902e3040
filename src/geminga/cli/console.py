"""``geminga console``: web console for an Apache Pulsar or another Geminga broker."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING

import click

from geminga.cli.common import PORT, discard_output
from geminga.cli.connecting import ConnectingCommand, connecting
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
@connecting
def command(host: str, port: int, web_hosts: tuple[str, ...], cluster: Cluster) -> None:
    """Serve a web console for a cluster, until Ctrl-C.

    A Geminga broker serves the console at / of its web port; use this command for Apache Pulsar, or if that
    port cannot be reached. Browsers that send no token act with the credentials given here; without
    credentials the console asks for a token.
    """
    from geminga.broker.settings import BrokerSettings
    from geminga.console.remote import Remote

    settings = BrokerSettings(host=host, memory=True, port=0, web_port=port, web_hosts=web_hosts)
    if cluster.auth_plugin is not None and settings.is_beyond_loopback:
        raise click.UsageError(
            f"--host {host} accepts other machines, which would act with your credentials: "
            "leave one of both out"
        )
    asyncio.run(_serve(Remote(cluster), settings))


async def _serve(remote: Remote, settings: BrokerSettings) -> None:
    from aiohttp import web

    from geminga.broker.admin.redacted_log import unquoted
    from geminga.console.remote import make_application

    log = logging.getLogger("geminga.console")
    runner = web.AppRunner(
        make_application(remote, settings),
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
            click.echo(f"console of {remote.url}: http://{shown}:{port}/")
        except OSError:  # a full disk, a closed pipe: the console is served all the same
            discard_output()
        asked = asyncio.Event()
        for name in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(name, asked.set)
        await asked.wait()
    finally:
        await runner.cleanup()
