"""Rate-limited log of peers' faults, and the log of audited requests.

A line for each refused or dropped connection helps to find a cause. A client that connects ten thousand times
a second would fill the disk with them: so each period has a limit of lines, and the number of suppressed
lines is logged at its end.
"""

import logging
import re
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote

from geminga._util.loggers import AUDIT
from geminga.broker.runtime.event_log import BrokerEvent
from geminga.broker.runtime.scheduler import Scheduler
from geminga.wire.proto import pulsar_wire_pb2 as pb

log = logging.getLogger("geminga.broker")

LINES_MAX: Final = 50
PERIOD_SECONDS: Final = 10.0
"""At most LINES_MAX lines are written in PERIOD_SECONDS."""


class RateLimitedLogger:
    """Logger for the faults of all peers of a broker."""

    def __init__(self, scheduler: Scheduler, logger: logging.Logger = log) -> None:
        self._scheduler = scheduler
        self._logger = logger
        self._until = float("-inf")
        self._left = 0
        self._suppressed = 0
        self.total = 0
        """Lines since the start, written or not."""

    def __repr__(self) -> str:
        return "rate-limited log of peers' faults"

    def log(self, line: str, *values: object, level: int = logging.WARNING) -> None:
        """Write a line, as `logging` formats it, unless the limit is reached."""
        self.total += 1
        now = self._scheduler.now
        if now >= self._until:
            self._until, self._left = now + PERIOD_SECONDS, LINES_MAX
        if self._left:
            self._left -= 1
            self._logger.log(level, line, *values)
            return
        if not self._suppressed:
            self._scheduler.at(self._until, self._log_suppressed, self)
        self._suppressed += 1

    def _log_suppressed(self) -> None:
        count, self._suppressed = self._suppressed, 0
        self._logger.warning("%d more log lines of this kind were suppressed", count)


class AuditedRequest(NamedTuple):
    """Change or refusal, as the log shows it. ``status`` is HTTP's, a ``ServerError``, or ``ok``."""

    role: str
    connection: str
    method: str
    path: str
    status: str

    def __str__(self) -> str:
        request = f"{self.status} {self.method} {self.path or '-'}"
        text = f"{request} by {self.role or '-'} from {self.connection}"
        return text if text.isprintable() else ascii(text)

    @property
    def log_fields(self) -> dict[str, str]:
        """Return the fields for logs in JSON."""
        return self._asdict()

    @property
    def who(self) -> str:
        """Return the role, and the host without the port."""
        return who_of({"connection": self.connection, "role": self.role})


_COMMAND: Final = re.compile(r"((?:non-)?persistent://[^/]+/[^/]+/[^/]+)(?:/(.+))?\Z")
"""Topic and subscription of an audited command."""
_REQUEST: Final = re.compile(
    r"/admin/v2/((?:non-)?persistent|schemas)/([^/]+/[^/]+/[^/]+)(?:/subscription/([^/]+))?(?:/(.*))?\Z"
)
"""Domain, topic, subscription and the rest of a path of admin REST."""
_PARTITION: Final = re.compile(r"-partition-\d+(?=/|\Z)")
"""Suffix of a partition: changes of all partitions are one event."""
_DONE: Final = {
    "create": "created the topic", "subscribe": "created the subscription",
    "unsubscribe": "deleted the subscription", "seek": "reset the position",
    "getOrCreateSchema": "registered a schema", "resetcursor": "reset the position",
    "skip": "skipped messages", "skip_all": "skipped the backlog", "expireMessages": "expired messages",
    "redeliver": "had messages redelivered", "unload": "unloaded the topic",
    "truncate": "deleted all messages",
    "terminate": "terminated the topic", "compaction": "started a compaction",
    "message": "published a message",
}  # fmt: skip
"""Descriptions of changes by the name of the command, or by the first part of the rest of a path."""


def _change(request: AuditedRequest) -> tuple[str, str, str]:
    """Return topic, subscription and a description of a successful change."""
    command = _COMMAND.match(_PARTITION.sub("", request.path))
    if command is not None:
        return command[1], command[2] or "", _DONE.get(request.method, request.method)
    found = _REQUEST.match(_PARTITION.sub("", request.path))
    verb = {"DELETE": "deleted", "PUT": "created"}.get(request.method, "set")
    if found is None:
        return "", "", f"{'set' if verb == 'created' else verb} {request.path.removeprefix('/admin/v2/')}"
    domain, topic, subscription, rest = (unquote(each or "") for each in found.groups())
    what = rest.partition("/")[0]
    if domain == "schemas":
        domain, text = "persistent", f"{verb if verb == 'deleted' else 'registered'} a schema"
    elif what in _DONE:
        text = _DONE[what]
    elif what in ("", "partitions"):
        text = f"{verb} the {'subscription' if subscription else 'topic'}"
    else:
        text = f"{'removed' if verb == 'deleted' else 'set'} {what}"
    return f"{domain}://{topic}", subscription, text


def who_of(peer: Mapping[str, str]) -> str:
    """Return the role of a peer and its host, without the port."""
    host = peer["connection"].rpartition(":")[0].lstrip("/") or peer["connection"]
    return f"{peer['role']} from {host}" if peer.get("role") else host


class AuditLog:
    """Log of changes, which are all written, and of refusals, whose rate is limited.

    Changes that succeeded are also events of the scheduler's event log.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._logger = logging.getLogger(AUDIT)
        self._refusals = RateLimitedLogger(scheduler, self._logger)
        self.failures: Counter[str] = Counter(binary=0, web=0, tls=0)
        """Failed logins on the binary and the web port, and failed TLS handshakes, since the start."""

    def add(self, request: AuditedRequest, *, refused: bool) -> None:
        """Log a change, or a request ``refused`` for lack of credentials or permissions."""
        if refused:
            self._refusals.log("%s", request)
        else:
            self._logger.info("%s", request)
            if request.status == "ok" or request.status.startswith("2"):
                topic, subscription, text = _change(request)
                now_ms = self._scheduler.now_ms
                event = BrokerEvent(
                    "changed", topic, subscription, 0, "", text, now_ms, now_ms, who=request.who
                )
                self._scheduler.event_log.add(event)

    def connected(self, peer: Mapping[str, str], client: str) -> None:
        """Add an event: a peer has connected with a ``client`` of this name."""
        now_ms = self._scheduler.now_ms
        event = BrokerEvent("connected", "", "", 1, "connection", client, now_ms, now_ms, who=who_of(peer))
        self._scheduler.event_log.add(event)

    def command(self, peer: Mapping[str, str], method: str, path: str, refusal: int | None = None) -> None:
        """Log a command of a peer with a ``connection`` and a ``role``; ``refusal`` is a ServerError."""
        status = "ok" if refusal is None else pb.ServerError.Name(refusal)
        request = AuditedRequest(peer.get("role", ""), peer["connection"], method, path[:500], status)
        self.add(request, refused=refusal is not None)
