"""Advertised listeners: the addresses of the broker for clients, by listener name.

One broker is reached in several ways: by other machines of a cluster, through a load balancer, from a laptop.
Each way is a listener with a name; a client that names one in its look-ups (``listener_name``) receives its
addresses, others those of the internal listener. Names and notation are Apache Pulsar's
(``advertisedListeners``): ``internal:pulsar://10.0.0.5:6650,external:pulsar+ssl://pulsar.example.org:6651``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from geminga.config import refuse
from geminga.errors import InvalidConfiguration

_FIELD_OF_SCHEME: Final = {"pulsar": "pulsar", "pulsar+ssl": "pulsar_tls", "http": "http", "https": "https"}
_URL = re.compile(
    r"([-.\w]+):((pulsar|pulsar\+ssl|http|https)://([-.%\w]+|\[[0-9a-fA-F:.%]+\]):(\d{1,5}))/?\Z", re.ASCII
)
_NAME_SHOWN_MAX: Final = 100
_FORM: Final = "NAME:URL, where the URL is pulsar://, pulsar+ssl://, http:// or https:// with host and port"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerAddresses:
    """URLs for clients, None for a protocol that is not offered."""

    pulsar: str | None = None
    pulsar_tls: str | None = None
    http: str | None = None
    https: str | None = None

    def or_else(self, other: ListenerAddresses) -> ListenerAddresses:
        """Return these addresses with missing web addresses taken from ``other``."""
        if self.http or self.https:
            return self
        return replace(self, http=other.http, https=other.https)


@lru_cache(maxsize=64)
def parse_listeners(listeners: tuple[str, ...]) -> Mapping[str, ListenerAddresses]:
    """Parse the addresses of each listener, the first one first. Raises `InvalidConfiguration`."""
    found: dict[str, ListenerAddresses] = {}
    owners: dict[str, str] = {}
    for text in listeners:
        match = _URL.match(text.strip()) if isinstance(text, str) else None
        if match is None or not 0 < int(match[5]) < 65_536:
            refuse("advertised_listeners", text, _FORM)
        name, url, scheme, host, port = match.groups()
        known = found.get(name, ListenerAddresses())
        field = _FIELD_OF_SCHEME[scheme]
        if getattr(known, field) is not None:
            raise InvalidConfiguration(
                f"advertised_listeners: listener {name!r} has two addresses with {scheme}://: "
                f"{getattr(known, field)} and {url}"
            )
        place = f"{host}:{port}".lower()
        if owners.setdefault(place, name) != name:
            raise InvalidConfiguration(
                f"advertised_listeners: {place} is of listener {owners[place]!r} and of {name!r}; "
                "each listener has addresses of its own"
            )
        found[name] = replace(known, **{field: url})
    for name, addresses in found.items():
        if addresses.pulsar is None and addresses.pulsar_tls is None:
            raise InvalidConfiguration(
                f"advertised_listeners: listener {name!r} has no pulsar:// or pulsar+ssl:// address"
            )
    return MappingProxyType(found)


def no_listener(name: str | None, listeners: tuple[str, ...]) -> str:
    """Return the error text for a client that names an unknown listener."""
    known = ", ".join(parse_listeners(listeners)) or "none (advertised_listeners)"
    return f"the broker has no listener {(name or '')[:_NAME_SHOWN_MAX]!r}; it has: {known}"
