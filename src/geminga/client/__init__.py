"""The shells around the protocol cores: event loop, connections, and the public API."""
