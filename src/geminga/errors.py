"""Every error that Geminga raises.

The class names are those of ``pulsar-client``'s ``pulsar.exceptions``, so that ``except`` clauses
written for it keep working. The tree::

    PulsarException
    ├── UsageError            the caller's mistake: a wrong argument, URL, name, option, or call order
    ├── PeerError             the other side broke the protocol; only its connection is closed
    ├── ServerReportedError   the broker answered with an error; one class for each ``ServerError`` code
    ├── TransientError        time-outs and lost connections
    └── StoreError            the broker's store: damaged, locked, full, or stopped after a failed sync

``retriable`` on the class says whether the same call may succeed later without a change by the
caller. Every class pickles and carries a message that names what to do.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from geminga._util.choices import Choice


class Result(Choice):
    """Outcome of an operation, with ``pulsar-client``'s names and numbers. ``Result.Ok`` is 0."""

    Ok = 0
    UnknownError = 1
    InvalidConfiguration = 2
    Timeout = 3
    LookupError = 4
    ConnectError = 5
    ReadError = 6
    AuthenticationError = 7
    AuthorizationError = 8
    ErrorGettingAuthenticationData = 9
    BrokerMetadataError = 10
    BrokerPersistenceError = 11
    ChecksumError = 12
    ConsumerBusy = 13
    NotConnected = 14
    AlreadyClosed = 15
    InvalidMessage = 16
    ConsumerNotInitialized = 17
    ProducerNotInitialized = 18
    ProducerBusy = 19
    TooManyLookupRequestException = 20
    InvalidTopicName = 21
    InvalidUrl = 22
    ServiceUnitNotReady = 23
    OperationNotSupported = 24
    ProducerBlockedQuotaExceededError = 25
    ProducerBlockedQuotaExceededException = 26
    ProducerQueueIsFull = 27
    MessageTooBig = 28
    TopicNotFound = 29
    SubscriptionNotFound = 30
    ConsumerNotFound = 31
    UnsupportedVersionError = 32
    TopicTerminated = 33
    CryptoError = 34
    IncompatibleSchema = 35
    ConsumerAssignError = 36
    CumulativeAcknowledgementNotAllowedError = 37
    TransactionCoordinatorNotFoundError = 38
    InvalidTxnStatusError = 39
    NotAllowedError = 40
    TransactionConflict = 41
    TransactionNotFound = 42
    ProducerFenced = 43
    MemoryBufferIsFull = 44
    Interrupted = 45


def result_of(error: BaseException | None) -> Result:
    """Return the result of an exception: that of its class or of the nearest base class with one."""
    if error is None:
        return Result.Ok
    if not isinstance(error, PulsarException):
        return Result.UnknownError  # Python's own LookupError is not ours
    if error.told_as is not None:
        return error.told_as
    for cls in type(error).__mro__:
        member = Result.__members__.get(cls.__name__)
        if member is not None:
            return member
    return Result.UnknownError


class PulsarException(Exception):
    """Base of all errors: catch it for any failure of a Pulsar call. ``retriable``: whether another try may
    succeed."""

    retriable: ClassVar[bool] = False
    told_as: ClassVar[Result | None] = None
    """The `Result`, where it differs from the class's name."""

    def __init__(self, *arguments: object, result: Result | None = None, msg: str | None = None) -> None:
        """``PulsarException(text)``, or ``PulsarException(result, msg)`` as in ``pulsar.asyncio``."""
        super().__init__(*(each for each in (result, *arguments, msg) if each is not None))

    def error(self) -> Result:
        """Return the error's `Result`: the one it was made with, else that of its class."""
        first = self.args[0] if self.args else None
        return first if isinstance(first, Result) else result_of(self)

    def __str__(self) -> str:
        if not self.args or not isinstance(self.args[0], Result):
            return super().__str__()
        result, *details = self.args
        return ": ".join([f"{int(result)} {result.name}", *(str(detail) for detail in details if detail)])


# --- the caller's mistakes -----------------------------------------------------------------------


class UsageError(PulsarException):
    """The call is not possible as made."""


class InvalidConfiguration(UsageError, ValueError):
    """A setting has a value outside its range; the message names field, value and what is allowed."""


