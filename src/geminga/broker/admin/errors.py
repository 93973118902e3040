"""Mapping of the broker's errors to HTTP statuses of Pulsar's admin API."""

from typing import Final

from geminga.broker.rules.policies import InvalidRequest, RuleViolation
from geminga.broker.runtime.refusal import Refused
from geminga.errors import PulsarException
from geminga.wire.proto import pulsar_wire_pb2 as pb

STATUS_OF_RULE: Final = {
    InvalidRequest.MALFORMED: 400,
    InvalidRequest.ELSEWHERE: 403,
    InvalidRequest.MISSING: 404,
    InvalidRequest.NOT_TOGETHER: 406,
    InvalidRequest.IN_THE_WAY: 409,
    InvalidRequest.NOT_ALLOWED: 412,
}
_STATUS_OF_REFUSAL: Final[dict[int, int]] = {
    pb.TopicNotFound: 404, pb.SubscriptionNotFound: 404, pb.TransactionNotFound: 404,
    pb.NotAllowedError: 409, pb.IncompatibleSchema: 409, pb.InvalidTxnStatus: 409,
    pb.InvalidTopicName: 412, pb.PersistenceError: 500, pb.ServiceNotReady: 503,
}  # fmt: skip


class AdminRefusal(PulsarException):
    """Refused administrative call: HTTP ``status`` and a readable ``reason``."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


def admin_error(error: Refused | RuleViolation) -> AdminRefusal:
    """Return the same refusal as an `AdminRefusal`."""
    if isinstance(error, RuleViolation):
        return AdminRefusal(STATUS_OF_RULE[error.wrong], error.reason)
    return AdminRefusal(_STATUS_OF_REFUSAL.get(error.code, 500), error.reason)
