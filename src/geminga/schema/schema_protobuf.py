"""`ProtobufNativeSchema` under the module name that ``pulsar-client`` users import: see
`geminga.schema.protobuf`."""

from geminga.schema.protobuf import ProtobufNativeSchema

__all__ = ["ProtobufNativeSchema"]
