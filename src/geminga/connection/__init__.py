"""One broker connection without I/O: bytes and ``now`` go in; events, bytes and a deadline come out."""
