"""A proxy that withholds messages for a while, or loses receipts, and passes on everything else."""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "client"))
from cutting import CuttingProxy, _Side

_COMMAND = 8
"""Offset of the command in a frame, after the two sizes."""
_MESSAGE = b"\x08\x09"
"""First bytes of the command MESSAGE: its type."""
_SEND_RECEIPT = b"\x08\x07"


class WithholdingProxy(CuttingProxy):
    """Proxy that passes on all bytes, and can cut connections or withhold messages and receipts."""

    until = 0.0
    receipts_to_lose = 0
    """Number of receipts to drop; each drop also closes the connection."""

    def __init__(self, port: int) -> None:
        super().__init__(port, lambda: (None, None))

    def withhold(self, seconds: float) -> None:
        """Withhold messages for ``seconds``; answers to requests still pass."""
        self.until = time.monotonic() + seconds


class _Frames(_Side):
    """Passes on whole frames, messages among them when it is time."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.open = bytearray()
        self.withheld: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.open += data
        while len(self.open) >= 4 and len(self.open) >= (size := 4 + int.from_bytes(self.open[:4], "big")):
            frame = bytes(self.open[:size])
            del self.open[:size]
            self._pass(frame)

    def _pass(self, frame: bytes) -> None:
        proxy = self.link.proxy
        if self.link not in proxy.links:
            return
        if self is self.link.broker and frame.startswith(_SEND_RECEIPT, _COMMAND) and proxy.receipts_to_lose:
            proxy.receipts_to_lose -= 1
            self.link.cut()
            return
        is_message = self is self.link.broker and frame.startswith(_MESSAGE, _COMMAND)
        if not is_message or (not self.withheld and time.monotonic() >= proxy.until):
            super().data_received(frame)
            return
        if not self.withheld:
            loop = asyncio.get_running_loop()
            loop.call_later(max(0.0, proxy.until - time.monotonic()), self._give_up)
        self.withheld.append(frame)

    def _give_up(self) -> None:
        frames, self.withheld = self.withheld, []
        for frame in frames:
            super().data_received(frame)


WithholdingProxy.side = _Frames
