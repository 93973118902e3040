"""Enumerations of the public API, under ``pulsar-client``'s names."""

from geminga._util.choices import Choice
from geminga.consumer.settings import (
    ConsumerBatchReceivePolicy,
    ConsumerCryptoFailureAction,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    ConsumerType,
    InitialPosition,
    KeySharedMode,
    RedeliveryBackoff,
    RegexSubscriptionMode,
)
from geminga.errors import Result
from geminga.producer.settings import (
    BatchingType,
    CompressionType,
    HashingScheme,
    PartitionsRoutingMode,
    ProducerAccessMode,
)


class LoggerLevel(Choice):
    """Levels for `ConsoleLogger` and `FileLogger`."""

    Debug = 0
    Info = 1
    Warn = 2
    Error = 3


__all__ = [
    "BatchingType", "CompressionType", "ConsumerBatchReceivePolicy", "ConsumerCryptoFailureAction",
    "ConsumerDeadLetterPolicy", "ConsumerKeySharedPolicy", "ConsumerType", "HashingScheme",
    "InitialPosition", "KeySharedMode", "LoggerLevel", "PartitionsRoutingMode", "ProducerAccessMode",
    "RedeliveryBackoff", "RegexSubscriptionMode", "Result",
]  # fmt: skip
