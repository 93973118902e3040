"""Recovery of a store from its log after a restart."""
