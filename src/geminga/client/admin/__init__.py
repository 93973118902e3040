"""Admin REST: `geminga.asyncio.Admin`, and `geminga.Admin`, which runs its methods for threads."""

from typing import Any

from geminga.client.admin.exchange import topic_path as topic_path


def admin(admin_url: str, method: str, path: str, body: Any = None, *, timeout_seconds: float = 30.0) -> Any:
    """Make one call of `geminga.Admin.call`, for scripts and tests."""
    from geminga.client.admin.sync import Admin

    with Admin(admin_url, operation_timeout_seconds=timeout_seconds) as one:
        return one.call(method, path, body)
