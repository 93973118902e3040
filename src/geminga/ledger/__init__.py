"""The store: ledgers of opaque entries and a key-value map, durable or in memory.

Start with `api` (the contract) and `store` (its durable implementation); `memory` is the in-memory one, and
`tiered` adds an offload storage.
"""
