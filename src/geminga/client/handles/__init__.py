"""Producers and consumers of one partition, kept connected: lookups, reconnection and failover."""
