"""Display of file locations."""

from __future__ import annotations


def without_secrets(location: str) -> str:
    """Return a location for display, without user, password and options."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        return location
    rest = rest.partition("?")[0]
    host, slash, path = rest.partition("/")
    if ":" in host and "@" in path and "@" not in host:
        return f"{scheme}://{path.partition('@')[2]}"  # the password has a slash, as keys of S3 may
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
