"""Access to a Pulsar cluster: the clients that a process keeps, and queries of many partitions at once."""
