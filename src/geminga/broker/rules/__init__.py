"""Rules: tenants, namespaces and their policies; authentication and authorization; schema compatibility."""
