"""Calls to admin REST, shared by the sections of an admin."""

from collections.abc import Mapping
from typing import Any, TypeVar

from geminga.client.admin.exchange import AdminResponse, Request, make_request
from geminga.client.admin.transport import AdminSender, AsyncAdminSender
from geminga.records import decode, encode

T = TypeVar("T")


class AdminCalls:
    """Calls, with their answers decoded."""

    def __init__(self, sender: AdminSender | AsyncAdminSender) -> None:
        self.sender = sender

    async def send(self, request: Request) -> AdminResponse:
        """Send a request and return the answer. Raises the error that it reports."""
        return await self.sender.send(request)

    async def call(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None
    ) -> Any:
        """Call admin REST and return the answer's JSON."""
        request = make_request(method, path, encode(body), query=query)
        return (await self.send(request)).json(request)

    async def put_null(self, method: str, path: str) -> None:
        """Send the JSON body ``null``."""
        await self.send(Request(method, f"/admin/v2/{path}", b"null"))

    async def get(self, kind: type[T], path: str, **query: Any) -> T:
        """Return the answer, decoded as the class ``kind``."""
        request = make_request("GET", path, query=query)
        found: T = decode(kind, (await self.send(request)).json(request), f"the answer to {request}")
        return found

    async def get_any(self, kind: Any, path: str, **query: Any) -> Any:
        """Return the answer, decoded as any type, for example a mapping; None if the body is empty."""
        request = make_request("GET", path, query=query)
        found = (await self.send(request)).json(request)
        return None if found is None else decode(kind, found, f"the answer to {request}")

    async def text(self, path: str) -> str:
        """Return the answer's text."""
        return (await self.send(make_request("GET", path))).text().strip()


class AdminSection:
    """Base class of an admin's sections."""

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls
