"""Enumerations and classes that ``pulsar-client`` programs use as ``pulsar._pulsar``."""

from geminga import *  # noqa: F403
from geminga.schema_info import SchemaType as SchemaType
