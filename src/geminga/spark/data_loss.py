"""Losses: messages that a query was to read and that are no longer there."""

from __future__ import annotations

from geminga.errors import ReadError


class DataLossError(ReadError):
    """Messages that were to be read are no longer there, or nobody can tell any more whether some were."""

    retriable = False


def refusal(what: str) -> DataLossError:
    """The error for ``what``, which says what was lost, with what helps."""
    return DataLossError(f"{what}. Keep messages longer (retention), or set failOnDataLoss=false to go on")
