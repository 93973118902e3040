"""Shared parts of the broker: time and timers, slices of long work, limits of memory and disk, and logs."""
