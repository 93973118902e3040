"""Backups of a store: single copies, and series that share unchanged files."""
