"""Redirects of the REST API: only some are followed, as the credentials are sent along.

In a cluster a broker redirects a call to the broker that owns the topic, or to another cluster. Apache Pulsar
does so with status 307 and an unchanged path, and its own clients send their credentials to any such host.
Another redirect (the login page of a gateway, a moved address) is not followed to another host, which would
receive a secret for nothing.
"""

from urllib.parse import urlsplit

from geminga.connection.addresses import Address, is_host
from geminga.errors import LookupError

REDIRECTS = (301, 302, 303, 307, 308)
"""Statuses with a ``Location``."""
_OF_PULSAR = (307, 308)
"""Statuses that repeat the call unchanged."""


def followed(status: int, location: str, address: Address, path: str) -> tuple[Address, str]:
    """Return the address and path that an answer of ``address`` to a call of ``path`` redirects to. Raises
    `LookupError` for a redirect that is not followed: to anything but HTTP, from TLS to a plain address, or
    to another host by anything but Pulsar's own redirects."""
    try:
        parts = urlsplit(location)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # malformed IPv6 address or port
        raise _refused(location, "not an HTTP address") from None
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    if not (target.isascii() and target.isprintable()) or " " in target:
        raise _refused(location, "not an HTTP address")
    if not parts.netloc and location.startswith("/"):
        return address, target
    secure = parts.scheme == "https"
    if parts.scheme not in ("http", "https") or not is_host(host) or port == 0:
        raise _refused(location, "not an HTTP address")
    if address.tls and not secure:
        raise _refused(location, "credentials are not sent from TLS to a plain address")
    if host != address.host.lower() and not (status in _OF_PULSAR and _root(target) == _root(path)):
        raise _refused(
            location,
            f"status {status} to another host is not the redirect of a broker to another, and "
            "credentials are not sent there; if it belongs to the cluster, use that address",
        )
    return Address(host, port or (443 if secure else 80), secure), target


def _root(path: str) -> str:
    """Return the first segment of the path: ``admin`` or ``lookup``."""
    return path.partition("?")[0].split("/", 2)[1]


def _refused(location: str, why: str) -> LookupError:
    return LookupError(f"the REST API redirects to {location!r}: refused ({why})")
