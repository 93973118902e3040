"""Geminga for asyncio programs: the names of ``pulsar.asyncio``, with async iteration added."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

_HOMES = {
    "Admin": ("geminga.client.admin.aio.admin", "Admin"),
    "Client": ("geminga.client.aio", "Client"),
    "Producer": ("geminga.client.producer", "AsyncProducer"),
    "Consumer": ("geminga.client.consumer", "AsyncConsumer"),
    "Reader": ("geminga.client.reader", "AsyncReader"),
    "TableView": ("geminga.client.table_view", "AsyncTableView"),
    "PulsarException": ("geminga.errors", "PulsarException"),
    **{
        name: ("geminga.client.enums", name)
        for name in (
            "BatchingType",
            "CompressionType",
            "ConsumerCryptoFailureAction",
            "ConsumerType",
            "InitialPosition",
            "PartitionsRoutingMode",
            "ProducerAccessMode",
            "RegexSubscriptionMode",
        )
    },
}

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


if TYPE_CHECKING:
    from geminga.client.admin.aio.admin import Admin as Admin
    from geminga.client.aio import Client as Client
    from geminga.client.consumer import AsyncConsumer
    from geminga.client.enums import BatchingType as BatchingType
    from geminga.client.enums import CompressionType as CompressionType
    from geminga.client.enums import ConsumerCryptoFailureAction as ConsumerCryptoFailureAction
    from geminga.client.enums import ConsumerType as ConsumerType
    from geminga.client.enums import InitialPosition as InitialPosition
    from geminga.client.enums import PartitionsRoutingMode as PartitionsRoutingMode
    from geminga.client.enums import ProducerAccessMode as ProducerAccessMode
    from geminga.client.enums import RegexSubscriptionMode as RegexSubscriptionMode
    from geminga.client.producer import AsyncProducer
    from geminga.client.reader import AsyncReader
    from geminga.client.table_view import AsyncTableView
    from geminga.errors import PulsarException as PulsarException

    Consumer = AsyncConsumer
    Producer = AsyncProducer
    Reader = AsyncReader
    TableView = AsyncTableView
