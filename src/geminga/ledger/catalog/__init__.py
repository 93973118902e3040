"""Catalog of a store: its state at the last checkpoint, in an embedded database."""
