"""Publish path without I/O, in twelve steps, one module each. Start reading at ``partition``."""
