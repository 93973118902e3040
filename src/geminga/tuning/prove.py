"""Comparison of stock settings and the formula's on a real broker.

The same rate is published with stock settings, with and without compression, and with the formula's settings
with each codec, by Geminga's producer and by ``pulsar-client``.

Subjects run in turn, and the round is repeated, so that other load of the machine affects all alike. Each run
is stored when it ends: after an error, the same command resumes.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from geminga.client.cluster import Cluster
from geminga.config import check_choice, check_int, check_seconds, refuse
from geminga.errors import InvalidConfiguration, PulsarException
from geminga.producer.settings import CompressionType
from geminga.tuning.advise import CODECS, codec_title
from geminga.tuning.expectation import DELIVERY_P99_SECONDS
from geminga.tuning.formula import formula
from geminga.tuning.measuring.broker_view import APACHE, BrokerView
from geminga.tuning.measuring.host import machine
from geminga.tuning.measuring.outcome import RunOutcome
from geminga.tuning.measuring.run import Conditions, Run, Subject, measure_idle
from geminga.tuning.stock import JAVA, PULSAR_CLIENT
from geminga.tuning.traffic import TrafficProfile

FILE = "proof.json"
"""File of a comparison in its folder."""
JVM_WARM_SECONDS = 60.0
"""Load before anything is measured, on a broker in Java."""
JVM_WARM_RATE = 5_000.0
"""Messages per second of this load, each an entry: enough to compile every code path of the broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofPlan:
    """Subjects, load and broker of a comparison."""

    service_url: str
    admin_url: str | None
    profile: TrafficProfile
    cluster: Cluster | None = None
    """Authentication and TLS."""
    payload: str = "logs"
    samples: tuple[bytes, ...] = field(default=(), repr=False)
    clients: tuple[str, ...] = ("geminga", "pulsar")
    only: tuple[str, ...] = ()
    """Patterns such as ``*ZSTD`` of the subjects to run; empty: all."""
    repeats: int = 3
    seconds: float = 30.0
    warm_seconds: float = 5.0
    idle_seconds: float = 5.0
    jvm_warm_seconds: float = JVM_WARM_SECONDS
    """Seconds of uncounted load before the first run, if the broker is Apache Pulsar."""
    namespace: str = "public/default"
    server_pids: tuple[int, ...] = ()
    delivery_seconds: float = DELIVERY_P99_SECONDS
    """Time that the formula leaves for sending, storing and delivering: a part of the latency budget."""

    def __post_init__(self) -> None:
        for client in self.clients:
            check_choice("client", client, ("geminga", "pulsar"))
        check_int("repeats", self.repeats, 1, 1000)
        check_seconds("seconds", self.seconds, 0.1, 3600)
        check_seconds("warm_seconds", self.warm_seconds, 0, 600)
        check_seconds("idle_seconds", self.idle_seconds, 0.1, 600)
        check_seconds("jvm_warm_seconds", self.jvm_warm_seconds, 0.1, 600)
        if not subjects(self):
            titles = [s.title for s in subjects(replace(self, only=()))]
            refuse("only", self.only, "patterns of: " + "; ".join(titles))

    def conditions(self) -> dict[str, Any]:
        """Return the conditions that comparable runs must share, as JSON."""
        return {
            "profile": self.profile.to_dict(),
            "payload": self.payload if not self.samples else f"{len(self.samples)} samples",
            "seconds": self.seconds,
            "warm_seconds": self.warm_seconds,
        }


