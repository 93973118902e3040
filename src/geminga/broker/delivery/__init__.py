"""Subscriptions: cursors (acknowledged entries), dispatchers (choice of the next consumer), and consumers."""
