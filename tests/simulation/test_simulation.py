"""Client, broker and store together in virtual time, over failing connections and a failing disk."""

import asyncio
import gc
import logging
import os
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from geminga.broker.delivery import delivery_times
from geminga.broker.runtime.disk import DiskLevel
from geminga.ids import TopicName
from tests.simulation import checker, rules
from tests.simulation.history import History, Position
from tests.simulation.mutants import MUTANTS, ROOT
from tests.simulation.workloads import WORKLOADS
from tests.simulation.workloads.positions import Sequence
from tests.simulation.world import World, run_seed

FOUND: dict[int, dict[str, frozenset[str]]] = {
    22: {"only": frozenset({"letters"})},  # of a chunked message only the last chunk was redelivered
    124: {"without": frozenset({"cut", "flips", "offload", "slow disk"})},  # an early receipt after an unload
    3001702: {},  # a superblock that was not synced again after an error at the first start
    3001704: {},  # a producer that was not told of pending entries of an ended connection
    # no defect: of a message sent again in part, only chunks without its first one are left
    116: {"without": frozenset({"transactions"})},
    4000870: {},  # a chunk on its way while the client asked for redelivery was acknowledged as too old
    # a redelivered chunked message was not assembled beside a later attempt without end
    4000776: {"without": frozenset({"transactions"})},
    5060453: {},  # no defect: slow consumers were at work when the wait for them ended
}
"""Seeds that found a defect, and how they were played."""


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    """Restore afterwards the sizes that each world draws."""
    for name in ("RUN_ENTRIES", "SLICE_ENTRIES"):
        monkeypatch.setattr(delivery_times, name, getattr(delivery_times, name))


@pytest.mark.rotating(1)
@pytest.mark.parametrize("first", range(2000, 2200, 5))
def test_no_receipted_message_is_lost_and_no_acknowledged_one_redelivered(first):
    for seed in range(first, first + 5):
        run_seed(seed)


@pytest.mark.rotating(len(WORKLOADS))
@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("seed", range(3))
def test_each_workload_passes(name, seed):
    run_seed(seed, only=frozenset({name}))


@pytest.mark.parametrize("seed", FOUND)
def test_what_a_seed_has_found_stays_fixed(seed):
    run_seed(seed, **FOUND[seed])


def test_the_same_seed_repeats_the_same_history_in_another_process():
    """With another seed of hashes, the order of sets of texts is another one."""
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "3-3", "--log"]
    found = []
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, check=True
        )
        found.append(done.stdout)
    assert found[0] == found[1]
    assert found[0].count(b"\n") > 300


def test_a_seed_does_not_depend_on_the_clock_of_the_one_before():
    """The age of a chunk decided by the clock that was in force when the client was imported."""
    first = World(112, only=frozenset({"refusals"})).play().text()
    run_seed(111, only=frozenset({"refusals"}))
    assert World(112, only=frozenset({"refusals"})).play().text() == first


def test_nothing_of_a_run_stays_in_memory(caplog):
    """Arrow held the open files of offloaded ledgers, and they the machine."""
    caplog.set_level(logging.CRITICAL, "geminga")  # records of log messages hold parts of the run
    world = World(8, only=frozenset({"reading"}))
    world.play()
    played = weakref.ref(world)
    del world
    for _ in range(2):
        gc.collect()
    assert played() is None


def play_calmly(world: World, monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[None]]) -> None:
    """Run a broker without faults of its own while ``act`` runs, and stop it."""
    world.machine.calm = True

    async def main() -> None:
        keeper = asyncio.create_task(world.machine.run())
        await act()
        keeper.cancel()
        await world.machine.stop()

    monkeypatch.setattr(world, "main", main)
    world.play()


def test_a_broker_killed_while_it_stops_is_started_again(monkeypatch):
    world = World(0, only=frozenset({"t"}), without=frozenset({"offload"}))
    machine = world.machine

    def stop_and_hang() -> None:
        monkeypatch.setattr(machine.server, "stop", asyncio.Event().wait)
        machine.server.store_stopped.set()

    async def kill() -> None:
        for seconds, step in ((1, stop_and_hang), (1, machine.kill), (10, lambda: None)):
            await world.pass_time(seconds)
            step()
        assert machine.life == 2

    play_calmly(world, monkeypatch, kill)


def test_writes_that_a_full_disk_holds_up_resume_without_a_restart(monkeypatch):
    world = World(1, only=frozenset({"t"}), without=frozenset({"offload"}))
    machine, disk = world.machine, world.machine.disk
    created: list[object] = []

    async def fill() -> None:
        await world.pass_time(1)
        disk.others_bytes = disk.capacity_bytes - disk.used_bytes - 1000
        for number in range(30):  # the space that is left is used up when its checkpoint has ended
            topic = TopicName.parse(f"persistent://public/default/full{number}")
            machine.administer(lambda actions, topic=topic: actions.create(topic, created.append))
            await world.pass_time(1)
        assert 0 < len(created) < 30
        disk.others_bytes = 0
        await world.pass_time(5)
        assert created == [None] * 30
        assert machine.server.broker.disk.level is DiskLevel.PLENTY

    play_calmly(world, monkeypatch, fill)


