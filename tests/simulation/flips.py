"""Flipped bits on the disk of a stopped broker: no wrong message, damage named, all others delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation import rules
from tests.simulation.checker import Stored
from tests.simulation.workloads.base import Workload

if TYPE_CHECKING:
    from tests.simulation.world import World

LOG = "/data/log-"


async def flip_and_judge(world: World) -> None:
    """Flip bits of the log while the broker is down, and read all topics again."""
    before = {workload: await read(workload) for workload in world.workloads if workload.judges_flips}
    backlogs = {workload: workload.backlogs() for workload in before}
    machine = world.machine
    machine.kill()
    flip(world)
    await world.pass_time(30)
    for workload, stored in before.items():
        if stored:
            after = await read(workload)
            named, is_vague = named_damage(world)
            rules.same_or_named(stored, after, named, is_vague, workload.large)
            found = workload.backlogs()
            assert named or is_vague or found == backlogs[workload], (
                f"the backlogs are {found}, they were {backlogs[workload]}, and no damage is named"
            )


async def read(workload: Workload) -> Stored:
    return await workload.until_it_works(workload.stored)


def flip(world: World) -> None:
    """Flip one to three bits anywhere in the log."""
    r, disk = world.numbers, world.machine.disk
    logs = [path for path in sorted(disk.names) if path.startswith(LOG) and len(disk.names[path].visible)]
    for _ in range(r.randrange(1, 4)):
        content = disk.content(r.choice(logs))
        bit = r.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        world.machine.is_damaged = True
        world.fault(f"bit {bit} of {len(content)} bytes flips")


def named_damage(world: World) -> tuple[set[tuple[int, int]], bool]:
    """Return the entries that the store names as damaged, and whether it names damage without entries."""
    named: set[tuple[int, int]] = set()
    is_vague = False
    for damage in world.machine.server.store.damage.found:
        world.history.add("damage", "store", detail=damage)
        if damage.ledger_id is None or damage.first_entry_id is None or damage.last_entry_id is None:
            is_vague = True
        else:
            entries = range(damage.first_entry_id, damage.last_entry_id + 1)
            named |= {(damage.ledger_id, entry) for entry in entries}
    return named, is_vague
