"""Event loop, threads and connections, and waiting for their results."""
