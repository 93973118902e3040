"""One broker connection without I/O: takes bytes and ``now``; returns events, bytes and a deadline."""