class InvalidUrl(UsageError, ValueError):
    """The service URL is not ``pulsar://host[:port]`` or ``pulsar+ssl://host[:port]``."""


class InvalidTopicName(UsageError, ValueError):
    """The topic name is not ``[{persistent|non-persistent}://tenant/namespace/]topic``."""


class InvalidMessage(UsageError, ValueError):
    """A message field has a value that the protocol cannot carry."""


class MessageTooBig(UsageError, ValueError):
    """The message is larger than the broker's ``max_message_size``. Send less, or with
    ``chunking_enabled``."""


class AlreadyClosed(UsageError):
    """The client, producer, consumer or reader was closed before this call. Open a new one."""


class OperationNotSupported(UsageError):
    """The operation does not exist for this kind of handle or broker; the message names the alternative."""


class NotAMessage(OperationNotSupported, TypeError):
    """An object that is neither a message nor an id was to be acknowledged."""


class CumulativeAcknowledgementNotAllowedError(UsageError):
    """Cumulative acknowledgement on a Shared or Key_Shared subscription: acknowledge each message there."""


class ProducerNotInitialized(UsageError):
    """The producer was used before its creation finished: wait for ``create_producer``."""


class ConsumerNotInitialized(UsageError):
    """The consumer was used before its creation finished: wait for ``subscribe``."""


class ProducerQueueIsFull(UsageError):
    """``max_pending_messages`` wait for their receipts and ``block_if_queue_full`` is off. Wait, and send
    again."""

    retriable = True


