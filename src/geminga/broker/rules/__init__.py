"""What is allowed: tenants, namespaces and their policies; schemas and whether a new one fits."""
