"""Dynamic configuration: settings that are changed while the broker runs, by Apache Pulsar's names.

Changed settings are stored as text by name (``dynamic-configuration/<name>``), and override those of the
start until they are removed.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from math import inf
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from geminga.broker.rules.policies import InvalidRequest, RuleViolation
from geminga.broker.settings import BrokerSettings
from geminga.errors import InvalidConfiguration
from geminga.ledger.api import Done, EntryStore

log = logging.getLogger("geminga.broker")

_PREFIX: Final = "dynamic-configuration/"


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("a whole number") from None


def _seconds_of_ms(text: str) -> float:
    try:
        return _number(text) / 1000 if _number(text) >= 0 else -1.0
    except OverflowError:
        return inf  # the setting's check refuses it with the allowed values


def _ms_of_seconds(value: float) -> int:
    return max(-1, int(value * 1000))


def _same(value: Any) -> Any:
    return value


class _Dynamic(NamedTuple):
    field: str
    """Name of the field in `BrokerSettings`."""
    read: Callable[[str], Any]
    show: Callable[[Any], Any]


_FORMS: Final[Mapping[str, tuple[Callable[[str], Any], Callable[[Any], Any]]]] = {
    "bool": (_flag, _same),
    "int": (_number, _same),
    "int | None": (_number, _same),
    "float": (_seconds_of_ms, _ms_of_seconds),
    "str": (str, _same),
    "TopicKind": (str, _same),
}
"""Functions from and to the text of a setting, by the type of its field; seconds are given in ms."""

DYNAMIC: Final[Mapping[str, _Dynamic]] = MappingProxyType(
    {
        field.metadata["dynamic"]: _Dynamic(field.name, *_FORMS[str(field.type)])
        for field in dataclasses.fields(BrokerSettings)
        if field.metadata.get("dynamic")
    }
)
"""Settings that can be changed. Ports, addresses, folders and authentication are set at the start only."""


class DynamicSettings:
    """Settings in force: ``current`` is the result, ``changed`` the texts that override the start's."""

    def __init__(self, store: EntryStore, settings: BrokerSettings) -> None:
        self.current = settings
        self.changed: dict[str, str] = {}
        self.lost: set[str] = set()
        """Names whose value was lost to damage or is invalid (written by another version, or in conflict with
        the settings of the start): nothing is deleted by policies until they are set again."""
        self._unknown: set[str] = set()
        """Names written by another version of Geminga. They are kept for that version, unless removed."""
        self._store = store
        self._start = settings
        self._watchers: list[Callable[[BrokerSettings], None]] = []
        for key, value in store.keys.scan(_PREFIX):
            name = key[len(_PREFIX) :]
            text = value.base.decode("utf-8", "replace")
            if name not in DYNAMIC:
                self._unknown.add(name)
                log.error("changed setting %s ignored: this version has no such setting", name)
                continue
            try:
                if value.lost is not None:
                    raise RuleViolation(InvalidRequest.NOT_ALLOWED, f"damage took it: {value.lost}")
                self.current = self._with(settings, {**self.changed, name: text})
            except RuleViolation as broken:
                self.lost.add(name)
                log.error(
                    "changed setting %s is unreadable and ignored; nothing is deleted by policies until "
                    "it is set again or removed: %s", name, broken,
                )  # fmt: skip
            else:
                self.changed[name] = text
        if self.changed:
            told = ", ".join(f"{name}={text}" for name, text in sorted(self.changed.items()))
            log.info("settings changed at run time override those of the start: %s", told)

    def watch(self, watcher: Callable[[BrokerSettings], None]) -> None:
        """Register ``watcher``, which is called with the settings after each change."""
        self._watchers.append(watcher)

    def use_start(self, settings: BrokerSettings) -> None:
        """Use other settings of the start. Raises `RuleViolation` if they do not go with the changed ones."""
        current = self._with(settings, self.changed)
        self._start = settings
        self._take(self.changed, current)

    def set(self, name: str, text: str, done: Done | None = None) -> None:
        """Change a setting at once; ``done`` is called when that is durable. Raises `RuleViolation` for a
        name that is not in `DYNAMIC` and for an invalid value."""
        changed = {**self.changed, name: text}
        current = self._with(self._start, changed)
        self._store.keys.put(_PREFIX + name, text.encode(), done)
        self.lost.discard(name)
        self._take(changed, current)

    def remove(self, name: str, done: Done | None = None) -> None:
        """Remove a change: the setting of the start is in force again."""
        if name not in DYNAMIC and name not in self._unknown:
            raise RuleViolation(InvalidRequest.NOT_ALLOWED, f"Can't delete non-dynamic configuration {name}")
        changed = {other: text for other, text in self.changed.items() if other != name}
        current = self._with(self._start, changed)
        self._store.keys.delete(_PREFIX + name, done)
        self.lost.discard(name)
        self._unknown.discard(name)
        self._take(changed, current)

    def accept(self, key: str) -> None:
        """Accept a damaged setting, by its key in the store, as it is."""
        name = key.removeprefix(_PREFIX)
        if key.startswith(_PREFIX) and name in self.lost:
            self.lost.discard(name)
            self._take(self.changed, self.current)

    def shown(self) -> dict[str, Any]:
        """Return all dynamic settings in force, by Pulsar's names."""
        return {name: one.show(getattr(self.current, one.field)) for name, one in DYNAMIC.items()}

    def _take(self, changed: dict[str, str], current: BrokerSettings) -> None:
        self.changed, self.current = changed, current
        for watcher in self._watchers:
            watcher(current)

    def _with(self, start: BrokerSettings, changed: Mapping[str, str]) -> BrokerSettings:
        fields = {}
        for name, text in changed.items():
            dynamic = DYNAMIC.get(name)
            if dynamic is None:
                raise RuleViolation(
                    InvalidRequest.NOT_ALLOWED, f"Can't update non-dynamic configuration {name}"
                )
            try:
                fields[dynamic.field] = dynamic.read(text)
            except ValueError as wrong:
                raise RuleViolation(
                    InvalidRequest.NOT_ALLOWED,
                    f"Invalid dynamic-config value {name}={text}: allowed is {wrong}",
                ) from None
        try:
            return dataclasses.replace(start, **fields)
        except InvalidConfiguration as wrong:
            raise RuleViolation(
                InvalidRequest.NOT_ALLOWED, f"Invalid dynamic-config value: {wrong}"
            ) from wrong


__all__ = ["DYNAMIC", "DynamicSettings"]