class SendManyFailed(PulsarException):
    """Some messages of a `send_many` were refused or failed; all others are stored, or still in flight.

    ``failures`` maps the index in ``values`` to the error.
    """

    def __init__(self, count: int = 0, failures: Mapping[int, Exception] | None = None) -> None:
        self.count = count
        self.failures = dict(failures or {})
        first = next(iter(self.failures), None)
        told = "" if first is None else f"; the first is values[{first}]: {self.failures[first]}"
        super().__init__(f"{len(self.failures)} of {count} messages failed{told}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.count, self.failures)


class TransactionHasOperationFailed(UsageError):
    """A send or an acknowledgement in the transaction failed: it was aborted instead of committed. The
    failure is the ``__cause__``. Begin a new transaction."""


class MemoryBufferIsFull(UsageError):
    """The client's ``memory_limit_bytes`` are used up and ``block_if_queue_full`` is off. Wait, and send
    again."""

    retriable = True


class ForkedProcessError(UsageError):
    """The client was created before ``fork`` and used in the child: create one in the child."""


class Interrupted(UsageError, KeyboardInterrupt):
    """Ctrl+C ended the wait for a message; also a `KeyboardInterrupt`, for ``except`` clauses that catch
    that."""


class CryptoError(UsageError):
    """Encryption or decryption failed; there is no fallback to plain text."""


# --- the peer's faults ---------------------------------------------------------------------------


class PeerError(PulsarException):
    """The peer sent something that the protocol does not allow."""


class ProtocolError(PeerError):
    """A frame or command is malformed, or not allowed in the current state of the connection."""


class FrameTooLarge(ProtocolError):
    """A frame announces more bytes than this side accepts."""


class CorruptPayload(PeerError):
    """A payload fails its checksum, its decompression, or its batch layout."""


# --- transient -----------------------------------------------------------------------------------


class TransientError(PulsarException):
    """Time-outs and lost connections: trying again may help."""

    retriable = True


class Timeout(TransientError, TimeoutError):
    """No answer arrived within the operation, send or receive time-out. The operation may have happened all
    the same: a message that timed out may be stored."""


class ConnectError(TransientError, ConnectionError):
    """The broker could not be reached or ended the connection. Check the service URL, TLS, and the broker."""


class NotConnected(TransientError):
    """There is no connection to the broker at the moment; the client reconnects automatically. Try again."""


class ReadError(TransientError):
    """Reading from the broker's connection failed; the client reconnects automatically. Try again."""


class LookupError(TransientError):
    """The topic's broker could not be found: too many redirects, or no address reachable from here."""


# --- errors that the broker reports --------------------------------------------------------------


class ServerReportedError(PulsarException):
    """The broker answered with an error. ``code`` is the protocol's ``ServerError`` number; the text is the
    broker's."""

    code: ClassVar[int] = 0


class UnknownError(ServerReportedError):
    """The broker reported an error without a known code. Its text says what happened; another try may
    succeed."""

    code = 0
    retriable = True


class BrokerMetadataError(ServerReportedError):
    """The broker could not read or write metadata of topics. Try again; the broker's log has details."""

    code = 1
    retriable = True


class BrokerPersistenceError(ServerReportedError):
    """The broker could not read or write messages: bookies are missing, or the store has stopped. Try again;
    if the error persists, check the broker's disk and log."""

    code = 2
    retriable = True


class AuthenticationError(ServerReportedError):
    """The broker rejected missing, wrong or expired credentials. Check the client's ``authentication``."""

    code = 3


class ErrorGettingAuthenticationData(AuthenticationError):
    """The client could not obtain its credentials: a missing file, or a provider that failed."""

    told_as = Result.AuthenticationError  # as in pulsar-client, where no operation ends with the other result


class AuthorizationError(ServerReportedError):
    """The role lacks the permission. An administrator grants it: ``geminga namespaces grant``."""

    code = 4


class ConsumerBusy(ServerReportedError):
    """The subscription has a consumer of another type, or an Exclusive one already. Close that one, or share
    the subscription with the same ``consumer_type``; ``geminga explain`` lists the connected consumers."""

    code = 5


class ServiceUnitNotReady(ServerReportedError):
    """The broker does not serve the topic at this moment, for example while it is moved or loaded. Clients
    retry automatically until their time-out."""

    code = 6
    retriable = True


class ProducerBlockedQuotaExceededError(ServerReportedError):
    """The backlog quota is exceeded and the policy ``producer_request_hold`` holds producers back. Consume or
    skip the backlog, or raise the quota."""

    code = 7
    retriable = True


class ProducerBlockedQuotaExceededException(ServerReportedError):
    """The backlog quota is exceeded, or the disk is full, and the policy ``producer_exception`` refuses
    producers. Consume or skip the backlog, raise the quota, or free disk space."""

    code = 8


class ChecksumError(ServerReportedError):
    """The broker received a damaged message. The client resends it automatically; if a program gets this
    error, the damage repeats."""

    code = 9


class UnsupportedVersionError(ServerReportedError):
    """The broker does not support the requested feature or version. Update it, or do without the feature."""

    code = 10


class TopicNotFound(ServerReportedError):
    """The topic does not exist and is not created automatically. Create it (``geminga topics create``), or
    check its name, tenant and namespace included."""

    code = 11


class SubscriptionNotFound(ServerReportedError):
    """The subscription does not exist and is not created automatically. Create it with ``geminga
    subscriptions create``, or allow it with the policy ``autoSubscriptionCreation``."""

    code = 12


class ConsumerNotFound(ServerReportedError):
    """The broker does not know the consumer any more, for example after closing it. Subscribe again."""

    code = 13


class TooManyLookupRequestException(ServerReportedError):
    """More lookups are pending than the client or the broker allows at once. Try again later, or open fewer
    topics at the same time."""

    code = 14
    retriable = True


class TopicTerminated(ServerReportedError):
    """The topic was terminated: it can be read but takes no more messages. Publish to another topic."""

    code = 15


class ProducerBusy(ServerReportedError):
    """A producer of that name is connected, or the topic has its maximum of producers. Close the other one,
    or let the broker choose ``producer_name``."""

    code = 16


class BrokerInvalidTopicName(ServerReportedError, InvalidTopicName):
    """The broker reports an invalid topic name; ``except InvalidTopicName`` catches this too."""

    code = 17


class IncompatibleSchema(ServerReportedError):
    """The schema is incompatible with the topic's schemas under its compatibility strategy. Change the
    schema, or the strategy with ``schemaCompatibilityStrategy``."""

    code = 18


class ConsumerAssignError(ServerReportedError):
    """The key ranges of a sticky Key_Shared consumer overlap with those of another consumer. Give it other
    ranges."""

    code = 19


class TransactionCoordinatorNotFoundError(ServerReportedError):
    """The broker that coordinates a transaction was not found, for example while it is moved. The client
    retries automatically until its time-out."""

    code = 20
    retriable = True


class InvalidTxnStatusError(ServerReportedError):
    """A transaction is not in the state that the call needs: it was committed or aborted, or its time limit
    has passed. Begin a new one."""

    code = 21


class NotAllowedError(ServerReportedError):
    """The call is not allowed for this topic, subscription or consumer; the text says why."""

    code = 22


class TransactionConflict(ServerReportedError):
    """Another transaction has acknowledged the message, or it is acknowledged for good."""

    code = 23


class TransactionNotFound(ServerReportedError):
    """The coordinator does not know the transaction, or not any more: it was committed or aborted, perhaps at
    its time limit."""

    code = 24


class ProducerFenced(ServerReportedError):
    """Another producer has taken exclusive access to the topic (``ExclusiveWithFencing``). This producer is
    closed and its pending messages failed."""

    code = 25


SERVER_ERRORS: dict[int, type[ServerReportedError]] = {
    cls.code: cls for cls in ServerReportedError.__subclasses__()
}
"""The exception class of each ``ServerError`` code (framing.md section 13)."""


# --- admin REST ----------------------------------------------------------------------------------


class AdminError(ServerReportedError):
    """Admin REST refused a call. ``status`` is the HTTP status; the text holds the broker's reason, the
    request, and advice where there is any."""

    code = 0

    def __init__(self, *arguments: object, status: int = 0) -> None:
        super().__init__(*arguments)
        self.status = status


class AdminBadRequest(AdminError, NotAllowedError):
    """400, 422: a value is malformed."""


class AdminAuthenticationError(AdminError, AuthenticationError):
    """401: no credentials, or wrong ones."""


class AdminAuthorizationError(AdminError, AuthorizationError):
    """403: the role lacks the permission."""


class AdminNotFound(AdminError):
    """404: the resource that the path names does not exist."""


class AdminTopicNotFound(AdminNotFound, TopicNotFound):
    """404 for a topic, or for its namespace or tenant."""


class AdminSubscriptionNotFound(AdminNotFound, SubscriptionNotFound):
    """404 for a subscription of a topic."""


class AdminNotAllowed(AdminError, NotAllowedError):
    """405, 406: the call does not apply to this kind of resource, for example to a partitioned topic as a
    whole."""


class AdminConflict(AdminError, NotAllowedError):
    """409: the resource exists already, or is in use."""


class AdminPreconditionFailed(AdminError, NotAllowedError):
    """412: the broker's state or its limits forbid the call."""


class AdminServerError(AdminError, UnknownError):
    """5xx: the broker failed. Whether a change was made is not known."""


class AdminUnavailable(AdminServerError, ServiceUnitNotReady):
    """429, 502, 503, 504: temporarily unavailable; another try may succeed."""

    retriable = True


# --- the store -----------------------------------------------------------------------------------


class StoreError(PulsarException):
    """The broker's store cannot perform the operation."""


class StoreLocked(StoreError):
    """Another process holds the store; the message names the folder and, if known, the process."""


class NotAStore(StoreError):
    """The folder holds files that are not a store of Geminga; none was touched."""


class StoreDamaged(StoreError):
    """Synced data fails its checksum; the message names file, offset, ledger and entry range."""


class StoreStopped(StoreError):
    """A write or sync failed: no message is confirmed until the store is reopened and checked."""


class StoreBusy(StoreError):
    """The store's disk does not answer, or too many writes are queued for it."""

    retriable = True


class StoreFull(StoreError):
    """The disk has too little free space: new entries are refused until there is more."""

    retriable = True


class LedgerNotFound(StoreError):
    """The ledger does not exist or was trimmed away."""


def from_server(code: int, message: str) -> ServerReportedError:
    """Return the exception for a broker's error answer; an unknown code gives `UnknownError`."""
    return SERVER_ERRORS.get(code, UnknownError)(message or SERVER_ERRORS.get(code, UnknownError).__name__)
