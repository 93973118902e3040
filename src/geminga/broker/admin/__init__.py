"""Pulsar's admin REST interface (``/admin/v2``), topic lookup over HTTP and metrics.

One module a resource; `geminga.broker.admin.web` puts them together. Importing this package loads
nothing: the web framework comes with `web`, which the server imports after the binary port is open.
"""
