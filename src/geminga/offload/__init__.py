"""Closed ledgers as Parquet: messages in columns for any reader, exact bytes of entries for brokers."""
