"""Pulsar's wire format, without state, I/O or time.

From the socket inwards: `frames` splits the stream and `frame_encoding` writes it; `metadata` reads and
builds entries; `compression` and `checksum` process payloads; `batch` splits and joins them by rows,
`columnar` by Arrow columns; `hashing` hashes keys. `proto` is the generated schema, `strict` checks what
protobuf's parser does not, `varint` encodes its numbers.
"""
