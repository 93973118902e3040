"""Reading of entries, on threads that wait for the disk."""
