"""Service URLs and broker addresses.

A service URL is ``pulsar://host[:port][,host[:port]...]``, or the same with ``pulsar+ssl``. Several hosts are
alternatives: a client tries them in turn. With ``http`` or ``https`` the client looks topics up over the REST
API, and uses the binary protocol with the brokers in its answers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from geminga.errors import InvalidUrl

PLAIN_SCHEME = "pulsar"
TLS_SCHEME = "pulsar+ssl"
DEFAULT_PORTS = {PLAIN_SCHEME: 6650, TLS_SCHEME: 6651, "http": 8080, "https": 8443}
TLS_SCHEMES = (TLS_SCHEME, "https")
HTTP_SCHEMES = ("http", "https")
_FORM = "use pulsar://host[:port][,host[:port]...], pulsar+ssl://host[:port], or http(s)://host[:port]"


class Address(NamedTuple):
    """Address of a broker. IPv6 hosts are stored without brackets."""

    host: str
    port: int
    tls: bool = False

    @property
    def host_port(self) -> str:
        """``host:port`` with brackets around an IPv6 host, as in ``proxy_to_broker_url``."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{TLS_SCHEME if self.tls else PLAIN_SCHEME}://{self.host_port}"


class ServiceUrl(NamedTuple):
    """A parsed service URL; ``addresses`` has at least one element, in the order written.

    ``http``: whether the addresses are those of the REST API.
    """

    text: str
    tls: bool
    addresses: tuple[Address, ...]
    http: bool = False

    @staticmethod
    def parse(text: str) -> ServiceUrl:
        """Parse a service URL. Raises `InvalidUrl` naming the URL, the mistake, and the allowed forms."""
        if not isinstance(text, str) or not text.strip():
            raise InvalidUrl(f"service URL {text!r} is empty or not text; {_FORM}")
        scheme, separator, rest = text.strip().partition("://")
        scheme = scheme.lower()
        if not separator:
            raise InvalidUrl(f"service URL {text!r} has no scheme; {_FORM}")
        if scheme not in DEFAULT_PORTS:
            raise InvalidUrl(f"service URL {text!r} has the scheme {scheme!r}; {_FORM}")
        hosts = rest.rstrip("/")
        if "/" in hosts or "?" in hosts or "#" in hosts:
            raise InvalidUrl(f"service URL {text!r} has a path after the port; {_FORM}")
        addresses = tuple(_parse_host(text, part, scheme) for part in hosts.split(","))
        return ServiceUrl(text.strip(), scheme in TLS_SCHEMES, addresses, scheme in HTTP_SCHEMES)


def _parse_host(url: str, part: str, scheme: str) -> Address:
    part = part.strip()
    if "@" in part:
        raise InvalidUrl(
            f"service URL of host {part.rpartition('@')[2]!r} holds user data; credentials go into the "
            "client's authentication argument"
        )
    default = DEFAULT_PORTS[scheme]
    if part.startswith("["):
        host, bracket, tail = part[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise InvalidUrl(f"service URL {url!r}: {part!r} is not [ipv6]:port; {_FORM}")
        port_text = tail[1:] if tail else None
    elif part.count(":") > 1:
        raise InvalidUrl(f"service URL {url!r}: write an IPv6 address in brackets, [{part}]:{default}")
    else:
        host, colon, tail = part.partition(":")
        port_text = tail if colon else None
    if not is_host(host):
        raise InvalidUrl(
            f"service URL {url!r} has an empty host, one with spaces, or one that no resolver accepts: "
            f"{host!r}; {_FORM}"
        )
    port = default
    if port_text is not None:
        if not (port_text.isascii() and port_text.isdigit() and 1 <= int(port_text) <= 65535):
            raise InvalidUrl(f"service URL {url!r} has the port {port_text!r}; allowed: 1 to 65535")
        port = int(port_text)
    return Address(host, port, scheme in TLS_SCHEMES)


def is_host(text: str) -> bool:
    """Return whether a resolver can look up a host name: otherwise it raises `UnicodeError`, not the error
    for an unknown host."""
    if not text or not text.isprintable() or " " in text:
        return False
    if not text.isascii():
        try:
            text = text.encode("idna").decode()
        except UnicodeError:
            return False
    return all(0 < len(label) < 64 for label in text.removesuffix(".").split("."))


@lru_cache(maxsize=1024)
def parse_broker_url(text: str) -> Address:
    """Return the address in a broker's answer (``brokerServiceUrl``): exactly one host. Raises `InvalidUrl`
    as `ServiceUrl.parse` does."""
    url = ServiceUrl.parse(text)
    if url.http:
        raise InvalidUrl(f"broker URL {text!r} is an address of the REST API; {_FORM}")
    if len(url.addresses) != 1:
        raise InvalidUrl(f"broker URL {text!r} names {len(url.addresses)} hosts; one is expected")
    return url.addresses[0]
