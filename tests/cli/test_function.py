"""``geminga function run``: from a terminal's point of view."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from interpreter import run_python

import geminga

ROOT = Path(__file__).parents[2]


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "geminga.cli.main", "function", "run", *arguments]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("parallelism", ["1", "2"])
def test_a_signal_ends_the_function_after_pending_calls(
    number, parallelism, pulsar_broker, pulsar_client, pulsar_topic,
    tmp_path
):  # fmt: skip
    config = tmp_path / "function.yaml"
    config.write_text(
        f"className: tests.functions.relayed.shout\nname: by-signal\ninputs: [{pulsar_topic}]\n"
        f"output: {pulsar_topic}-out\nparallelism: 7\nautoAck: true\n"
    )
    results = pulsar_client.subscribe(pulsar_topic + "-out", "s")
    process = subprocess.Popen(
        _command("--config", str(config), "--parallelism", parallelism, "--url", pulsar_broker.service_url),
        cwd=ROOT, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    producer = pulsar_client.create_producer(pulsar_topic)
    for n in range(10):
        producer.send(b"%d" % n)
    values = []
    for _ in range(10):
        values.append(results.receive(30_000).data())
    assert sorted(values) == [b"%d!" % n for n in range(10)]
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert (
        f"{pulsar_topic} -> {pulsar_topic}-out, ATLEAST_ONCE, subscription public/default/by-signal" in said
    )
    if parallelism == "1":
        assert "10 received, 10 done, 10 published, 0 failed calls" in said
    with pytest.raises(geminga.Timeout):
        results.receive(100)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["os:nothing_there", "--input", "a"], "os has no 'nothing_there'"),
        (["os:getcwd"], "--input TOPIC"),
        (["--input", "a"], "FUNCTION (module:callable)"),
        (["os:getcwd", "--input", "a", "--user-config", "["], "--user-config"),
        (["os.path:exists", "--input", "a", "--guarantee", "effectively_once"], "output=None"),
    ],
)
def test_wrong_usage_is_reported_and_exits_with_2(arguments, said):
    run = subprocess.run(
        _command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (run.returncode, said in run.stderr) == (2, True), run.stderr
    assert "Traceback" not in run.stderr


def test_the_help_loads_no_client():
    code = (
        "import sys, time\nfrom click.testing import CliRunner\nfrom geminga.cli.main import command\n"
        "assert CliRunner().invoke(command, ['function', 'run', '--help']).exit_code == 0\n"
        "heavy = ('geminga.client', 'geminga.functions.', 'pyarrow')\n"
        "light = ('geminga.client', 'geminga.client.cluster')\n"
        "assert not [m for m in sys.modules if m.startswith(heavy) and m not in light]\n"
    )
    started = time.monotonic()
    run_python(code)
    assert time.monotonic() - started < 30
