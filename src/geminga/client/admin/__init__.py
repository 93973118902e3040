"""Admin REST: `geminga.Admin` and `geminga.asyncio.Admin`, made of one source."""

from __future__ import annotations

from typing import Any

from geminga.client.admin.exchange import topic_path as topic_path


def admin(admin_url: str, method: str, path: str, body: Any = None, *, timeout_seconds: float = 30.0) -> Any:
    """One call of `geminga.Admin.call`, for scripts and tests that make no other."""
    from geminga.client.admin.sync.admin import Admin

    with Admin(admin_url, operation_timeout_seconds=timeout_seconds) as one:
        return one.call(method, path, body)
