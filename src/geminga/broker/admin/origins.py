"""Web requests an administrator may have made: a page open in a browser must not give commands.

Two ways lead from a foreign page to a broker on the reader's own machine:

* *Cross-site requests*: the page sends to the broker's address. Browsers name the page in ``Origin`` or
  ``Sec-Fetch-Site``; tools and clients send neither.
* *DNS rebinding*: the page's own name is made to point to the broker's address, so that to the browser
  everything is one site. The ``Host`` header reveals this: it still has the page's name.

So a request is served only under names that cannot be registered in the public DNS for private
purposes: addresses as numbers, names without a dot, the top-level names that are reserved for private
use, and the names that this broker is known to have (its settings' and the machine's own).
"""

import ipaddress
import re
import socket
from collections.abc import Mapping

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.settings import BrokerSettings

PRIVATE_TOP_LEVELS = frozenset({"localhost", "local", "internal", "test", "lan", "intranet", "private"})
"""Reserved by RFC 6761, RFC 6762 and ICANN, or never delegated: no page can be served under them."""
_CALLBACK = re.compile(r"(/cluster/[^/]+)?/console/callback")
"""Path to which the issuer of company accounts, another site, sends a browser."""
PRIVATE_ENDINGS = (".home.arpa", ".cluster.local")


class WebHosts:
    """The host names under which the web port answers."""

    def __init__(self, settings: BrokerSettings) -> None:
        named = {settings.host, settings.advertised_address or "", *settings.web_hosts}
        self._any = "*" in settings.web_hosts
        self._named = {_plain(name) for name in named if name}

    def check(self, headers: Mapping[str, str], path: str) -> None:
        """Raise `AdminRefusal` 403 for a page of another site, 421 for a name that is not this broker's."""
        host, origin = headers.get("Host", ""), headers.get("Origin")
        foreign = origin is not None and origin.partition("://")[2] != host
        from_elsewhere = headers.get("Sec-Fetch-Site") == "cross-site" and not _CALLBACK.fullmatch(path)
        if foreign or from_elsewhere:
            raise AdminRefusal(403, f"requests from pages of {origin or 'another site'} are refused")
        if not self._any and not self.is_ours(host):
            raise AdminRefusal(
                421,
                f"the request names the host {host[:255]!r}, which is not known to be this broker's; "
                "use its address, or allow the name with --web-host",
            )

    def is_ours(self, host: str) -> bool:
        """Whether ``host``, a name or an address with or without a port, can only mean this broker."""
        name = _plain(_without_port(host))
        if not name or "." not in name or name in self._named or _is_address(name):
            return True
        if name.rpartition(".")[2] in PRIVATE_TOP_LEVELS or name.endswith(PRIVATE_ENDINGS):
            return True
        return name == _plain(socket.gethostname())  # not getfqdn, which may wait for a name server


def _plain(name: str) -> str:
    return name.strip("[]").rstrip(".").lower()


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0] if host.count(":") == 1 else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
