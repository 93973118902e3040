"""Subscriptions: what is dealt with (cursors), who gets what next (dispatchers), and the consumers."""
