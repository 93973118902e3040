"""Reload of the configuration on SIGHUP: what can change while the broker runs is changed, the rest is named.

Key, password and certificate files are read again even if no setting has changed. All is read and checked
first: after an error, everything stays as it was.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from geminga.broker.rules.dynamic import DYNAMIC
from geminga.broker.rules.policies import RuleViolation
from geminga.broker.serving.credentials import make_authentication
from geminga.broker.serving.process_settings import ProcessSettings
from geminga.broker.serving.server import BrokerServer
from geminga.broker.serving.systemd import notify, notify_reloading
from geminga.broker.settings import BrokerSettings, shown
from geminga.errors import PulsarException

log = logging.getLogger("geminga.broker")

Reread = Callable[[], tuple[BrokerSettings, ProcessSettings]]


class Reloader:
    """Settings in force, and the means to read them again."""

    def __init__(
        self,
        server: BrokerServer,
        settings: BrokerSettings,
        process: ProcessSettings,
        reread: Reread,
        use_process: Callable[[ProcessSettings], object],
    ) -> None:
        """``settings`` are those of the start, where 0 is a free port; ``use_process`` sets up the log."""
        self._server = server
        self._settings = settings
        self._process = process
        self._reread = reread
        self._use_process = use_process

    def reload(self) -> None:
        """Read the settings again, apply what can be applied, and log what has changed."""
        notify_reloading()
        try:
            self._apply(*self._reread())
        except (PulsarException, RuleViolation, OSError) as error:
            log.error("the configuration is not reloaded, the previous one stays in force: %s", error)
        except Exception:
            log.exception("the configuration is not reloaded, the previous one stays in force")
        finally:
            notify("READY=1")

    def _apply(self, settings: BrokerSettings, process: ProcessSettings) -> None:
        server, broker = self._server, self._server.broker
        changed, restart = _differences(self._settings, settings)
        changed_process, restart_process = _differences(self._process, process)
        if (
            settings.authenticates != self._settings.authenticates
            or settings.has_tls != self._settings.has_tls
        ):
            # Ports and the checks of commands are made for one of both.
            kept = {
                name for name in changed if not BrokerSettings.__dataclass_fields__[name].metadata["dynamic"]
            }
            restart, changed = restart + sorted(kept), [name for name in changed if name not in kept]
        new = {name: getattr(settings, name) for name in changed}
        in_force = replace(self._settings, **new)
        serving = replace(server.settings, **new)
        # What may fail comes first, ...
        authentication = make_authentication(in_force)
        tls = None if server.tls is None else server.tls.load(in_force)
        server.call(lambda: broker.dynamic.use_start(serving))
        # ... from here on nothing does.
        if tls is not None and server.tls is not None:
            server.tls.use(in_force, tls)
        has_new_keys = authentication is not None and broker.replace_authentication(authentication)
        server.settings, self._settings = serving, in_force
        self._process = replace(self._process, **{name: getattr(process, name) for name in changed_process})
        self._use_process(self._process)
        found = [_line(settings, name) for name in changed] + [
            _line(process, name) for name in changed_process
        ]
        if has_new_keys:
            found.append("keys or passwords; connected clients must authenticate again")
        log.info("configuration reloaded; changed: %s", ", ".join(found) or "nothing")
        overridden = sorted(
            name for name, one in DYNAMIC.items() if one.field in changed and name in broker.dynamic.changed
        )
        if overridden:
            log.warning("a value set at run time overrides the reloaded one: %s", ", ".join(overridden))
        if restart := restart + restart_process:
            log.warning("changed settings that need a restart: %s", ", ".join(restart))


def _differences(old: Any, new: Any) -> tuple[list[str], list[str]]:
    """Return the names of changed settings: of those that can be reloaded, and of the others."""
    reloaded: list[str] = []
    restart: list[str] = []
    for field in dataclasses.fields(old):
        if getattr(old, field.name) != getattr(new, field.name):
            (reloaded if field.metadata.get("reload") else restart).append(field.name)
    return reloaded, restart


def _line(settings: Any, name: str) -> str:
    return f"{name}={shown(settings, type(settings).__dataclass_fields__[name])}"
