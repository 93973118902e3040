"""Options of a client: arguments, settings, credentials and enumerations of the public API."""
