"""Redirects of the REST interface: which are followed, for the credentials go along.

In a cluster a call has to come to another host: a broker redirects to the one that owns the topic, or to
another cluster. Apache Pulsar does so with 307 and the path that was asked for, and its own clients send
their credentials again, whatever the host. What is no such answer (the login page of a gateway, an address
that has moved) is not followed to another host: it would be told a secret that it cannot use.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from geminga.connection.addresses import Address, is_host
from geminga.errors import LookupError

REDIRECTS = (301, 302, 303, 307, 308)
"""Statuses that have a ``Location``."""
_OF_PULSAR = (307, 308)
"""The call is to be made again as it was."""


def followed(status: int, location: str, address: Address, path: str) -> tuple[Address, str]:
    """Address and path that an answer of ``address`` to a call of ``path`` leads to.

    Raises `LookupError` for what is not followed: anything but HTTP, a way from TLS to a plain address, and
    another host by anything but Pulsar's own redirects.
    """
    try:
        parts = urlsplit(location)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # no IPv6 address, no port
        raise _refused(location, "no HTTP address") from None
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    if not (target.isascii() and target.isprintable()) or " " in target:
        raise _refused(location, "no HTTP address")
    if not parts.netloc and location.startswith("/"):
        return address, target
    secure = parts.scheme == "https"
    if parts.scheme not in ("http", "https") or not is_host(host) or port == 0:
        raise _refused(location, "no HTTP address")
    if address.tls and not secure:
        raise _refused(location, "credentials do not go from TLS to a plain address")
    if host != address.host.lower() and not (status in _OF_PULSAR and _root(target) == _root(path)):
        raise _refused(
            location,
            f"status {status} to another host is not how a broker of a cluster leads to another, and "
            "credentials do not go there; if it is the cluster's, give that address",
        )
    return Address(host, port or (443 if secure else 80), secure), target


def _root(path: str) -> str:
    """``admin`` or ``lookup``."""
    return path.partition("?")[0].split("/", 2)[1]


def _refused(location: str, why: str) -> LookupError:
    return LookupError(f"the REST interface redirects to {location!r}: refused ({why})")
