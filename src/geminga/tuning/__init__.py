"""The advisor: producer settings from a formula, checked for known traps, and measured on a real broker."""
