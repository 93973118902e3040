"""Reload of the configuration on SIGHUP: changed settings are applied, or logged if they need a restart.

Key, password and certificate files are read again even if no setting has changed. All is read and checked
first: after an error, everything stays as it was.
"""

import dataclasses
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from geminga.broker.rules.dynamic import DYNAMIC
from geminga.broker.rules.policies import RuleViolation
from geminga.broker.serving.credentials import make_authentication
from geminga.broker.serving.server import BrokerServer
from geminga.broker.serving.systemd import notify
from geminga.broker.settings import BrokerSettings, ProcessSettings, shown
from geminga.errors import PulsarException

log = logging.getLogger("geminga.broker")

Reread = Callable[[], tuple[BrokerSettings, ProcessSettings]]


@dataclass(slots=True, eq=False)
class Reloader:
    """Settings in force, and the means to read them again and to set up the log."""

    server: BrokerServer
    settings: BrokerSettings
    """Settings of the start, where port 0 is a free one, with what was reloaded since."""
    process: ProcessSettings
    reread: Reread
    use_process: Callable[[ProcessSettings], object]

    def reload(self) -> None:
        """Read the settings again, apply what can be applied, and log what has changed."""
        notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            self._apply(*self.reread())
        except Exception as error:
            known = isinstance(error, (PulsarException, RuleViolation, OSError))
            line = "the configuration is not reloaded, the previous one stays in force: %s"
            log.error(line, error, exc_info=not known)
        finally:
            notify("READY=1")

    def _apply(self, settings: BrokerSettings, process: ProcessSettings) -> None:
        server, broker = self.server, self.server.broker
        old = self.settings
        # Ports and the checks of commands are made for authentication and TLS, or for none.
        switched = settings.authenticates != old.authenticates or settings.has_tls != old.has_tls
        changed, restart = _differences(old, settings, switched)
        changed_process, restart_process = _differences(self.process, process)
        new = {name: getattr(settings, name) for name in changed}
        in_force, serving = replace(old, **new), replace(server.settings, **new)
        # Steps that may fail come first, ...
        authentication = make_authentication(in_force)
        tls = None if server.tls is None else server.tls.load(in_force)
        server.call(lambda: broker.dynamic.use_start(serving))
        # ... from here on nothing does.
        has_new_certificates = tls is not None and server.tls is not None and server.tls.use(in_force, tls)
        has_new_keys = authentication is not None and broker.replace_authentication(authentication)
        server.settings, self.settings = serving, in_force
        self.process = replace(self.process, **{name: getattr(process, name) for name in changed_process})
        self.use_process(self.process)
        lines = [_line(settings, name) for name in changed]
        lines += [_line(process, name) for name in changed_process]
        lines += ["certificates, for new connections"] if has_new_certificates else []
        lines += ["keys or passwords; connected clients must authenticate again"] if has_new_keys else []
        log.info("configuration reloaded; changed: %s", ", ".join(lines) or "nothing")
        overridden = [name for name in broker.dynamic.changed if DYNAMIC[name].field in changed]
        if overridden:
            log.warning("a value set at run time overrides the reloaded one: %s", ", ".join(overridden))
        if restart or restart_process:
            log.warning("changed settings that need a restart: %s", ", ".join(restart + restart_process))


def _differences(old: Any, new: Any, switched: bool = False) -> tuple[list[str], list[str]]:
    """Return the names of changed settings that are reloaded, and of the others.

    ``switched``: only dynamic settings are reloaded.
    """
    reloaded: list[str] = []
    restart: list[str] = []
    for field in dataclasses.fields(old):
        if getattr(old, field.name) != getattr(new, field.name):
            may = field.metadata.get("dynamic" if switched else "reload")
            (reloaded if may else restart).append(field.name)
    return reloaded, restart


def _line(settings: Any, name: str) -> str:
    return f"{name}={shown(settings, type(settings).__dataclass_fields__[name])}"
