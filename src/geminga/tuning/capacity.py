"""Capacity: the highest rate at which a broker keeps a latency budget, with stock and with advised settings.

The rate of a subject is raised by half from run to run until one misses the budget. From then on each run is
a tenth faster after a kept one and a tenth slower after a missed one, so that the rate goes up and down
around the edge, and other load of the machine moves single runs, not the result. After several runs with the
same result the edge is elsewhere: the steps are wide again. Subjects take turns. The formula's settings
depend on the rate, and on the time that messages took besides their wait for a batch in the run before.
"""

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from geminga.tuning.expectation import DELIVERY_P99_SECONDS
from geminga.tuning.measuring.broker_view import APACHE
from geminga.tuning.measuring.outcome import RunOutcome
from geminga.tuning.measuring.run import Subject, producers_by_process
from geminga.tuning.prove import Proof, Prover, subjects
from geminga.tuning.traffic import RATE_MAX, TrafficProfile

SUBJECTS = ("Geminga, stock, LZ4", "Geminga, formula, ZSTD")
"""Subjects that are compared by default: stock settings with compression, and the formula's."""
RAISE, STEP = 1.5, 1.1
"""Factors between the rates of two runs, before an edge is found and around it."""
SAME = 6
"""Runs with the same result after which the steps are wide again: five narrow ones are as wide as a raise."""
LOWEST = 1 / 50
"""Part of the first rate; a subject that misses a lower rate is given up."""
RECEIPTS_MIN = 0.98
"""Smallest part of the messages due that must be sent and have receipts."""
DELIVERY_PART_MAX = 0.5
"""Largest part of the latency budget that the formula leaves for delivery: an overloaded broker needs fuller
batches, not emptier ones."""
DELIVERY_MARGIN = 1.25
"""The time that the formula leaves for delivery, divided by the time that it took in the run before."""
BUSY = 0.9
"""Part of a core, or of all cores, from which on it counts as used up."""


def rate_of(outcome: RunOutcome) -> float:
    """Return the messages per second that were due."""
    return float(outcome.profile["rate_messages_per_second"])


def p99_ms(outcome: RunOutcome) -> float | None:
    """Return the 99th percentile latency that the budget limits: to the consumer, or without subscriptions
    to the receipt."""
    latency = outcome.end_to_end if outcome.profile["subscriptions"] else outcome.receipt
    return latency.p99_ms


def is_kept(outcome: RunOutcome) -> bool:
    """Return whether a run kept its rate and its latency budget.

    Latencies count from the time at which a message was due, so a producer that falls behind misses it.
    """
    p99 = p99_ms(outcome)
    if outcome.failure or p99 is None or outcome.receipts < RECEIPTS_MIN * outcome.offered:
        return False
    return bool(p99 <= 1000 * outcome.profile["latency_budget_seconds"])


def delivery_seconds(before: Sequence[RunOutcome]) -> float:
    """Return the time that the formula is to leave for sending, storing and delivering: a quarter more than
    the 99th percentile latency of the run before without the wait for a batch, within limits."""
    if not before or (p99 := p99_ms(before[-1])) is None:
        return DELIVERY_P99_SECONDS
    taken = p99 / 1000 - before[-1].settings["batching_max_publish_delay_seconds"]
    limit = DELIVERY_PART_MAX * before[-1].profile["latency_budget_seconds"]
    return float(max(DELIVERY_P99_SECONDS, min(DELIVERY_MARGIN * taken, limit)))


def next_rate(tried: Sequence[tuple[float, bool]], first: float, crossings: int) -> float | None:
    """Return the next rate of a subject whose runs were at these rates, kept or missed; None at the end."""
    if not tried:
        return first
    rate, kept = tried[-1]
    crossed = sum(before[1] != after[1] for before, after in itertools.pairwise(tried))
    if crossed >= crossings or (not kept and rate < LOWEST * first):
        return None
    is_near = len({kept for _, kept in tried[-SAME:]}) > 1
    factor = STEP if is_near else RAISE
    return min(rate * factor, RATE_MAX) if kept else rate / factor


