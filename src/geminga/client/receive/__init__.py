"""Receiving: consumers, readers and table views, their topics, and acknowledgements."""