@dataclass(slots=True)
class Proof:
    """The runs of a comparison, with machine and conditions."""

    broker: str
    conditions: dict[str, Any]
    machine: dict[str, Any]
    outcomes: list[RunOutcome] = field(default_factory=list)
    stopped: str = ""
    """Reason why the comparison ended early."""

    def by_subject(self) -> dict[str, list[RunOutcome]]:
        """Return the runs by subject, in the order of the first round.

        Costs that do not differ between subjects are subtracted as the median over all runs: the idle broker
        (a JVM does housekeeping in bursts, which may or may not fall before a run) and, per message, the
        measuring loop.
        """
        idle = _median([o.broker_idle_per_second for o in self.outcomes])
        loop = _median([o.loop_cpu_seconds / o.sent for o in self.outcomes if o.loop_cpu_seconds and o.sent])
        found: dict[str, list[RunOutcome]] = {}
        for outcome in self.outcomes:
            same = replace(outcome, broker_idle_per_second=idle)
            if outcome.loop_cpu_seconds:
                client = outcome.client_cpu_seconds + outcome.loop_cpu_seconds - loop * outcome.sent
                same = replace(same, client_cpu_seconds=client, loop_cpu_seconds=loop * outcome.sent)
            found.setdefault(outcome.subject, []).append(same)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Proof:
        """Return the comparison that `to_dict` encoded."""
        outcomes = [RunOutcome.from_dict(row) for row in values["outcomes"]]
        return Proof(values["broker"], values["conditions"], values["machine"], outcomes, values["stopped"])

    @staticmethod
    def load(folder: Path) -> Proof:
        """Return the comparison in a folder. Raises `InvalidConfiguration` without one."""
        try:
            return Proof.from_dict(json.loads((folder / FILE).read_text()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidConfiguration(f"{folder} holds no comparison: {error}") from None

    def save(self, folder: Path) -> None:
        """Write the comparison to a folder, so that `load` returns it."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{FILE}.new"
        file.write_text(json.dumps(self.to_dict(), indent=1))
        file.replace(folder / FILE)


def _median(values: list[float]) -> float:
    return statistics.median(values) if values else 0.0


def subjects(plan: ProofPlan) -> list[Subject]:
    """Return the subjects in the order of a round."""
    found: list[Subject] = []

    def add(
        client: str, library: str, what: str, settings: Any, codec: CompressionType, level: int = 0
    ) -> None:
        suffix = f", {codec_title(codec, level)}" if codec is not CompressionType.NONE else ""
        chosen = settings.changed(compression_type=codec, compression_level=level, block_if_queue_full=True)
        found.append(Subject(title=f"{client}, {what}{suffix}", library=library, settings=chosen))

    none, lz4, zstd = CompressionType.NONE, CompressionType.LZ4, CompressionType.ZSTD
    # The settings that `advise` gives, except for the codec.
    tuned = formula(plan.profile, reserve_seconds=plan.delivery_seconds).settings
    if "geminga" in plan.clients:
        for codec in (none, lz4, zstd):
            add("Geminga", "geminga", "stock", JAVA.settings, codec)
        for codec, level in ((none, 0), *CODECS):
            add("Geminga", "geminga", "formula", tuned, codec, level)
    if "pulsar" in plan.clients:
        add("pulsar-client", "pulsar", "stock", PULSAR_CLIENT.settings, none)
        add("pulsar-client", "pulsar", "stock", PULSAR_CLIENT.settings, lz4)
        add("pulsar-client", "pulsar", "formula", tuned, zstd)
    return [s for s in found if not plan.only or any(fnmatch(s.title, pattern) for pattern in plan.only)]


class Prover:
    """Executes a plan. ``say`` is called with a line for each step."""

    def __init__(self, plan: ProofPlan, folder: Path, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._folder = folder
        self._say = say
        self.proof = Proof("", json.loads(json.dumps(plan.conditions())), machine())

    def _view(self) -> BrokerView:
        plan = self._plan
        return BrokerView(plan.service_url, plan.admin_url, plan.server_pids, plan.cluster)

    def prove(self) -> Proof:
        """Run what is not done yet. If the comparison ends early, ``Proof.stopped`` has the reason, and the
        finished runs are included. Raises errors, and `KeyboardInterrupt`, before the end of the first run.
        """
        view = self._view()
        self.proof.broker = view.title
        if (self._folder / FILE).exists():
            self._resume(Proof.load(self._folder))
        done = len(self.proof.outcomes)
        try:
            for subject, profile, run in self._todo():
                if len(self.proof.outcomes) == done and view.title.startswith(APACHE):
                    self._warm_up(view)
                self._measure(subject, profile, run)
        except PulsarException as error:
            if not self.proof.outcomes:
                raise
            self.proof.stopped = f"{type(error).__name__}: {error}"
        except KeyboardInterrupt:
            if not self.proof.outcomes:
                raise
            self.proof.stopped = "interrupted"
        if len(self.proof.outcomes) == done and not self.proof.stopped:
            self._say("everything is measured already")
        return self.proof

    def _resume(self, before: Proof) -> None:
        """Continue an earlier comparison. Raises `InvalidConfiguration` if its conditions were different."""
        for name in ("broker", "conditions"):
            was, now = getattr(before, name), getattr(self.proof, name)
            if was != now:
                raise InvalidConfiguration(
                    f"{self._folder} holds runs of {name} {was}, and now these are {now}: name another "
                    "folder, or remove it"
                )
        self.proof.outcomes = before.outcomes

    def _todo(self) -> Iterator[tuple[Subject, TrafficProfile, int]]:
        """Yield the runs that are not done yet: subject, traffic and number of the round."""
        done = {(outcome.subject, outcome.run) for outcome in self.proof.outcomes}
        for run in range(self._plan.repeats):
            for subject in subjects(self._plan):
                if (subject.title, run) not in done:
                    yield subject, self._plan.profile, run

    def _warm_up(self, view: BrokerView) -> None:
        """Send unmeasured load: a Java broker uses twice the CPU until its code is compiled. Tuned producers
        send too few entries for that, so separate messages are used."""
        seconds = self._plan.jvm_warm_seconds
        self._say(f"{self.proof.broker}: warming up for {seconds:g} s")
        single = PULSAR_CLIENT.settings.changed(block_if_queue_full=True)
        subject = Subject(title="warming up", library="geminga", settings=single)
        profile = self._plan.profile
        rate = min(profile.rate_messages_per_second, JVM_WARM_RATE)
        base = self._base(profile.changed(rate_messages_per_second=rate))
        Run(view, replace(base, seconds=seconds, warm_seconds=0.0), subject).measure()

    def _base(self, profile: TrafficProfile) -> Conditions:
        plan = self._plan
        return Conditions(
            profile=profile, payload=plan.payload, samples=plan.samples, seconds=plan.seconds,
            warm_seconds=plan.warm_seconds, namespace=plan.namespace,
        )  # fmt: skip

    def _measure(self, subject: Subject, profile: TrafficProfile, run: int) -> None:
        view = self._view()
        conditions = replace(self._base(profile), idle=measure_idle(view, self._plan.idle_seconds))
        rate = profile.rate_messages_per_second
        self._say(f"round {run + 1}: {subject.title}, {rate:,.0f} msg/s")
        self._keep(replace(Run(view, conditions, subject).measure(), run=run))

    def _keep(self, outcome: RunOutcome) -> None:
        self.proof.outcomes.append(outcome)
        self.proof.save(self._folder)
        self._say("    " + _line(outcome))


def _line(outcome: RunOutcome) -> str:
    if outcome.failure:
        return f"{outcome.rate:.0f} msg/s, then {outcome.failure}"
    p99 = outcome.receipt.p99_ms
    latency = "" if p99 is None else f", receipt p99 {p99:.1f} ms"
    return (
        f"{outcome.rate:.0f} msg/s, {outcome.batch_fill:.1f} messages an entry, broker CPU above idle "
        f"{outcome.broker_cpu_above_idle:.2f} s, client {outcome.client_cpu_seconds:.2f} s, wire "
        f"{(outcome.wire_bytes or 0) / 1e6:.1f} MB{latency}"
    )
