"""`Function`: what is called for every message of the input topics."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any


class Function:
    """Base of functions that are classes; a plain function of the message works as well."""

    @abstractmethod
    def process(self, input: Any, context: Any) -> Any:
        """What becomes of ``input``, a value that the function's serde made of a message.

        ``context`` is a `geminga.functions.context.Context`. What is returned goes to the output topic;
        None goes nowhere.
        """
