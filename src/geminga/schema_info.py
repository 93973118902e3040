"""`SchemaInfo`: description of a topic's values, as registered with and returned by brokers."""

from dataclasses import dataclass

from geminga._util.choices import Choice


class SchemaType(Choice):
    """Types of schema, with the protocol's numbers; those below 1 are never sent (framing.md section 11)."""

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
    """The name of a schema. Calling it returns the plain text: ``pulsar-client``'s ``name`` is a method, ours
    an attribute, and this supports both."""

    __slots__ = ()

    def __call__(self) -> str:
        return str(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaInfo:
    """A schema as commands carry it.

    ``type`` is the protocol's number, ``data`` the definition: JSON text for most types. The methods are
    those of ``pulsar-client``'s ``SchemaInfo``.
    """

    type: int
    """The protocol's number; see `SchemaType`."""
    name: str = ""
    """Name for people, which brokers ignore."""
    data: bytes = b""
    """Definition: JSON text for most types."""
    properties: tuple[tuple[str, str], ...] = ()
    """Properties stored with the schema."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", SchemaName(self.name))

    def schema_type(self) -> SchemaType:
        """Return ``type`` as an enumeration. Raises `ValueError` for an unknown type."""
        return SchemaType(self.type)

    def schema(self) -> str:
        """Return ``data`` as text; bytes that are not UTF-8 are kept as surrogates."""
        return self.data.decode("utf-8", "surrogateescape")