def test_the_runs_reach_what_they_are_meant_to_reach():
    kinds: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in range(300, 312):
        history = run_seed(seed).history
        kinds.update(event.kind for event in history.events)
        faults.update(event.who for event in history.of("fault"))
    assert min(kinds[kind] for kind in ("receipt", "received", "acknowledged")) > 500
    assert min(faults[fault] for fault in ("the power fails", "the broker is killed")) > 10
    others = (
        "a connection breaks", "a connection breaks inside a frame", "a connection is half open",
        "a client does not read", "the topic is unloaded", "the wall clock is set", "the disk is slow",
        "the disk is full",
    )  # fmt: skip
    assert sum(faults[fault] > 0 for fault in others) >= 6, faults


def test_every_mutant_names_a_text_of_the_sources():
    for mutant in MUTANTS:
        assert (ROOT / "src" / "geminga" / mutant.file).read_text().count(mutant.old) == 1, mutant.name
        assert mutant.only in WORKLOADS


def history_of(*lines: str) -> History:
    """Make a history of lines ``time kind who content position``; ``-`` stands for nothing."""
    moment = 0.0
    history = History(lambda: moment)
    for line in lines:
        at, kind, who, content, *rest = line.split()
        moment = float(at)
        position = tuple(map(int, rest[0].split(":"))) if rest else None
        history.add(kind, who, "" if content == "-" else content, position)
    return history


SENT = ("1 send p p-0", "2 receipt p p-0 0:0:0:0", "3 send p p-1", "4 receipt p p-1 0:0:1:0")
STORED = [((0, 0, 0, 0), "p-0", ""), ((0, 0, 1, 0), "p-1", "")]
BOTH = ("1 committing w p-0/0/1", "2 committing w b/0/2")


def results(*contents: str) -> list[tuple[Position, str, str]]:
    return [((0, 0, number, 0), content, "") for number, content in enumerate(contents)]


WHOLE = results("p-0/0/1", "b/0/2")
RESULTS = {
    "only in some topics": ([WHOLE, WHOLE[:1]], [], []),
    "never to be": ([WHOLE, WHOLE], [], []),
    "aborted, and visible": ([WHOLE, WHOLE], [], []),
    "committed, and lost": ([WHOLE, WHOLE], [], []),
    "several": ([results("p-0/0/1", "p-0/0/4")] * 2, [], []),
    "never processed": ([WHOLE, WHOLE], [], ["p-0", "q-0"]),
    "a dirty read": ([WHOLE, WHOLE], ["out"], ["p-0"]),
}
"""Arguments of the rule of transactions, by what it is to find."""


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
def test_the_checker_finds_each_broken_promise(events, stored, reason):
    with pytest.raises(AssertionError, match=reason):
        checker.check(
            history_of(*events), stored, {"s": "Exclusive"}, deduplicated=False, keeps_all=True,
            order_of=lambda key: "",
        )  # fmt: skip


def test_a_refused_message_puts_off_the_rest_of_its_batch():
    found = ("5 received s p-0 0:0:0:0", "6 refusing s p-0 0:0:0:0", "7 received s p-1 0:0:1:0")
    rest = ("3 send p p-2", "8 received s p-2 0:0:0:1")
    checker.check_subscription(history_of(*SENT, *found, *rest), "s", "Exclusive")
    with pytest.raises(AssertionError, match="behind"):
        checker.check_subscription(history_of(*SENT, found[0], found[2], *rest), "s", "Exclusive")


def test_a_batch_becomes_dead_letters_as_a_whole():
    """Also where the receipts have no positions, as those of messages sent twice with deduplication."""
    history = history_of(
        "1 send p p-0", "1 send p p-1", "2 receipt p p-0", "2 receipt p p-1",
        "5 received s p-0 0:0:0:0", "6 received s p-0 0:0:0:0",
    )  # fmt: skip
    batch = [((0, 0, 0, 0), "p-0", ""), ((0, 0, 0, 1), "p-1", "")]
    rules.dead_letters(history, batch, "s", ["p-0", "p-1"], ["p-0"], 1)
    with pytest.raises(AssertionError, match="never received"):
        rules.dead_letters(history, STORED, "s", ["p-0", "p-1"], ["p-0"], 1)


def test_the_last_message_is_received_though_its_receipt_is_that_of_a_second_copy():
    workload = World(0, only=frozenset({"seeking"})).workloads[0]
    assert isinstance(workload, Sequence)
    for event in history_of(*SENT, "5 received s p-0 0:0:0:0", "6 received s p-1 0:0:0:1").events:
        workload.history.events.append(event)
    assert not workload.last_is_received("s")
    workload.large.add("p-1")
    assert workload.last_is_received("s")


