"""Start and end of a query, as its options name them."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping

from geminga.errors import InvalidConfiguration
from geminga.spark.offsets import EARLIEST, LATEST, OTHERS, Offsets, Partition, partition_topic
from geminga.spark.source.queries import PartitionQueries
from geminga.spark.source.search import before_time

CLOCK_DIFFERENCE_MS_MAX = 5_000
"""Maximum lead of a starting time over the driver's clock."""


class QueryBounds:
    """Start and end of one query."""

    def __init__(self, queries: PartitionQueries, wall_clock: Callable[[], float] = time.time) -> None:
        self.queries = queries
        self.options = queries.options
        self._wall_clock = wall_clock

    def starting(self, default: str) -> Offsets:
        """Return the start of a new query for every existing partition."""
        partitions, options = self.queries.partitions(), self.options
        times = self._times(
            "startingOffsetsByTimestamp", options.starting_times, options.starting_time_ms, partitions
        )
        rest = [partition for partition in partitions if partition not in times]
        places = self._named("startingOffsets", options.starting_offsets or default, default, rest)
        self._check_start(places)
        self._check_past(times)
        return {**places, **self._before_times(times)}

    def ending(self, partitions: Iterable[Partition], known: Iterable[Partition] = ()) -> Offsets:
        """Return the end of a batch query, at most the newest message. ``known``: partitions excluded by a
        filter, which options may name too."""
        asked, options = list(partitions), self.options
        known = {*asked, *known}
        times = self._times("endingOffsetsByTimestamp", options.ending_times, options.ending_time_ms, known)
        times = {partition: times[partition] for partition in asked if partition in times}
        rest = [partition for partition in asked if partition not in times]
        latest = self.queries.latest(rest)
        named = self._named("endingOffsets", options.ending_offsets, "latest", rest, latest, known)
        places = {partition: min(place, latest[partition]) for partition, place in named.items()}
        return {**places, **self._before_times(times)}

    def _times(
        self,
        option: str,
        given: Mapping[Partition, int],
        all_ms: int | None,
        partitions: Collection[Partition],
    ) -> dict[Partition, int]:
        """Return the time of each partition that has one."""
        if all_ms is not None:
            return dict.fromkeys(partitions, all_ms)
        whole = {topic: time_ms for (topic, index), time_ms in given.items() if index < 0}
        found = {}
        for partition in partitions:
            time_ms = given.get(partition, whole.get(partition[0]))
            if time_ms is not None:
                found[partition] = time_ms
        topics = {topic for topic, _ in partitions}
        unknown = [p for p in given if p not in found and not (p[1] < 0 and p[0] in topics)]
        if unknown:
            raise _not_read(option, unknown)
        return found

    def _before_times(self, times: Mapping[Partition, int]) -> Offsets:
        latest = self.queries.latest(times)
        return self.queries.run({p: before_time(newest, times[p]) for p, newest in latest.items()})

    def _check_past(self, times: Mapping[Partition, int]) -> None:
        now_ms = int(self._wall_clock() * 1000)
        time_ms = max(times.values(), default=now_ms)
        if time_ms > now_ms + CLOCK_DIFFERENCE_MS_MAX and not self.options.future_is_latest:
            by_partition = self.options.starting_time_ms is None
            option = "startingOffsetsByTimestamp: the time " if by_partition else "startingTime="
            raise InvalidConfiguration(
                f"option {option}{time_ms} is {(time_ms - now_ms) / 1000:g} s in the future: messages "
                "published until then could not be excluded; allowed: milliseconds since 1970, "
                f"up to now ({now_ms}), or startingOffsetsByTimestampStrategy=latest"
            )

    def _named(
        self,
        option: str,
        places: str | Offsets,
        default: str,
        partitions: list[Partition],
        latest: Offsets | None = None,
        known: Collection[Partition] = (),
    ) -> Offsets:
        """Resolve offsets named by an option. ``latest``: newest offsets, if known, which saves a query.
        ``known``: other partitions that may be named."""
        given = {} if isinstance(places, str) else places
        unknown = set(given) - {OTHERS, *partitions, *known}
        if unknown:
            raise _not_read(option, unknown)
        otherwise = EARLIEST if (places if isinstance(places, str) else default) == "earliest" else LATEST
        otherwise = given.get(OTHERS, otherwise)
        found = {partition: given.get(partition, otherwise) for partition in partitions}
        at_the_end = latest
        if at_the_end is None:
            at_the_end = self.queries.latest(
                partition for partition, place in found.items() if place == LATEST
            )
        for partition, place in found.items():
            if place == LATEST:
                found[partition] = at_the_end[partition]
            elif partition in given and option == "startingOffsets":
                found[partition] = place.inclusive_start
        return found

    def _check_start(self, places: Offsets) -> None:
        """Reject a start after the newest message, which could wait forever."""
        given = self.options.starting_offsets
        if not isinstance(given, dict):
            return
        latest = self.queries.latest(partition for partition in places if partition in given)
        for partition, newest in latest.items():
            if places[partition] > newest and given[partition] != LATEST:
                raise InvalidConfiguration(
                    f"option startingOffsets: {partition_topic(partition)} has no message "
                    f"{given[partition]}, its newest is {newest}; use 'latest' to start after it"
                )


def _not_read(option: str, partitions: Iterable[Partition]) -> InvalidConfiguration:
    names = ", ".join(partition_topic(partition) for partition in sorted(partitions))
    return InvalidConfiguration(f"option {option} names {names}, which this query does not read")
