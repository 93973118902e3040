"""SIGHUP: what a running broker takes over from its changed configuration, and what it names."""

import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

from servers import serving

from geminga.broker.rules.authentication import Principal
from geminga.broker.rules.tokens import make_token
from geminga.broker.serving.reloading import Reloader
from geminga.broker.serving.server import BrokerServer
from geminga.broker.settings import BrokerSettings, ProcessSettings
from geminga.errors import InvalidConfiguration

OLD, NEW = bytes(range(32)), bytes(range(32, 64))


@contextlib.asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[Callable[..., BrokerServer]]:
    """Run a broker; the yielded ``reload(**changes)`` reloads these settings."""
    values = {"memory": True, "port": 0, "web_port": None, **settings}
    start = BrokerSettings(**values)
    given: list[Any] = [start, ProcessSettings()]

    def reread() -> tuple[BrokerSettings, ProcessSettings]:
        if isinstance(given[0], Exception):
            raise given[0]
        return given[0], given[1]

    async with serving(BrokerServer(start)) as server:
        reloader = Reloader(server, start, ProcessSettings(), reread, lambda used: None)

        def reload(error: Exception | None = None, **changes: Any) -> BrokerServer:
            own = {name: changes.pop(name) for name in ("log_level", "console") if name in changes}
            given[:] = [error or BrokerSettings(**(values | changes)), ProcessSettings(**own)]
            reloader.reload()
            return server

        yield reload


def signed(key: bytes) -> str:
    return make_token("joe", key, "HS256")


async def test_quotas_and_the_log_level_change_and_the_rest_is_named(caplog):
    caplog.set_level("INFO")

    async with served() as reload:
        server = reload(backlog_quota_bytes=1000, connections_max=7, log_level="debug", console=False)
        assert server.broker.dynamic.current.backlog_quota_bytes == 1000
        assert "changed: backlog_quota_bytes=1000, log_level=debug" in caplog.text
        assert "need a restart: connections_max, console" in caplog.text
        caplog.clear()
        reload(connections_max=7)
        assert "changed: backlog_quota_bytes=-1, log_level=info" in caplog.text
        assert server.broker.dynamic.current.backlog_quota_bytes == -1
        assert "need a restart: connections_max" in caplog.text
        caplog.clear()
        reload()
        assert "changed: nothing" in caplog.text


async def test_a_reload_is_reported_to_systemd(tmp_path, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)

        async with served() as reload:
            reload(InvalidConfiguration("x"))
            states = [manager.recv(1000).decode() for _ in range(2)]
            assert states[0].startswith("RELOADING=1\nMONOTONIC_USEC=")
            assert states[1] == "READY=1"


async def test_a_value_set_at_run_time_overrides_the_reloaded_one(caplog):
    async with served() as reload:
        server = reload()
        server.call(lambda: server.broker.dynamic.set("backlogQuotaDefaultLimitBytes", "5"))
        reload(backlog_quota_bytes=1000)
        assert server.broker.dynamic.current.backlog_quota_bytes == 5
        assert "overrides the reloaded one: backlogQuotaDefaultLimitBytes" in caplog.text
        server.call(lambda: server.broker.dynamic.remove("backlogQuotaDefaultLimitBytes"))
        assert server.broker.dynamic.current.backlog_quota_bytes == 1000


async def test_a_wrong_configuration_changes_nothing(tmp_path, caplog):
    key = tmp_path / "key"
    key.write_bytes(OLD)

    async with served(token_secret_key=str(key)) as reload:
        server = reload()
        reload(InvalidConfiguration("geminga.toml: port='x' is not allowed"))
        assert "not reloaded, the previous one stays in force: geminga.toml: port='x'" in caplog.text
        key.write_bytes(b"too short")
        reload(backlog_quota_bytes=1000)
        assert server.broker.dynamic.current.backlog_quota_bytes == -1
        assert "9 bytes; a secret needs 32 at least" in caplog.text
        server.broker.authentication.authenticate("token", signed(OLD).encode(), 0)
        key.write_bytes(OLD)
        assert reload(backlog_quota_bytes=1000).broker.dynamic.current.backlog_quota_bytes == 1000


async def test_two_keys_are_valid_during_a_rotation_and_the_old_one_is_revoked_without_a_restart(
    tmp_path, caplog
):
    caplog.set_level("INFO")
    files = {name: tmp_path / name for name in ("first", "second")}
    files["first"].write_bytes(OLD)
    files["second"].write_bytes(NEW)

    def are_valid(server: BrokerServer) -> list[bool]:
        judged = server.broker.authentication.judged
        found = [judged("token", signed(key).encode(), 0, None, "") for key in (OLD, NEW)]
        return [isinstance(each, Principal) for each in found]

    async with served(token_secret_key=str(files["first"])) as reload:
        server = reload()
        assert are_valid(server) == [True, False]
        reload(token_second_key=str(files["second"]))
        assert are_valid(server) == [True, True]
        files["first"].write_bytes(NEW)
        reload()
        assert are_valid(server) == [False, True]
        assert "token_second_key=(hidden)" in caplog.text
        assert "connected clients must authenticate again" in caplog.text
        assert str(OLD) not in caplog.text


async def test_authentication_is_not_switched_on_by_a_reload(caplog):
    caplog.set_level("INFO")
    async with served() as reload:
        reload(token_secret_key="data:," + "k" * 32, backlog_quota_bytes=9)
        assert "changed: backlog_quota_bytes=9" in caplog.text
        assert "need a restart: token_secret_key" in caplog.text


async def test_certificates_and_versions_of_tls_are_reloaded(authority, tls, caplog):
    caplog.set_level("INFO")
    async with served(**tls) as reload:
        server = reload()
        before = server.tls.context.minimum_version
        other, key = authority.sign("other")
        reload(tls_certificate=other, tls_key=key, tls_minimum_version="TLSv1.3")
        assert server.tls.context.minimum_version > before
        assert f"tls_certificate={other}" in caplog.text
        caplog.clear()
        another, its_key = authority.sign("another")
        its_key.replace(key)
        another.replace(other)
        reload(tls_certificate=other, tls_key=key, tls_minimum_version="TLSv1.3")
        assert "changed: certificates, for new connections" in caplog.text
        reload(tls_certificate="/no/such/file")
        assert "not reloaded" in caplog.text
        assert server.settings.tls_certificate == other
