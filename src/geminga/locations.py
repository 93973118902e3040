"""Form and display of file locations."""

import re

from geminga.config import refuse

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/.*)", re.DOTALL)
_MISTYPED = re.compile(r"(s3[an]?|gc?s|abfss?|wasbs?|hdfs|dbfs|file):", re.IGNORECASE)


def url_parts(location: str) -> tuple[str, str] | None:
    """Return the scheme in lower case and the rest of a URL, from its first slash; None for a path.

    Raises `InvalidConfiguration` for an empty text, and for ``~`` and ``s3:bucket``, which would be folders
    of these names.
    """
    if match := _URL.match(location):
        return match[1].lower(), match[2]
    if match := _MISTYPED.match(location):
        refuse("location", location, f"a URL such as {match[0]}//..., or a path such as ./{location}")
    if not location or location.split("/")[0] == "~":
        refuse("location", location, "a URL, or a path without ~, which only shells expand")
    return None


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