def test_the_checker_accepts_what_is_allowed():
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


RECEIVED = ("5 received s p-0 0:0:0:0", "6 received s p-1 0:0:1:0")


@pytest.mark.parametrize(("entries", "is_named"), [(8, True), (9, False)])
def test_damage_of_a_chunk_in_an_earlier_ledger_names_the_message(entries, is_named):
    between: list[tuple[Position, str, str]] = [
        ((0, 3 * n, 0, 0), f"p-{n}", "") for n in range(1, entries + 1)
    ]
    large: tuple[Position, str, str] = ((0, 50, 0, 0), "p-large", "")
    stored = [((0, 0, 0, 0), "p-0", ""), *between]
    with nullcontext() if is_named else pytest.raises(AssertionError, match="no damage is named"):
        rules.same_or_named([*stored, large], stored, {(0, 1)}, False, ["p-large"])


@pytest.mark.parametrize(
    ("rule", "events", "reason"),
    [
        ("exactly_once", (), "more than once: .'app-0'"),
        ("in_blocks", (), "had the topic"),
        ("contiguous", ("5 received s p-1 0:0:1:0",), "is next"),
        ("contiguous", (*RECEIVED, "7 seeking s -", "8 sought s - 0:0:0:0", "9 received s p-2 0:0:2:0"),
         "next"),
        ("all_received", RECEIVED, "p-2 at .* 0 times"),
        ("delayed", (*SENT, "5 received s p-0 0:0:0:0"), "early"),
        ("dead_letters", (*SENT, "5 received s p-0 0:0:0:0", "5 acknowledging s p-1 0:0:1:0"),
         "no dead letter"),
        ("skipped_by_rule", SENT, "no rule skips"),
        ("cleared", (*SENT, "5 asked administrator clear", "6 confirmed administrator clear",
                     "30 received s p-0 0:0:0:0"), "cleared"),
        ("retained", SENT, "younger"),
        ("backlogs", (*SENT, "9 backlog s 1"), "takes 2 from it"),
        ("backlogs", (*SENT, "5 asked s clear", "6 confirmed s clear", "9 backlog s 1"), "only 0 came"),
        ("same_or_named", (), "no damage is named"),
        ("last_values", SENT, "is 'p-0', not"),
        ("transactions", ("1 committing w p-0/0/1",), "only in some topics"),
        ("transactions", ("1 committing w p-0/0/1", "3 aborting w b/0/2"), "never to be"),
        ("transactions", (*BOTH, "3 aborted w p-0/0/1"), "aborted, and visible"),
        ("transactions", (*BOTH, "3 committed w c/0/3"), "committed, and lost"),
        ("transactions", (*BOTH, "3 committing w p-0/0/4"), "several"),
        ("transactions", BOTH, "never processed"),
        ("transactions", (*BOTH, "4 received out x/0/9"), "a dirty read"),
    ],
)  # fmt: skip
def test_each_rule_finds_what_breaks_it(rule, events, reason):
    history = history_of(*events)
    stored = [*STORED, ((0, 0, 2, 0), "p-2", "")]
    checks = {
        "exactly_once": lambda: rules.exactly_once([(STORED[0][0], "app-0", "")] * 2, 2),
        "in_blocks": lambda: rules.in_blocks(
            [((0, 0, n, 0), name, "") for n, name in enumerate(("a-0", "b-0", "a-1"))], [], []
        ),
        "contiguous": lambda: rules.contiguous(history, stored, "s", repeats=True),
        "all_received": lambda: rules.all_received(history, stored, "s"),
        "delayed": lambda: rules.delayed(history, {"p-0": 107.0, "p-1": 0.0}, [(0.0, 100.0)], "s", 30.0),
        "dead_letters": lambda: rules.dead_letters(history, STORED, "s", ["p-0"], [], 1),
        "skipped_by_rule": lambda: rules.skipped_by_rule(history, "s", {"p-0": 1.0, "p-1": 3.0}, 1, 0),
        "cleared": lambda: rules.cleared_stays_cleared(history, "s"),
        "backlogs": lambda: rules.backlogs(history, "s", {"p-0": 1, "p-1": 3}, 30, deduplicated=True),
        "retained": lambda: rules.retained(history, STORED[:1], 60, 10.0),
        "same_or_named": lambda: rules.same_or_named(STORED, STORED[:1], {(0, 0)}, False, []),
        "transactions": lambda: rules.transactions(history, *RESULTS[reason]),
        "last_values": lambda: rules.last_values(rules.possible_last(history), {"": "p-0"}, "the view"),
    }
    with pytest.raises(AssertionError, match=reason):
        checks[rule]()
