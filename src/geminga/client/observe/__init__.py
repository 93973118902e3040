"""Reports of a client: log lines, statistics and metrics."""
