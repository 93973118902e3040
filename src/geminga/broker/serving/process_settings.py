"""Settings of ``geminga standalone`` beside those of its broker."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from geminga.broker.settings import check_field, setting
from geminga.by_fields import ByFields

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ProcessSettings(ByFields):
    """Settings of ``geminga standalone`` beside those of its broker, given in the same ways."""

    console: bool = setting(True, option="--console", help="Serve the web console at / of the web port.")
    """Whether the web console is served at ``/`` of the web port."""
    anonymous: bool = setting(
        False, option="--anonymous", help="Allow unauthenticated access from other machines."
    )
    """Whether a broker without authentication may listen on addresses that other machines reach."""
    log_level: str = setting(
        "info", choices=LOG_LEVELS, option="--log-level", help="Lowest level that is logged.", reload=True
    )
    """Lowest level that is logged: ``debug``, ``info``, ``warning`` or ``error``. The log of audited requests
    is written at any of them."""
    log_format: str = setting(
        "text",
        choices=LOG_FORMATS,
        option="--log-format",
        help="Lines for people, or one JSON object a line.",
        reload=True,
    )
    """Form of the log on standard error: ``text``, or ``json`` with one object per line: ``time``, ``level``,
    ``logger``, ``message``, and where known ``connection``, ``role``, ``topic`` and ``subscription``."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_field(self, field)
