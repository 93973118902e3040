"""Upkeep of an open store: checkpoints, rewriting of the log, disk space, and damage."""
