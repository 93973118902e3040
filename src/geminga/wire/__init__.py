"""Pulsar's bytes, without state, I/O or time.

From the socket inwards: `frames` cuts the stream and `frame_encoding` writes it; `metadata` reads and
builds entries; `compression` and `checksum` treat payloads; `batch` splits and joins them by rows,
`columnar` by Arrow columns; `hashing` places keys. `proto` is the generated schema, `strict` what
protobuf's parser does not check, `varint` its numbers.
"""
