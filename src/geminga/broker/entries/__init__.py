"""Entries of a topic: its ledgers, their message counts and sizes, compacted views, and durable encodings."""
