"""Data loss: unread messages that no longer exist."""

from geminga.errors import ReadError


class DataLossError(ReadError):
    """Unread messages no longer exist, or a loss cannot be excluded."""

    retriable = False


def refusal(what: str) -> DataLossError:
    """Return the error for ``what``, a description of the loss, with advice."""
    return DataLossError(f"{what}. Keep messages longer (retention), or set failOnDataLoss=false to go on")
