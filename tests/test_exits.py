"""Exit of a program that has finished its work."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
from geminga._util import exits

exits.at_exit("brokers", lambda: print("then brokers"))
exits.at_exit("clients", lambda: print("first clients"))
hanging = threading.Thread(target=threading.Event().wait)
if len(sys.argv) > 1:
    hanging.start()  # the interpreter's own end would wait for it
    exits.unfinished.add(sys.argv[1])
exits.leave(3)
"""


@pytest.mark.parametrize("unfinished", [[], ["a request"]])
def test_what_is_unfinished_is_not_waited_for(unfinished):
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *unfinished], capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stdout, run.stderr) == (3, "first clients\nthen brokers\n", "")
