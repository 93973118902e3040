"""The publish path without I/O: twelve steps, one file each. ``partition`` is the place to start reading."""
