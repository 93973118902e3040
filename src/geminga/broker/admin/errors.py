"""HTTP statuses: here the broker's own words end and Pulsar's admin API begins."""

from __future__ import annotations

from typing import Final

from geminga.broker.refusal import Refused
from geminga.broker.rules.policies import RuleBroken, Wrong
from geminga.errors import PulsarException
from geminga.wire.proto import pulsar_wire_pb2 as pb

STATUS_OF_RULE: Final = {
    Wrong.MALFORMED: 400,
    Wrong.ELSEWHERE: 403,
    Wrong.MISSING: 404,
    Wrong.NOT_TOGETHER: 406,
    Wrong.IN_THE_WAY: 409,
    Wrong.NOT_ALLOWED: 412,
}
_STATUS_OF_REFUSAL: Final[dict[int, int]] = {
    pb.TopicNotFound: 404, pb.SubscriptionNotFound: 404, pb.NotAllowedError: 409,
    pb.InvalidTopicName: 412, pb.PersistenceError: 500, pb.ServiceNotReady: 503,
}  # fmt: skip


class AdminError(PulsarException):
    """An administrative call that is refused: HTTP ``status`` and a ``reason`` for people."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


def admin_error(error: Refused | RuleBroken) -> AdminError:
    """The same refusal for an administrator."""
    if isinstance(error, RuleBroken):
        return AdminError(STATUS_OF_RULE[error.wrong], error.reason)
    return AdminError(_STATUS_OF_REFUSAL.get(error.code, 500), error.reason)
