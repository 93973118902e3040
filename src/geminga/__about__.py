"""The version, under the module name that ``pulsar-client`` has for it."""

from geminga._version import __version__ as __version__
