"""Faults of the network, the disk, the clock and the broker's process, while the workloads work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from geminga.ids import TopicName

if TYPE_CHECKING:
    from tests.client.virtual import Transport
    from tests.simulation.world import World


class Faults:
    """Faults drawn by a world's seed."""

    KINDS: Final = {
        "cut": 30, "cut inside": 10, "silence": 6, "unread": 6, "trickle": 6, "unload": 10, "kill": 5,
        "power": 5, "clock": 4, "slow disk": 3, "full disk": 3,
    }  # fmt: skip
    """Each fault and how often it is drawn."""

    def __init__(self, world: World, without: frozenset[str]) -> None:
        self.world, self.numbers = world, world.numbers
        self.kinds = {kind: weight for kind, weight in self.KINDS.items() if kind not in without}
        self._held: list[Transport] = []
        self._unread: list[Transport] = []

    async def run(self) -> None:
        """Break something now and then, until this is cancelled."""
        acts: dict[str, Callable[[], None]] = {
            "cut": self.cut, "cut inside": self.cut_inside, "silence": self.silence, "unread": self.unread,
            "trickle": self.trickle, "unload": self.unload, "kill": self.world.machine.kill,
            "power": self.world.machine.lose_power, "clock": self.set_clock, "slow disk": self.slow_disk,
            "full disk": self.fill_disk,
        }  # fmt: skip
        while self.kinds:
            await self.world.pass_time(self.numbers.uniform(0, 2) * self.world.pace)
            if self.numbers.random() < 0.7:
                acts[self.numbers.choices(list(self.kinds), list(self.kinds.values()))[0]]()

    def heal(self) -> None:
        """End the faults that last."""
        for side in self._held:
            side.release()
        for side in self._unread:
            side.resume_reading()
        for side in self._sides():
            side.piece_bytes = None
        self._held, self._unread = [], []
        self.world.machine.disk_delay = 0.0
        self.world.machine.disk.others_bytes = 0

    def _after(self, longest: float, undo: Callable[[], None]) -> None:
        self.world.loop.call_later(self.numbers.uniform(0.1, longest), undo)

    def _sides(self) -> list[Transport]:
        return [side for link in self.world.network.links if not link[0].gone for side in link]

    def cut(self) -> None:
        self.world.fault("a connection breaks")
        self.world.network.cut()

    def cut_inside(self) -> None:
        if sides := self._sides():
            self.world.fault("a connection breaks inside a frame")
            self.numbers.choice(sides).break_after(self.numbers.choice([1, 4, 20, 100, 1000, 20_000]))

    def silence(self) -> None:
        """Let one end, or both, not hear the other any more; some links stay so for good."""
        links = [link for link in self.world.network.links if not link[0].gone]
        if links:
            self.world.fault("a connection is half open")
            link = self.numbers.choice(links)
            held = self.numbers.choice([link, link[:1], link[1:]])
            for side in held:
                side.hold()
            self._held += held
            if self.numbers.random() < 0.7:
                self._after(90, lambda: [side.release() for side in held])

    def unread(self) -> None:
        """Let the client's end of a connection read nothing for a while."""
        links = [link for link in self.world.network.links if not link[0].gone]
        if links:
            self.world.fault("a client does not read")
            side = self.numbers.choice(links)[0]
            side.pause_reading()
            self._unread.append(side)
            self._after(90, side.resume_reading)

    def trickle(self) -> None:
        """Let the bytes of a connection arrive in small pieces for a while: frames and groups are split."""
        if sides := self._sides():
            self.world.fault("a connection is slow")
            side = self.numbers.choice(sides)
            side.piece_bytes = self.numbers.choice([300, 1500, 5000])
            self._after(60, lambda: setattr(side, "piece_bytes", None))

    def unload(self) -> None:
        self.world.fault("the topic is unloaded")
        for workload in self.world.workloads:
            topic = TopicName.parse(workload.topic)
            self.world.machine.unload([topic.partition_name(0), topic])

    def set_clock(self) -> None:
        self.world.fault("the wall clock is set")
        clock = self.world.clock
        clock.wall_ahead += self.numbers.choice([-3600, -30, -1, 1, 30, 3600, 400 * 86_400])
        self.world.walls.append((clock.now, clock.wall))

    def slow_disk(self) -> None:
        machine = self.world.machine
        self.world.fault("the disk is slow")
        machine.disk_delay = self.numbers.choice([0.5, 5.0, 40.0])
        self._after(60, lambda: setattr(machine, "disk_delay", 0.0))

    def fill_disk(self) -> None:
        machine = self.world.machine
        self.world.fault("the disk is full")
        machine.disk.others_bytes = machine.disk.capacity_bytes - machine.disk.used_bytes
        machine.disk.others_bytes -= self.numbers.choice([0, 1000, 20_000])
        self._after(60, lambda: setattr(machine.disk, "others_bytes", 0))
