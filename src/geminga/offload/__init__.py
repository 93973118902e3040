"""Closed ledgers as Parquet: messages in columns for any reader, and every entry's exact bytes for ours."""
