"""Geminga for asyncio programs: the names of ``pulsar.asyncio``, with async iteration added.

Type checkers read the names in ``asyncio.pyi``.
"""

import importlib

_HOMES = {
    "Admin": ("geminga.client.admin.aio.admin", "Admin"),
    "Client": ("geminga.client.api.aio", "Client"),
    "Producer": ("geminga.client.publish.producer", "AsyncProducer"),
    "Consumer": ("geminga.client.receive.consumer", "AsyncConsumer"),
    "Reader": ("geminga.client.receive.reader", "AsyncReader"),
    "TableView": ("geminga.client.receive.table_view", "AsyncTableView"),
    "Transaction": ("geminga.client.transactions", "AsyncTransaction"),
    "TransactionState": ("geminga.transactions", "TransactionState"),
    **{name: ("geminga.client.api.redrive", name) for name in ("Redrive", "RedriveFilter", "RedriveResult")},
    "PulsarException": ("geminga.errors", "PulsarException"),
    **{
        name: ("geminga.client.options.enums", name)
        for name in (
            "BatchingType", "CompressionType", "ConsumerCryptoFailureAction", "ConsumerType",
            "InitialPosition", "PartitionsRoutingMode", "ProducerAccessMode", "RegexSubscriptionMode",
        )
    },
}  # fmt: skip

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home[0]), home[1])
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
