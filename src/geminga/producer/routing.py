"""Step 3 of publishing: the partition of a message.

A key determines it by its hash. Without a key, `RoundRobin` or `SinglePartition` names a preferred partition,
and blocked ones are skipped: permits used up, connection not ready, or its oldest message waiting too long.
When every partition is blocked, or with ``step_over_blocked_partitions=False`` (the official clients'
behaviour), the preferred one is returned and the limits of pending messages decide.
"""

import inspect
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol

from geminga.errors import InvalidMessage
from geminga.producer.message import OutgoingMessage, RoutedMessage
from geminga.producer.self_tuning import SelfTuning
from geminga.producer.settings import PartitionsRoutingMode, ProducerSettings
from geminga.wire.hashing import PARTITION_HASHES

HASHES_REMEMBERED_MAX = 16_384
"""Maximum keys whose hashes a router remembers."""


class BlockedReason(Enum):
    """Reason for which a partition is skipped."""

    PERMITS = "its permits are used up"
    CONNECTION = "its connection is not ready"
    AGE = "its oldest message waits too long for a receipt"


class RoutedPartition(Protocol):
    """Interface of a partition for routing."""

    def blocked(self, now: float) -> BlockedReason | None: ...

    def stepped_over(self, reason: BlockedReason, now: float) -> None: ...

    def chosen(self, now: float) -> None: ...


class Router:
    """Chooses partitions for one producer. ``random`` returns numbers in [0, 1): the start is random, so that
    many producers do not all begin with the same partition. With ``tuning`` the round robin stays on a
    partition as long as its batch is open."""

    def __init__(
        self, settings: ProducerSettings, random: Callable[[], float], tuning: SelfTuning | None = None
    ) -> None:
        self._mode = settings.message_routing_mode
        self._hash = PARTITION_HASHES[settings.hashing_scheme.value]
        self._hashes: dict[str, int] = {}
        """Hashes of recent keys: hashing takes as long as all other work for a message."""
        self._custom = settings.message_router
        self._custom_sees_states = _takes_three(settings.message_router)
        self._per_message = not settings.batching_enabled
        self.steps_over = settings.step_over_blocked_partitions and (
            self._mode is not PartitionsRoutingMode.UseSinglePartition
        )
        self._start = random()
        self._cursor: int | None = None
        self._before: int | None = None
        """The cursor before the last message was routed."""
        self._switch_seconds = max(
            0.001, settings.batching_max_publish_delay_seconds * settings.batching_partition_switch_frequency
        )
        self._switch_at = float("-inf")
        self._tuning = tuning

    @property
    def custom(self) -> bool:
        return self._mode is PartitionsRoutingMode.CustomPartition

    def of_key(self, key: str, partitions: int) -> int:
        """Return the partition of a key, the same for all its messages if the count is unchanged."""
        known = self._hashes.get(key)
        if known is None:
            if len(self._hashes) >= HASHES_REMEMBERED_MAX:
                self._hashes.clear()
            known = self._hashes[key] = self._hash(key)
        return known % partitions

    def of_custom(self, message: OutgoingMessage, states: Sequence[Any]) -> int:
        """Return the partition chosen by the application's router.

        Raises `InvalidMessage` for a number that is no partition, and the errors of the router or ``int``.
        """
        assert self._custom is not None
        view = RoutedMessage(message)
        count = len(states)
        answer = self._custom(view, count, states) if self._custom_sees_states else self._custom(view, count)
        chosen = int(answer)
        if not 0 <= chosen < count:
            raise InvalidMessage(
                f"message_router returned {answer!r}; allowed: a whole number >= 0 and < {count}"
            )
        return chosen

    def of_unkeyed(self, partitions: Sequence[RoutedPartition], now: float) -> int:
        """Return the partition for a message without a key; blocked ones are skipped, which they count."""
        count = len(partitions)
        if count == 1:
            return 0
        self._before = self._cursor
        preferred = self._preferred(count, now)
        if not self.steps_over:
            return preferred
        skipped: list[tuple[int, BlockedReason]] = []
        for step in range(count):
            index = (preferred + step) % count
            reason = partitions[index].blocked(now)
            if reason is None:
                for behind, why in skipped:
                    partitions[behind].stepped_over(why, now)
                if step:
                    self._move_to(index, now)
                partitions[index].chosen(now)
                return index
            skipped.append((index, reason))
        return preferred

    def step_back(self) -> None:
        """Undo the last routing: the message is to be routed again."""
        self._cursor = self._before

    def batch_filled(self, now: float) -> None:
        """Note that the current partition's batch is full: the round robin may move on early."""
        self._switch_at = now

    def _preferred(self, count: int, now: float) -> int:
        cursor = self._cursor
        if cursor is None:
            cursor = int(self._start * count) % count
            self._move_to(cursor, now)
            return cursor
        cursor %= count
        if self._mode is PartitionsRoutingMode.UseSinglePartition:
            return cursor
        if self._per_message or now >= self._switch_at:
            cursor = (cursor + 1) % count
            self._move_to(cursor, now)
        return cursor

    def _move_to(self, index: int, now: float) -> None:
        self._cursor = index
        stay = self._switch_seconds if self._tuning is None else self._tuning.delay_seconds
        self._switch_at = now + stay


def _takes_three(router: Callable[..., int] | None) -> bool:
    """Return whether a custom router takes the partitions' states as its third argument."""
    if router is None:
        return False
    try:
        parameters = inspect.signature(router).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) >= 3 and all(p.default is p.empty for p in positional[:3])
