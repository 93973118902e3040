"""Locations of files, as they are shown."""

from __future__ import annotations


def without_secrets(location: str) -> str:
    """A location to be shown: user, password and options are left out."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        return location
    rest = rest.partition("?")[0]
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
