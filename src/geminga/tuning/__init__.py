"""The advisor: producer settings from a formula, checked against traps, and proven on a real broker."""
