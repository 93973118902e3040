"""Run the programs with one library against one broker, and print the outcome of each as JSON.

    python tests/programs/run.py geminga pulsar://localhost:6650 http://localhost:8080 [name ...]

An outcome is plain data that does not depend on the library or the broker: the columns of two libraries and
two brokers can be compared (``tests/witness/test_programs.py``, ``tests/interop/test_programs.py``).
"""

import importlib
import json
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import consuming
import processes
import publishing
import schemas
from place import Place

PROGRAMS: dict[str, Callable[[Place], Any]] = {
    program.__name__: program
    for module in (publishing, consuming, schemas, processes)
    for program in module.PROGRAMS
}
AT_A_TIME = 4
SECONDS_MAX = 150.0
CRASHES_MAX = 3


def library(name: str) -> Any:
    module = importlib.import_module(name)
    for part in ("asyncio", "schema", "exceptions", "functions.serde"):
        importlib.import_module(f"{name}.{part}")
    return module


def outcome(place: Place, name: str) -> Any:
    """Return a program's result as JSON data, or the error that it raised.

    pulsar-client times out now and then after a seek: its program runs once more then.
    """
    is_last = place.p.__name__ != "pulsar"
    while True:
        try:
            return json.loads(json.dumps(PROGRAMS[name](place)))
        except Exception as error:
            if is_last or type(error).__name__ != "Timeout":
                return {"raised": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
            is_last = True


def alone(arguments: list[str], name: str) -> Any:
    """A program in a process of its own, which may be ended by a signal or by the time."""
    command = [sys.executable, __file__, *arguments, name, "--here"]
    for _ in range(CRASHES_MAX):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
            return json.loads(done.stdout.rstrip().splitlines()[-1])[name]
        except subprocess.TimeoutExpired:
            return {"raised": f"still running after {SECONDS_MAX:g} s"}
        except (ValueError, IndexError, KeyError):
            if not has_crashed(arguments[0], done.returncode):
                break
    return {"raised": f"exit code {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"}


def has_crashed(library_name: str, returncode: int) -> bool:
    """The library in C++ crashes now and then where a client ends: that tells nothing of a program."""
    return library_name == "pulsar" and returncode == -signal.SIGSEGV


def run(arguments: list[str], names: list[str], here: bool, apart: bool = False) -> dict[str, Any]:
    """The outcomes by the programs' names; several programs run at a time. ``apart``: each in a process."""
    place = Place(library(arguments[0]), arguments[1], arguments[2])
    if here:
        return {name: outcome(place, name) for name in names}
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        futures = {
            name: pool.submit(alone, arguments, name)
            if apart or name in processes.ALONE
            else pool.submit(bounded, place, name)
            for name in names
        }
        return {name: future.result() for name, future in futures.items()}


def bounded(place: Place, name: str) -> Any:
    """`outcome`, given up when it takes too long: a library may hang."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(outcome(place, name)), daemon=True)
    thread.start()
    thread.join(SECONDS_MAX)
    return found[0] if found else {"raised": f"still running after {SECONDS_MAX:g} s"}


def main() -> None:
    if "--list" in sys.argv:
        print("\n".join(PROGRAMS))
        return
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    names = arguments[3:] or list(PROGRAMS)
    found = run(arguments[:3], names, "--here" in sys.argv, "--apart" in sys.argv)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