def edge_runs(outcomes: Sequence[RunOutcome]) -> list[RunOutcome]:
    """Return the kept runs at the crossings of the edge by a narrow step; at all if each step was wide."""
    pairs = [pair for pair in itertools.pairwise(outcomes) if is_kept(pair[0]) != is_kept(pair[1])]
    narrow = [pair for pair in pairs if _is_narrow(*map(rate_of, pair))]
    return [before if is_kept(before) else after for before, after in narrow or pairs]


def _is_narrow(rate: float, other: float) -> bool:
    return max(rate, other) / min(rate, other) < (STEP + RAISE) / 2


class CapacityFinder(Prover):
    """Executes a plan: its rate is the first one, its ``repeats`` are the crossings of each edge."""

    def _todo(self) -> Iterator[tuple[Subject, TrafficProfile, int]]:
        plan = self._plan
        titles = [subject.title for subject in subjects(plan)]
        while True:
            runs = {title: [o for o in self.proof.outcomes if o.subject == title] for title in titles}
            for title in sorted(titles, key=lambda title: len(runs[title])):
                tried = [(rate_of(o), is_kept(o)) for o in runs[title]]
                rate = next_rate(tried, plan.profile.rate_messages_per_second, plan.repeats)
                if rate is not None:
                    break
            else:
                return
            profile = plan.profile.changed(rate_messages_per_second=rate)
            chosen = replace(
                plan, profile=profile, only=(title,), delivery_seconds=delivery_seconds(runs[title])
            )
            (subject,) = subjects(chosen)
            yield subject, profile, len(tried)

    def _keep(self, outcome: RunOutcome) -> None:
        super()._keep(outcome)
        p99 = p99_ms(outcome)
        latency = "" if p99 is None else f": p99 {p99:.1f} ms"
        self._say(f"    budget {'kept' if is_kept(outcome) else 'missed'}{latency}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """The edge of a subject."""

    subject: str
    rate: float
    """Messages per second: the median of `edge_runs`."""
    edge: RunOutcome
    """The run at this rate, which kept the budget."""
    missed: RunOutcome | None
    """Last run that missed the budget; the resource that it used up is the limit. None: all kept it."""


def capacities(proof: Proof) -> list[Capacity]:
    """Return the edge of each subject that kept the budget at some rate."""
    found = []
    for title, outcomes in proof.by_subject().items():
        at_edge = edge_runs(outcomes) or [o for o in outcomes if is_kept(o)][-1:]
        if not at_edge:
            continue
        rate = statistics.median_low(rate_of(o) for o in at_edge)
        found.append(
            Capacity(
                subject=title,
                rate=rate,
                edge=next(o for o in at_edge if rate_of(o) == rate),
                missed=next((o for o in reversed(outcomes) if not is_kept(o)), None),
            )
        )
    return found


def limit_of(proof: Proof, missed: RunOutcome) -> str:
    """Return what a missed run used up: cores of the machine, the broker's, the producers', or the disk."""
    seconds, cores = missed.seconds or 1.0, proof.machine["cores"]
    broker = missed.broker_cpu_seconds / seconds
    producers = (missed.client_cpu_seconds + missed.loop_cpu_seconds) / seconds
    processes = len(producers_by_process(missed.profile["producers"], cores))
    whole = missed.machine_cpu_seconds
    if whole is not None and whole / seconds >= BUSY * cores:
        others = max(0.0, whole / seconds - broker - producers)
        return (
            f"all {cores} cores (broker {broker:.2f}, producers {producers:.2f}, "
            f"readers and others {others:.2f})"
        )
    if broker >= BUSY and not proof.broker.startswith(APACHE):
        return f"the broker's CPU ({broker:.2f} cores; its event loop has one)"
    if producers >= BUSY * processes:
        return f"the producers' CPU ({producers:.2f} cores in {processes} process{'es' * (processes != 1)})"
    if missed.disk_wait_seconds is not None and missed.disk_wait_seconds / seconds >= BUSY / 2:
        return "the disk"
    if missed.failure:
        return missed.failure
    return f"latency: broker {broker:.2f} and producers {producers:.2f} of {cores} cores busy"
