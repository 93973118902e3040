"""Client, broker and store together in virtual time, over failing connections and a failing disk."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.simulation import checker
from tests.simulation.history import History
from tests.simulation.world import World, run_seed


@pytest.mark.simulation(20, 5)
@pytest.mark.timeout(300)
def test_no_receipted_message_is_lost_and_no_acknowledged_one_redelivered(seeds: range) -> None:
    for seed in seeds:
        run_seed(seed)


def test_the_same_seed_repeats_the_same_history() -> None:
    for seed in (3, 26):
        assert World(seed).play().text() == World(seed).play().text()


@pytest.mark.timeout(60)
def test_a_broker_killed_while_it_stops_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(0)
    machine = world.machine
    machine.calm = True

    def stop_and_hang() -> None:
        monkeypatch.setattr(machine.server, "stop", asyncio.Event().wait)
        machine.server.store_stopped.set()

    async def main() -> None:
        keeper = asyncio.create_task(machine.run())
        for seconds, act in ((1, stop_and_hang), (1, machine.kill), (10, lambda: None)):
            await asyncio.sleep(seconds)
            act()
        assert machine.life == 2
        keeper.cancel()
        await machine.stop()

    monkeypatch.setattr(world, "main", main)
    world.play()


def test_the_runs_reach_what_they_are_meant_to_reach() -> None:
    kinds: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in range(20):
        history = run_seed(seed).history
        kinds.update(event.kind for event in history.events)
        faults.update(event.who for event in history.of("fault"))
    assert min(kinds[kind] for kind in ("receipt", "received", "acknowledged")) > 500
    assert kinds["sought"]
    assert faults["the power fails"] > 10
    assert faults["the broker is killed"] > 10
    assert faults["a connection breaks"] > 10
    assert faults["the topic is unloaded"]


def history_of(*lines: str) -> History:
    """Make a history of lines ``time kind who content position``; ``-`` stands for nothing."""
    moment = 0.0
    history = History(lambda: moment)
    for line in lines:
        at, kind, who, content, *rest = line.split()
        moment = float(at)
        position = tuple(map(int, rest[0].split(":"))) if rest else None
        history.add(kind, who, "" if content == "-" else content, position)  # type: ignore[arg-type]
    return history


SENT = ("1 send p p-0", "2 receipt p p-0 0:0:0:0", "3 send p p-1", "4 receipt p p-1 0:0:1:0")
STORED = [((0, 0, 0, 0), "p-0", ""), ((0, 0, 1, 0), "p-1", "")]


@pytest.mark.parametrize(
    ("events", "stored", "reason"),
    [
        (SENT, STORED[:1], "lost"),
        (SENT, [((0, 0, 0, 0), "p-1", ""), ((0, 0, 1, 0), "p-0", "")], "is stored at"),
        (SENT, [*STORED, ((0, 0, 2, 0), "p-1", "")], "twice without a fault"),
        (SENT, [*STORED, ((0, 0, 2, 0), "p-2", "")], "never sent"),
        (SENT, [((0, 0, 0, 0), "p-0", "k"), STORED[1]], "the key"),
        (SENT, STORED[::-1], "went back"),
        (("1 send p p-0", "2 send p p-1"), [((0, 0, 0, 0), "p-1", ""), ((0, 0, 1, 0), "p-0", "")], "behind"),
        (
            ("1 send p p-0", "2 receipt p p-0", "3 send q q-0"),
            [((0, 0, 0, 0), "q-0", ""), ((0, 0, 1, 0), "p-0", "")],
            "before a message receipted",
        ),
        ((*SENT, "5 received s p-1 0:0:1:0", "6 received s p-0 0:0:0:0"), STORED, "behind"),
        (
            (*SENT, "5 received s p-0 0:0:0:0", "6 acknowledging s p-0 0:0:0:0",
             "7 acknowledged s p-0 0:0:0:0", "30 received s p-0 0:0:0:0"),
            STORED,
            "and again",
        ),
    ],
)  # fmt: skip
def test_the_checker_finds_each_broken_promise(
    events: tuple[str, ...], stored: checker.Stored, reason: str
) -> None:
    with pytest.raises(AssertionError, match=reason):
        checker.check(
            history_of(*events), stored, {"s": "Exclusive"}, deduplicated=False, keeps_all=True,
            order_of=lambda key: "",
        )  # fmt: skip


def test_the_checker_accepts_what_is_allowed() -> None:
    allowed = (
        *SENT, "5 fault - -", "5 received s p-0 0:0:0:0", "6 acknowledging s p-0 0:0:0:0",
        "7 acknowledged s p-0 0:0:0:0", "8 received s p-1 0:0:1:0", "9 received s p-1 0:0:1:0",
        "20 seeking s -", "21 sought s -", "30 received s p-0 0:0:0:0",
    )  # fmt: skip
    history = history_of(*allowed)
    checker.check(
        history, STORED, {"s": "Exclusive"}, deduplicated=True, keeps_all=True, order_of=lambda key: ""
    )
    assert checker.missing(history, ["p-0", "p-1"], "s") == ["p-0", "p-1"]
