"""`Function`: base class of functions."""

from abc import abstractmethod
from typing import Any


class Function:
    """Base of functions that are classes; a plain function of the message works as well."""

    @abstractmethod
    def process(self, input: Any, context: Any) -> Any:
        """Process ``input``, the value that the function's serde decoded from a message.

        ``context`` is a `geminga.functions.context.Context`. The returned value is published to the output
        topic, except None.
        """
