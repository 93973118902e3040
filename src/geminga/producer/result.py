"""`Result`: the outcome that a send callback is given, with ``pulsar-client``'s names and numbers."""

from geminga.errors import Result, result_of

__all__ = ["Result", "result_of"]
