"""Web address of the broker behind a service URL, confirmed on both of its ports.

A Geminga broker sends its web addresses and an instance id in CONNECTED; the address whose HTTP answers carry
the same id is used. Of other brokers, port 8080 (8443 with TLS) belongs to port 6650 (6651) only if a lookup
there names the same broker as a lookup in the binary protocol.
"""

import asyncio
from typing import NoReturn

from geminga.client.admin.exchange import AdminSettings, Request
from geminga.client.admin.transport import AsyncAdminSender
from geminga.client.handles.context import ClientContext
from geminga.client.handles.service_lookup import HttpLookup
from geminga.connection.addresses import DEFAULT_PORTS, PLAIN_SCHEME, TLS_SCHEME, Address, ServiceUrl
from geminga.errors import ConnectError, InvalidConfiguration, InvalidUrl, PulsarException
from geminga.wire.frames import INSTANCE_HEADER
from geminga.wire.proto import pulsar_wire_pb2 as pb

LOOKED_UP = "persistent://public/default/geminga-web-address"
"""Topic that lookups name; a lookup creates no topic."""
_PATH = "/admin/v2/brokers/version"
_GIVE = "give the address: --admin-url, in programs admin_url"


async def find_admin_url(context: ClientContext) -> str:
    """Return ``http(s)://host:port`` of the broker that ``context`` connects to. Raises
    `InvalidConfiguration` if no address is confirmed as that broker's, `ConnectError` if it cannot be
    reached, and what the handshake ends with."""
    url = ServiceUrl.parse(context.settings.service_url)
    if url.http:
        return url.text
    try:
        connection = await context.service_connection()
    except ConnectError as error:
        error.args = (f"{error}; start the broker, which reports its web address, or {_GIVE}",)
        raise
    if connection.connected.instance_id:
        return await _by_instance_id(context, connection.connected)
    return await _by_lookup(context, url)


async def _by_instance_id(context: ClientContext, connected: pb.CommandConnected) -> str:
    """Return the first address whose answers carry the id of CONNECTED. Credentials are not sent."""
    host = context.service.hosts.current
    sent = connected.https_url if host.tls else connected.http_url or connected.https_url
    try:
        own = ServiceUrl.parse(sent).addresses[0]
    except InvalidUrl:
        raise InvalidConfiguration(f"the broker at {host} has no web port that can be used here") from None
    seconds = context.settings.connection_timeout_seconds
    # Another host's answer would not confirm the one that redirects to it.
    sender = AsyncAdminSender(AdminSettings(admin_url=sent, tls=context.settings.tls, redirects_max=None))
    failures: list[str] = []
    is_reached = False
    # The host that this client reached comes first; published ports of a container may be the default ones.
    for address in dict.fromkeys((Address(host.host, own.port, own.tls), own, _default(host))):
        try:
            async with asyncio.timeout(seconds):
                answer = await sender.follow(Request("GET", _PATH), (), address)
        except (PulsarException, TimeoutError) as error:
            failures.append(str(error) or f"{address.host_port} did not answer in time")
            continue
        if answer.headers.get(INSTANCE_HEADER.lower()) == connected.instance_id:
            return _text(address)
        is_reached = True
        failures.append(f"{_text(address)} belongs to another broker")
    _refuse(context, "; ".join(failures), is_reached=is_reached)


async def _by_lookup(context: ClientContext, url: ServiceUrl) -> str:
    """Return the default web ports of the hosts with the default port where a lookup gives the same
    answer."""
    default = DEFAULT_PORTS[TLS_SCHEME if url.tls else PLAIN_SCHEME]
    hosts = [one for one in url.addresses if one.port == default]
    if not hosts:
        _refuse(context, f"it does not send one, and its port is not {default}", is_reached=True)
    try:
        broker = (await context.lookup(LOOKED_UP)).broker
    except PulsarException as error:
        _refuse(context, str(error), is_reached=not error.retriable)

    async def confirmed(address: Address) -> str | None:
        """Return why an address is not taken; None if it is confirmed."""
        web = HttpLookup(context.pool, context.settings, ServiceUrl.parse(_text(address)), 0)
        try:
            async with asyncio.timeout(context.settings.connection_timeout_seconds):
                found = (await web.place(LOOKED_UP, 0)).broker
        except ConnectError as error:
            unreached.append(address)
            return str(error)
        except (PulsarException, TimeoutError) as error:
            return str(error) or f"{address.host_port} did not answer in time"
        return None if found == broker else f"{_text(address)} belongs to another broker, {found}"

    unreached: list[Address] = []
    addresses = [_default(one) for one in hosts]
    failures = await asyncio.gather(*map(confirmed, addresses))
    good = [one for one, failure in zip(addresses, failures, strict=True) if failure is None]
    if not good:
        _refuse(context, "; ".join(filter(None, failures)), is_reached=len(unreached) < len(addresses))
    return _text(*good)


def _refuse(context: ClientContext, why: str, *, is_reached: bool) -> NoReturn:
    kind = InvalidConfiguration if is_reached else ConnectError
    raise kind(
        f"the web address of the broker at {context.settings.service_url} is not known ({why}); {_GIVE}"
    )


def _default(host: Address) -> Address:
    return Address(host.host, DEFAULT_PORTS["https" if host.tls else "http"], host.tls)


def _text(*addresses: Address) -> str:
    hosts = ",".join(address.host_port for address in addresses)
    return f"{'https' if addresses[0].tls else 'http'}://{hosts}"
