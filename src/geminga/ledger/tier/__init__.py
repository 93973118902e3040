"""Offloaded ledgers: their files in the offload storage, its claim, and the process that writes them."""
