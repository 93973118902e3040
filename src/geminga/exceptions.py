"""The errors under the module name that ``pulsar-client`` users import; see `geminga.errors`."""

from geminga.errors import *  # noqa: F403
from geminga.errors import LookupError as LookupError  # the builtin's name, on purpose
