"""Geminga: Apache Pulsar for Python people.

``import geminga as pulsar`` runs programs written for ``pulsar-client``: the same classes, methods,
arguments and exceptions. Beyond it there are `geminga.asyncio`, Arrow tables (``send_table``,
``receive_table``), an embedded broker (`geminga.embedded`), pytest fixtures (`geminga.testing`) and a
Spark data source (`geminga.spark`).

Importing this package loads no heavy module: each public name is loaded when it is first used. Type
checkers read the names in ``__init__.pyi``.
"""

import importlib
import sys

from geminga._version import __version__ as __version__

_HOMES: dict[str, tuple[str, ...]] = {
    "geminga.client.api.sync": ("Client",),
    "geminga.client.admin.sync": ("Admin",),
    "geminga.client.publish.producer": ("Producer",),
    "geminga.client.receive.consumer": ("Consumer",),
    "geminga.client.publish.many": ("ManySent",),
    "geminga.client.receive.reader": ("Reader",),
    "geminga.client.transactions": ("Transaction",),
    "geminga.transactions": ("TransactionState",),
    "geminga.client.api.message": ("Message", "MessageBatch"),
    "geminga.client.receive.table_view": ("TableView",),
    "geminga.client.options.authentication": (
        "Authentication", "AuthenticationAthenz", "AuthenticationBasic", "AuthenticationOauth2",
        "AuthenticationTLS", "AuthenticationToken",
    ),
    "geminga.client.options.enums": (
        "BatchingType", "CompressionType", "ConsumerBatchReceivePolicy", "ConsumerCryptoFailureAction",
        "ConsumerDeadLetterPolicy", "ConsumerKeySharedPolicy", "ConsumerType", "HashingScheme",
        "InitialPosition", "KeySharedMode", "LoggerLevel", "PartitionsRoutingMode", "ProducerAccessMode",
        "RedeliveryBackoff", "RegexSubscriptionMode", "Result",
    ),
    "geminga.consumer.policies": (
        "BatchReceivePolicy", "DeadLetterPolicy", "DeadLetterPolicyBuilder", "KeySharedPolicy",
    ),
    "geminga.functions.context": ("Context",),
    "geminga.functions.function": ("Function",),
    "geminga.functions.serde": ("IdentitySerDe", "PickleSerDe", "SerDe"),
    "geminga.client.options.service": ("AutoClusterFailover", "ServiceInfo", "ServiceInfoProvider"),
    "geminga.client.options.crypto": (
        "CryptoKeyReader", "EncryptionContext", "EncryptionKey", "EncryptionKeyInfo",
        "ProducerCryptoFailureAction",
    ),
    "geminga.client.api.settings_file": ("load_settings",),
    "geminga.client.observe.logs": ("ConsoleLogger", "FileLogger"),
    "geminga.ids": ("MessageId", "TopicName"),
    "geminga.schema": ("BytesSchema",),
    "geminga.broker.serving.embedded": ("EmbeddedBroker", "embedded"),
    "geminga.errors": (
        "AdminAuthenticationError", "AdminAuthorizationError", "AdminBadRequest", "AdminConflict",
        "AdminError", "AdminNotAllowed", "AdminNotFound", "AdminPreconditionFailed", "AdminServerError",
        "AdminSubscriptionNotFound", "AdminTopicNotFound", "AdminUnavailable", "AlreadyClosed",
        "AuthenticationError", "AuthorizationError", "BrokerMetadataError", "BrokerPersistenceError",
        "ChecksumError", "ConnectError", "ConsumerAssignError", "ConsumerBusy", "ConsumerNotFound",
        "ConsumerNotInitialized", "CryptoError", "CumulativeAcknowledgementNotAllowedError",
        "ErrorGettingAuthenticationData", "ForkedProcessError", "IncompatibleSchema", "Interrupted",
        "InvalidConfiguration", "InvalidMessage", "InvalidTopicName", "InvalidTxnStatusError",
        "InvalidUrl", "LookupError", "MemoryBufferIsFull", "MessageTooBig", "NotAllowedError",
        "NotConnected", "OperationNotSupported", "ProducerBlockedQuotaExceededError",
        "ProducerBlockedQuotaExceededException", "ProducerBusy", "ProducerFenced",
        "ProducerNotInitialized", "ProducerQueueIsFull", "PulsarException", "ReadError", "SendManyFailed",
        "ServiceUnitNotReady", "SubscriptionNotFound", "Timeout", "TooManyLookupRequestException",
        "TopicNotFound", "TopicTerminated", "TransactionConflict", "TransactionCoordinatorNotFoundError",
        "TransactionHasOperationFailed", "TransactionNotFound", "UnknownError", "UnsupportedVersionError",
    ),
}  # fmt: skip
"""Module that defines each public name."""

_SUBMODULES = frozenset(
    {
        "_pulsar", "admin", "asyncio", "errors", "exceptions", "functions", "schema", "spark", "tableview",
        "testing",
    }
)  # fmt: skip

_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

_NOT_BY_STAR = frozenset({"_pulsar", "asyncio", "spark", "testing"})
"""Submodules that ``from geminga import *`` does not import: `asyncio` would hide Python's own, and the
others need optional packages."""

__all__ = [*sorted(_HOME_OF), *sorted(_SUBMODULES - _NOT_BY_STAR), "__version__"]


def _from(home: str, name: str) -> object:
    try:
        return getattr(importlib.import_module(home), name)
    except ImportError as error:
        from geminga.extras import missing

        better = missing(f"geminga.{name}", error)
        if better is None:
            raise
        raise better from None


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is not None:
        here = vars(sys.modules[__name__])
        value = here[name] = _from(home, name)
        if (errors := sys.modules.get("geminga.errors")) is not None:
            # Import the errors too: a finalizer may catch one when the interpreter ends and modules cannot be
            # loaded. Another thread may be loading them: missing ones are imported on their next use.
            loaded = vars(errors)
            here.update({error: loaded[error] for error in _HOMES["geminga.errors"] if error in loaded})
        return value
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
