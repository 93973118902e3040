"""Authentication of a connection's peer: credentials in CONNECT, and fresh ones when they expire.

====================  ======================================  ==========================================
state                 AUTH_RESPONSE                           at expiry or the end of the challenge
====================  ======================================  ==========================================
proven                judged; must prove the same role        expired: challenged, or closed if the
                                                              client cannot answer challenges
challenged            judged; must prove the same role        closed
====================  ======================================  ==========================================

A challenge is answered in the time of `BrokerSettings.authentication_refresh_seconds` (Pulsar's
``authenticationRefreshCheckSeconds``), while the connection stays usable.
"""

import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from geminga.broker.commands.answers import frame
from geminga.broker.rules.authentication import Authenticator, Expired, Judgement, Principal, Unauthenticated
from geminga.broker.runtime.cooperative import CooperativeScheduler, Job
from geminga.broker.runtime.peer import PeerOutput
from geminga.broker.runtime.refusal import Refused
from geminga.broker.runtime.scheduler import Scheduler, Timer
from geminga.wire.frames import PROTOCOL_VERSION
from geminga.wire.proto import pulsar_wire_pb2 as pb

log = logging.getLogger("geminga.broker")

REFUSED_TEXT: Final = "Failed to authenticate"
"""Error text that peers receive for any failure; a token's expiry is added."""
_PRINTABLE_MAX: Final = 200


@dataclass(slots=True, eq=False, repr=False)
class PeerIdentity:
    """Authenticated identity of a peer. Created by the session at CONNECT; `principal` is the peer's role.

    ``connect`` and ``respond`` are parts of a job of the session: some credentials take long to verify.
    ``close(why)`` ends the connection, which comes from ``host``.
    """

    authentication: Authenticator
    scheduler: Scheduler
    slices: CooperativeScheduler
    output: PeerOutput
    refresh_seconds: float
    close: Callable[[str], None]
    host: str
    certificate_name: str | None
    principal: Principal = field(init=False)
    _challenged: bool = False
    _timer: Timer | None = None
    _refreshes: bool = False
    _method: str = ""

    def connect(self, body: pb.CommandConnect) -> Job:
        """Verify the credentials of CONNECT. Raises `Refused` if they are invalid."""
        self._refreshes = body.feature_flags.supports_auth_refresh
        self._method = body.auth_method_name or _old_name(body)
        self.principal = yield from self._judge(self._method, body.auth_data)
        if body.original_principal and body.original_principal != self.principal.role:
            # Only a proxy may act for others, and this broker trusts no proxy.
            raise Refused(pb.AuthorizationError, "Not allowed to speak for another principal")
        self._arm()

    def _judge(self, method: str, data: bytes) -> Generator[bool | None, None, Principal]:
        authentication = self.authentication
        judge = partial(
            authentication.judged, method, data, self.scheduler.now_ms, self.certificate_name, self.host
        )
        if authentication.takes_long(method, data):
            found: Judgement = yield from self.slices.wait(partial(authentication.aside, judge))
        else:
            found = judge()
        if isinstance(found, Unauthenticated):
            raise CredentialsRejected(str(found), to_peer=isinstance(found, Expired)) from None
        return found

    # --- expiry ---
    def _arm(self) -> None:
        """Set a timer to the expiry of the credentials, with short steps in case the clock is set."""
        expires = self.principal.expires_at_ms
        if expires is not None:
            wait = min(max((expires - self.scheduler.now_ms) / 1000, 0.001), self.refresh_seconds)
            self._timer = self.scheduler.after(wait, self._look, self)

    def _look(self) -> None:
        self._timer = None
        expires = self.principal.expires_at_ms
        if self._challenged:
            self.close("the credentials have expired and no fresh ones came")
        elif expires is None or expires > self.scheduler.now_ms:
            self._arm()
        else:
            self._challenge("the credentials have expired")

    def _challenge(self, why: str) -> None:
        if not self._refreshes:
            self.close(why)
            return
        self._challenged = True
        challenge = pb.AuthData(auth_method_name=self._method, auth_data=b"PulsarAuthRefresh")
        self.output.write(frame("authChallenge", protocol_version=PROTOCOL_VERSION, challenge=challenge))
        self._timer = self.scheduler.after(self.refresh_seconds, self._look, self)

    def prove_again(self) -> None:
        """Require valid credentials once more, because keys or passwords have changed."""
        if self.principal.method not in ("tls", "none") and not self._challenged:
            self.end()
            self._challenge("keys or passwords have changed")

    def respond(self, body: pb.CommandAuthResponse) -> Job:
        """Verify AUTH_RESPONSE: fresh credentials of the same role. Raises `Refused` for others."""
        shown = body.response
        fresh = yield from self._judge(shown.auth_method_name or self._method, shown.auth_data)
        if fresh.role != self.principal.role:
            raise CredentialsRejected("the fresh credentials are those of another role")
        self.principal = fresh
        self._challenged = False
        self.end()
        self._arm()

    def end(self) -> None:
        """Stop the timer after the connection was closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class CredentialsRejected(Refused):
    """Invalid credentials. The log has the reason; the peer receives only the fact, unless ``to_peer``."""

    def __init__(self, why: str, *, to_peer: bool = False) -> None:
        super().__init__(pb.AuthenticationError, f"{REFUSED_TEXT}: {why}" if to_peer else REFUSED_TEXT)
        self.why = why[:_PRINTABLE_MAX]

    def __str__(self) -> str:
        return f"{REFUSED_TEXT}: {self.why}"


def _old_name(body: pb.CommandConnect) -> str:
    """Return the method's name from the number that old clients send."""
    return "none" if body.auth_method == pb.AuthMethodNone else pb.AuthMethod.Name(body.auth_method)
