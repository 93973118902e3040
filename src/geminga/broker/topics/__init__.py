"""Topics: their entries, who produces to them, which are loaded, and what happens to them by themselves."""
