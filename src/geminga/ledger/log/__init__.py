"""Log of a store: its files, and the group commit that appends to them."""
