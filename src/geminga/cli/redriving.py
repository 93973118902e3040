"""``geminga subscriptions redrive``: dead letters are sent back, after a preview and a question."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import replace
from typing import Any

from geminga.asyncio import Admin, Client, Redrive, RedriveFilter, RedriveResult
from geminga.cli.common import asks, confirm, emit, say
from geminga.client.cluster import Cluster
from geminga.diagnosis.commands import how_many


def run(
    cluster: Cluster, topic: str, subscription: str, options: dict[str, Any], *, only_looks: bool
) -> None:  # fmt: skip
    """Redrive as the command's ``options`` say; only a preview is shown if ``only_looks``."""
    chosen = RedriveFilter(
        key=options["key"],
        contains=(options["contains"] or "").encode(),
        properties=dict(options["properties"] or {}),
        since=options["since"],
        before=options["before"],
        count_max=options["count_max"] or 0,
    )

    async def work() -> None:
        async with (
            Client(**cluster.client_arguments()) as client,
            Admin(**cluster.admin_arguments()) as admin,
        ):
            redrive = Redrive(
                client, admin, topic, subscription,
                dead_letters=options["dead_letters"], to=options["to"], only=chosen,
            )  # fmt: skip
            if asks() or only_looks:
                result = await redrive.preview()
                text = f"{_text(result, 'to send')} from {redrive.dead_letters}"
                if only_looks or not result.sent:
                    return emit(_summary(redrive, result, "would_send"), text)
                confirm(f"{text}. Send?")
            with _Progress() as progress:
                result = await redrive.run(rate=options["rate"], progress=progress.show)
            emit(_summary(redrive, result, "sent"), _text(result, "sent"), is_done=True)

    # The addresses are looked up by a blocking call, before there is a loop.
    cluster = replace(cluster, admin_url=cluster.find_admin_url())
    asyncio.run(work())


class _Progress:
    """Number of messages sent so far, on a terminal, once a second."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 1

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if sys.stderr.isatty():
            say("\r\x1b[K", nl=False)

    def show(self, sent: int) -> None:
        if sys.stderr.isatty() and time.monotonic() >= self._next:
            self._next = time.monotonic() + 1
            say(f"\r{how_many(sent)} sent", nl=False)


def _text(result: RedriveResult, verb: str) -> str:
    targets = ", ".join(f"{count:,} to {topic}" for topic, count in sorted(result.sent.items()))
    parts = [f"{how_many(result.sent.total())} {verb}" + (f" ({targets})" if targets else "")]
    if result.found:
        parts.append(f"{how_many(result.found)} sent by an interrupted run before")
    if result.left:
        parts.append(f"{result.left:,} left")
    if result.encrypted:
        parts.append(f"{result.encrypted:,} encrypted and not sent")
    return ", ".join(parts)


def _summary(redrive: Redrive, result: RedriveResult, verb: str) -> dict[str, Any]:
    return {
        "dead_letters": redrive.dead_letters,
        verb: dict(result.sent),
        "sent_before": result.found,
        "left": result.left,
        "encrypted": result.encrypted,
    }
