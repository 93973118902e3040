"""Topics: their entries and producers, loading and unloading, and automatic maintenance."""
