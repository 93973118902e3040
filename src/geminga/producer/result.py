"""`Result`: outcome passed to a send callback, with ``pulsar-client``'s names and numbers."""

from geminga.errors import Result, result_of

__all__ = ["Result", "result_of"]
