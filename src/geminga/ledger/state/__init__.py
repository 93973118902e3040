"""State of an open store: ledgers, keys, positions of entries, and known damage."""
