"""Frames and payloads of the official clients, as `tests/vectors/README.md` describes them."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from geminga.schema import SchemaInfo
from geminga.wire.frames import FrameDecoder

VECTORS = Path(__file__).parents[1] / "vectors"


@dataclass(frozen=True)
class Recorded:
    """One frame. ``decoded``: what it holds, as the recorder's own decoder found."""

    case: str
    number: int
    connection: int
    client: str
    direction: str
    data: bytes
    decoded: dict[str, Any]
    patched: bool

    @property
    def kind(self) -> str:
        return str(self.decoded.get("command", {}).get("type"))

    @property
    def frame(self) -> Any:
        (frame,) = FrameDecoder(1 << 26).feed(self.data)
        return frame

    @property
    def command_data(self) -> bytes:
        return self.data[8 : 8 + int.from_bytes(self.data[4:8], "big")]

    @property
    def entry(self) -> bytes | None:
        return self.data[8 + int.from_bytes(self.data[4:8], "big") :] or None

    @property
    def is_official(self) -> bool:
        return not self.client.startswith("raw socket")


@cache
def recorded_frames(kind: str = "") -> list[Recorded]:
    """Return all frames, or those with commands of one type."""
    records = map(json.loads, (VECTORS / "frames.jsonl").read_text(encoding="utf-8").splitlines())
    found = [
        Recorded(
            r["case"], r["seq"], r["conn"], r["client"], r["direction"], bytes.fromhex(r["hex"]),
            r["decoded"], "note" in r,
        )
        for r in records
    ]  # fmt: skip
    return [each for each in found if kind in ("", each.kind)]


@dataclass(frozen=True)
class JavaPayload:
    """A value that a schema of the Java client encoded, and what that schema tells brokers."""

    case: str
    value: str
    payload: bytes
    info: SchemaInfo


@cache
def java_payloads() -> list[JavaPayload]:
    records = map(json.loads, (VECTORS / "schemas.jsonl").read_text(encoding="utf-8").splitlines())
    return [
        JavaPayload(
            r["case"], r["value"], bytes.fromhex(r["payload"]),
            SchemaInfo(
                type=r["type"], name=r["name"], data=bytes.fromhex(r["data"]),
                properties=tuple(r["properties"].items()),
            ),
        )
        for r in records
    ]  # fmt: skip
