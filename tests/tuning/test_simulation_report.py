"""``geminga tune simulate``: both grains beside each other, from what a person types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import geminga
from geminga.cli.main import command
from geminga.cli.tune_simulate import parsed_fault
from geminga.client.settings_file import FileSettings
from geminga.errors import InvalidConfiguration
from geminga.tuning.formula import formula
from geminga.tuning.modelled_broker import BrokerModel, FaultKind
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.simulation import SimulatedRun
from geminga.tuning.simulation_report import play
from geminga.tuning.stock import JAVA
from geminga.tuning.traffic import TrafficProfile

SMALL = ("--rate", "2000", "--partitions", "4", "--seconds", "3")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["tune", "simulate", *arguments])


def told(*arguments: str) -> dict[str, Any]:
    result = run(*SMALL, *arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def test_both_grains_stand_beside_each_other() -> None:
    result = run(*SMALL)
    assert result.exit_code == 0, result.output
    assert result.output.split()[:2] == ["core", "batches"]
    for word in ("messages an entry", "latency p99.9", "partitions stepped over", "% of a core"):
        assert word in result.output


def test_the_settings_of_advise_are_simulated(tmp_path: Path) -> None:
    file = tmp_path / "advised.toml"
    advised = CliRunner().invoke(
        command,
        ["tune", "advise", "--rate", "2000", "--message-bytes", "200", "--partitions", "4",
         "--latency-budget", "20", "--apply", str(file)],
    )  # fmt: skip
    assert advised.exit_code == 0, advised.output
    found = told("--settings", str(file))
    loaded = geminga.load_settings(file)
    assert found["settings"] == PublishSettings.from_arguments(loaded.client, loaded.producer).to_dict()
    assert loaded.producer["batching_max_publish_delay_ms"] < 20
    for grain in found["runs"].values():
        assert grain["latency_p99"] < 0.02


def test_a_producer_that_tunes_itself_is_simulated_by_its_core(tmp_path: Path) -> None:
    file = tmp_path / "tunes-itself.toml"
    file.write_text("[producer]\nlatency_budget_ms = 30\n")
    found = told("--settings", str(file))["runs"]
    assert found["core"]["batch_fill"] > 5
    assert found["core"]["latency_p99"] <= 0.03
    assert "latency_budget_seconds" in found["batches"]["problem"]


def test_stock_settings_are_simulated() -> None:
    found = told("--stock", "pulsar-client", "--grain", "batches")
    assert list(found["runs"]) == ["batches"]
    assert found["runs"]["batches"]["batch_fill"] == 1.0


def test_what_one_grain_cannot_follow_the_other_does() -> None:
    found = told("--fault", "lost,1,1,2")["runs"]
    assert found["core"]["stepped_over"] > 0
    assert "LOST" in found["batches"]["problem"]


def test_a_slow_partition_shows_in_both() -> None:
    found = told("--fault", "slow,1,0,9,300")["runs"]
    assert all(grain["latency_p99"] > 0.3 for grain in found.values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--fault", "slow"), "fault='slow' is not allowed; allowed: KIND,PARTITION,FROM,UNTIL[,EXTRA_MS]"),
        (("--fault", "slow,1,2,3"), "fault='slow,1,2,3' is not allowed"),
        (("--fault", "stuck,1.5,2,3"), "fault='stuck,1.5,2,3' is not allowed"),
        (("--fault", "stuck,1,nan,3"), "fault='stuck,1,nan,3': start_seconds=nan"),
        (("--fault", "stuck,1,3,2"), "fault='stuck,1,3,2': end_seconds=2.0"),
        (("--fault", "stuck,4,1,2"), "fault.partition=4 is not allowed"),
        (("--fault", "lost,1,1,2", "--grain", "batches"), "the simulation follows lost connections"),
        (("--settings", "x", "--stock", "java"), "does not exist"),
        (("--partitions", "0"), "0 is not in the range"),
        (("--rate", "1e9"), "rate_messages_per_second"),
        (("--token", "t"), "--token is for a broker that is measured"),
    ],
)
def test_what_makes_no_sense_is_a_sentence(arguments: tuple[str, ...], words: str) -> None:
    result = run(*SMALL, *arguments)
    assert result.exit_code != 0
    assert words in (result.output + str(result.exception))


def test_settings_from_two_places_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("")
    assert "--settings and --stock" in run("--settings", str(file), "--stock", "java").output
    file.write_text("{}")
    both = run("--broker-model", str(file), "--url", "pulsar://127.0.0.1:1")
    assert "--broker-model and --url" in both.output


def test_no_grain_that_can_follow_is_an_error_and_no_table() -> None:
    profile = TrafficProfile(rate_messages_per_second=1e8, message_bytes=10, keys=5)
    keyed = JAVA.settings.changed(batching_type=geminga.BatchingType.KeyBased)
    with pytest.raises(InvalidConfiguration):
        play(profile, keyed, BrokerModel(), seconds=3600.0)
    runs = play(profile.changed(rate_messages_per_second=100), keyed, BrokerModel(), seconds=3.0)
    assert isinstance(runs["core"], SimulatedRun)
    assert "batching_type" in str(runs["batches"])


def test_arguments_and_settings_are_one_anothers_mirror() -> None:
    settings = formula(TrafficProfile(rate_messages_per_second=2000, message_bytes=200)).settings
    file = FileSettings(client=settings.client_arguments(), producer=settings.producer_arguments())
    again = PublishSettings.from_arguments(file.client, {**file.producer, "producer_name": "p"})
    assert again.changed(producer_name=None) == settings


def test_faults_are_read() -> None:
    fault = parsed_fault("slow,3,2,9,400")
    assert (fault.kind, fault.partition, fault.end_seconds, fault.extra_seconds) == (
        FaultKind.SLOW,
        3,
        9,
        0.4,
    )
