"""`SchemaInfo`: what a topic is told about its values, and what it answers when it is asked."""

from __future__ import annotations

from dataclasses import dataclass

from geminga.choices import Choice


class SchemaType(Choice):
    """Kinds of schema, with the wire's numbers; those below 1 are never sent (framing.md section 11)."""

    AUTO_PUBLISH = -4
    AUTO_CONSUME = -3
    BYTES = -1
    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20


class SchemaName(str):
    """The name of a schema. Calling it gives the plain text: ``pulsar-client``'s ``name`` is a method, ours
    an attribute, and this way both spellings work."""

    __slots__ = ()

    def __call__(self) -> str:
        return str(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaInfo:
    """A schema as commands carry it.

    ``type`` is the wire's number, ``data`` the definition: JSON text for most types. The methods are those
    of ``pulsar-client``'s ``SchemaInfo``.
    """

    type: int
    """The wire's number: see `SchemaType`."""
    name: str = ""
    """A name for people: brokers make nothing of it."""
    data: bytes = b""
    """The definition: JSON text for most types."""
    properties: tuple[tuple[str, str], ...] = ()
    """Pairs that travel with it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", SchemaName(self.name))

    def schema_type(self) -> SchemaType:
        """``type`` by its name. Raises `ValueError` for a type that is not known here."""
        return SchemaType(self.type)

    def schema(self) -> str:
        """``data`` as text; bytes that are no UTF-8 are kept as surrogates."""
        return self.data.decode("utf-8", "surrogateescape")
