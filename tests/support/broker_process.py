"""Commands of this package as processes that are killed and started again."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

from waiting import eventually

import geminga
from geminga.testing.apache_pulsar import free_ports


class Process:
    """A ``geminga`` command as a process that can be killed and started again."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # A separate process group, so that a kill does not affect other processes.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "geminga", *self.words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "GEMINGA_CONFIG_HOME": "/nonexistent"},
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def again(self) -> None:
        self.kill()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class BrokerProcess(Process):
    """``geminga standalone`` on a folder, with the same ports at each start."""

    def __init__(self, folder: Path) -> None:
        self._port, web_port = free_ports(2)
        self.service_url, self.admin_url = f"pulsar://127.0.0.1:{self._port}", f"http://127.0.0.1:{web_port}"
        super().__init__(
            "standalone", "--data-dir", str(folder), "--port", str(self._port), "--web-port", str(web_port)
        )

    def wait_ready(self) -> None:
        """Return once the broker accepts connections."""
        eventually(
            lambda: (socket.create_connection(("127.0.0.1", self._port)).close(), True)[1], but=OSError
        )

    def client(self) -> geminga.Client:
        return geminga.Client(self.service_url, operation_timeout_seconds=60)
