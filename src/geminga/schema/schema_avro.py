"""`AvroSchema` under the module name that ``pulsar-client`` users import: see `geminga.schema.avro`."""

from geminga.schema.avro import AvroSchema

__all__ = ["AvroSchema"]
