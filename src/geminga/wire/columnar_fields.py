"""Column numbers of the arrays that `geminga.wire.columnar`, `columnar_encoding` and their loops exchange."""

# --- fields of an entry head (one row an entry) ---------------------------------------------------

(
    METADATA_START,
    PAYLOAD_START,
    PAYLOAD_END,
    CHECKSUM,  # -1 without magic; the checksum covers CHECKSUM_START to PAYLOAD_END of the raw entry
    CHECKSUM_START,
    BATCH_COUNT,  # -1: a plain message
    SEQUENCE_ID,
    PUBLISH_TIME,
    PRODUCER_START,
    PRODUCER_SIZE,
    COMPRESSION,
    UNCOMPRESSED_SIZE,
    MARKER_TYPE,  # -1: no marker
    IS_ENCRYPTED,
    CHUNK_ID,  # -1: not a chunk
    CHUNK_COUNT,
    UUID_START,
    UUID_SIZE,
    CHUNKED_SIZE,
    SCHEMA_VERSION_START,
    SCHEMA_VERSION_SIZE,
    HEAD_FIELDS,
) = range(22)

# --- fields of a message (one row of the field matrix each, only the wanted ones are kept) ---------

(
    VALUE_START,
    VALUE_SIZE,  # -1: null
    KEY_START,
    KEY_SIZE,  # -1: absent
    KEY_IS_BASE64,
    ORDERING_KEY_START,
    ORDERING_KEY_SIZE,  # -1: absent
    EVENT_TIME,  # 0: absent
    MESSAGE_SEQUENCE_ID,
    BATCH_INDEX,
    PROPERTIES_START,
    PROPERTIES_END,
    PROPERTY_FIELD,  # the protobuf field number that holds properties in this region
    PROPERTY_COUNT,
    PROPERTY_KEY_BYTES,
    PROPERTY_VALUE_BYTES,
    MESSAGE_FIELDS,
) = range(17)

# --- fields of a batch that was made (one row a batch) -----------------------------------------------

(
    BATCH_PARTITION,
    BATCH_FIRST,  # position in the row order of the first message
    BATCH_ROWS,
    BATCH_START,
    BATCH_END,
    BATCH_IS_KEYED,
    BATCH_FIELDS,
) = range(7)

WORST_METADATA_SIZE = 4 + 6 + 11 + 2 + 2 + 6 + 6
"""Size prefix and every field of a message besides its value, key, ordering key and properties."""
