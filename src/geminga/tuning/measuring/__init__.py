"""Measured runs: load on a real broker, and what it cost client, network, broker and disk."""
