"""Settings and fixtures of all tests.

*Simulations* are runs that a seed decides. A test that takes ``seeds`` is marked with the number of seeds
and the number of seeds per test item: ``@pytest.mark.simulation(300, 25)``. ``--seeds 10000`` runs 10,000
of each, ``--seed 17`` only that one, to replay a failure. Hypothesis has its own: ``--hypothesis-seed``.

*Rotation*: long proofs run in part, and a number chooses the part (``ROTATION``). Of a test that is marked
``@pytest.mark.rotating(3)`` three parameter sets run; tests with the same ``group=`` count as one. A loop
over all steps of something takes the fixture ``part``. It also chooses the seeds of simulations. The first
lines of a run show it; ``--rotation N`` chooses another one, and ``--every`` runs all, as ``make long`` does.

*Coroutines*: a test that is an ``async def`` runs in an event loop of its own.

A timing never decides a test, so examples of properties have no deadline, and may be slow to make.

pytest's time-out raises an exception in the main thread. Where that is caught, as asyncio does around a
callback, the test would never end: a minute later its process prints the stacks of all threads and exits,
which fails the test.

pulsar-client's compiled part crashes now and then when a client closes (apache/pulsar-client-cpp#453, #550)
and its test worker with it: a test that used it is then run once more, and the second run decides.

Tests started in the background inherit an ignored SIGINT: the default handler is restored, since some tests
interrupt themselves.
"""

import asyncio
import faulthandler
import gc
import inspect
import multiprocessing
import os
import random
import re
import signal
import sys
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from _pytest.assertion.rewrite import (
    PYC_TAIL,
    _read_pyc,
    _rewrite_test,
    _write_pyc,
    assertstate_key,
    get_cache_dir,
    try_makedirs,
)
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings

from geminga._util import loggers

# In sessions of a minute Java's second compiler and a parallel collector cost more than they save.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

EXAMPLES = {"usual": 25, "every": 200}
"""Number of examples that a run draws of each property (Hypothesis), without and with ``--every``."""
for profile, count in EXAMPLES.items():
    settings.register_profile(
        profile, deadline=None, max_examples=count, suppress_health_check=[HealthCheck.too_slow]
    )

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONG_FILES = (
    "tests/docs/test_site.py",
    "tests/docs/test_examples.py",
    "tests/docs/test_integrations.py",
    "tests/docs/test_deploy.py",
    "tests/interop/test_pipelines.py",
    "tests/interop/test_pulsar_admin.py",
    "tests/interop/test_past_one_machine.py",
    "tests/interop/test_spark_against_apache_pulsar.py",
    "tests/interop/test_java_schemas_and_encryption.py",
    "tests/interop/test_offloading.py",
    "tests/interop/test_programs.py",
    "tests/interop/test_spark_schemas_against_apache_pulsar.py",
    "tests/interop/test_spark_chaos.py",
    "tests/broker/test_longest_step.py",
    "tests/console/test_pages.py",
    "tests/console/test_comfort.py",
    "tests/console/test_questions.py",
    "tests/console/test_topics.py",
    "tests/spark/test_datasource.py",
    "tests/spark/payloads/test_in_spark.py",
    "tests/spark/test_tables.py",
    "tests/spark/chaos/test_chaos.py",
    "tests/spark/test_page.py",
    "tests/spark/test_offloaded.py",
    "tests/spark/test_no_registration.py",
    "tests/spark/test_sessions.py",
    "tests/spark/test_snapshots.py",
    "tests/client/test_threads_simulation.py",
    "tests/simulation/test_simulation.py",
    "tests/tuning/test_prove.py",
    "tests/functions/test_processes.py",
    "tests/broker/serving/test_kill.py",
    "tests/ledger/test_bit_flips.py",
    "tests/mirror/test_kills.py",
    "tests/mirror/test_mirror.py",
    "tests/broker/topics/test_offloading.py",
    "tests/broker/topics/test_transactions_crash.py",
    "tests/client/test_shells_simulation.py",
    "tests/cli/test_mcp.py",
    "tests/demo/test_flights.py",
    "tests/producer/test_stuck_partition.py",
    "tests/spark/test_every_release.py",
    "tests/spark/test_order.py",
    "tests/spark/payloads/test_json_forms.py",
)
"""Those of half a minute, or of few tests that wait for long. Workers begin with them, then come files of
many tests (``--no-loadscope-reorder``): who began a long one last would be waited for alone."""


ROTATION = 739_948
"""Choice of seeds and parts of runs without ``--rotation``. It is changed by hand, after a run of `make long`
with the new number: what other seeds find must not stop an unrelated change."""


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("every" if config.option.every else "usual")
    if hasattr(config, "workerinput"):
        gc.disable()  # until all tests are collected: nothing of them is garbage
    if config.option.rotation is None:  # workers have the number of the process that started them
        config.option.rotation = ROTATION
    is_rewritten = config.option.assertmode == "rewrite" and not sys.dont_write_bytecode
    if getattr(config.option, "numprocesses", None) and is_rewritten:
        _compile_tests(config)


def _compile_tests(config: pytest.Config) -> None:
    """Compile changed tests once, on all cores: else each worker compiles all of them, in 10 CPU seconds."""
    roots = [Path(argument.partition("::")[0]) for argument in config.args]
    files = [file for root in roots for file in ([root] if root.is_file() else sorted(root.rglob("*.py")))]
    files = [file.resolve() for file in files if file.name == "conftest.py" or file.name.startswith("test_")]

    def compile_each(part: list[Path]) -> None:
        for file in part:
            folder = get_cache_dir(file)
            compiled = folder / f"{file.stem}{PYC_TAIL}"
            if _read_pyc(file, compiled) is None and try_makedirs(folder):
                with suppress(SyntaxError):  # the worker that collects the file reports it
                    source_hash, code = _rewrite_test(file, config)
                    _write_pyc(config.stash[assertstate_key], code, source_hash, compiled)

    cores = os.cpu_count() or 1
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=compile_each, args=(files[n::cores],)) for n in range(cores)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def pytest_report_header(config: pytest.Config) -> str:
    return f"rotation: {config.option.rotation} (--rotation repeats its seeds and parameter sets)"


def choose_in_rotation(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the parameter sets of rotating tests that other days run."""
    groups: dict[tuple[object, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if (marker := item.get_closest_marker("rotating")) is not None:
            group = marker.kwargs.get("group", item.function)
            groups[group, marker.args[0]].append(item)
    left_out: list[pytest.Item] = []
    for (_, count), each in groups.items():
        first = config.option.rotation * count
        chosen = {(first + number) % len(each) for number in range(count)}
        left_out += [item for number, item in enumerate(each) if number not in chosen]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        skipped = set(left_out)
        items[:] = [item for item in items if item not in skipped]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.option.every:
        choose_in_rotation(config, items)
    if not hasattr(config, "workerinput"):
        return
    counts = Counter(item.path for item in items)
    places = {config.rootpath / file: place for place, file in enumerate(LONG_FILES)}
    assert all(path.exists() for path in places), "a file of LONG_FILES has another name now"
    items.sort(key=lambda item: (places.get(item.path, len(places)), -counts[item.path]))


def pytest_collection_finish() -> None:
    freeze_loaded()
    gc.enable()


def freeze_loaded() -> None:
    """Leave what is loaded out of garbage collections: full ones take 0.3 s with it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    marker = item.get_closest_marker("timeout")
    seconds = marker.args[0] if marker is not None else float(item.config.getini("timeout"))
    standard_error = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(seconds + 60, exit=True, file=standard_error)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        if nextitem is None or nextitem.path != item.path:
            freeze_loaded()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one worker, and those with a Spark session to the first half of the workers.

    A session takes 10 CPU seconds and 1.5 GB. A worker without a file of its kind takes any.
    """
    from xdist.scheduler import LoadFileScheduling

    if config.option.dist != "loadfile":
        return None

    class Scheduling(LoadFileScheduling):
        def _assign_work_unit(self, node: Any) -> None:
            workers = list(self.assigned_work)
            for_spark = node in workers[: (len(workers) + 1) // 2]
            fitting = (file for file in self.workqueue if _starts_spark(config.rootpath / file) is for_spark)
            if (file := next(fitting, None)) is not None:
                self.workqueue.move_to_end(file, last=False)
            super()._assign_work_unit(node)

    return Scheduling(config, log)


@cache
def _starts_spark(file: Path) -> bool:
    return "mark.spark" in file.read_text(encoding="utf-8")


_crashed: set[str] = set()


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: Any, sched: Any) -> None:
    """Repair how xdist gives the work of a crashed worker to the next.

    The next runs the test that crashed again, for ever: only an official client's is worth it, once. It is
    given files that are done, and waits for ever where it has none but those. It begins a test when it knows
    the next one, and waits for ever with a single one.
    """
    schedule = type(sched).schedule  # not that of an earlier crash, which would double the calls
    sched.schedule = lambda: (schedule(sched), schedule(sched))
    is_official = "tests/witness/" in crashitem or re.search(r"[\[-]pulsar[]-]", crashitem)
    runs_again = is_official and crashitem not in _crashed
    if runs_again:
        _crashed.add(crashitem)
        report.outcome = "rerun"
    files = getattr(sched, "workqueue", {})  # with --dist loadfile
    for file, tests in list(files.items()):
        if crashitem in tests and not runs_again:
            tests[crashitem] = True
        if all(tests.values()):
            del files[file]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulations")
    group.addoption("--seeds", type=int, metavar="N", help="run N seeds of each simulation")
    group.addoption("--seed", type=int, metavar="N", help="run seed N of each simulation alone")
    group.addoption("--rotation", type=int, metavar="N", help="choose seeds and parameter sets as run N did")
    group.addoption("--every", action="store_true", help="run every parameter set of rotating tests")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seeds" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("simulation")
    assert marker is not None, f"{metafunc.function.__name__} takes seeds: mark it as a simulation"
    count, each = marker.args
    only, wanted = metafunc.config.getoption("--seed"), metafunc.config.getoption("--seeds")
    if only is not None:
        blocks = [range(only, only + 1)]
    else:
        first = metafunc.config.option.rotation % 10_000 * count if wanted is None else 0
        end = first + (count if wanted is None else wanted)
        blocks = [range(start, min(start + each, end)) for start in range(first, end, each)]
    metafunc.parametrize("seeds", blocks, ids=[f"{block.start}-{block.stop - 1}" for block in blocks])


@pytest.fixture(scope="module")
def broker(pulsar_module_broker):
    """An embedded broker in memory that the tests of a module share."""
    return pulsar_module_broker


@pytest.fixture
def offloading_here(monkeypatch):
    """Have brokers of this process write the files of offloaded ledgers themselves. The process that does it
    otherwise takes more than a second of CPU to start; `tests/ledger/test_offload_worker.py` is about it."""
    monkeypatch.setattr("geminga.ledger.tier.offload_worker.OffloadWriters._ready", lambda _: None)


@pytest.fixture
def part(pytestconfig):
    """A function that returns one in ``each`` values in order, drawn by the rotation; or all."""

    def choose(values: Iterable[Any], each: int) -> list[Any]:
        everything = list(values)
        if pytestconfig.option.every:
            return everything
        # Drawn at random: kinds of operations alternate, so that a fixed step would miss some.
        drawn = random.Random(pytestconfig.option.rotation).sample(
            range(len(everything)), -(-len(everything) // each)
        )
        return [everything[index] for index in sorted(drawn)]

    return choose


@pytest.fixture
def lines_run():
    """Count the lines of Python that a call runs: its cost on any machine, without a clock."""

    def count(call: Callable[[], object]) -> int:
        lines = 0

        def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
            nonlocal lines
            lines += event == "line"
            return trace

        previous = sys.gettrace()
        sys.settrace(trace)
        try:
            call()
        finally:
            sys.settrace(previous)
        return lines

    return count


@pytest.fixture(autouse=True)
def log_lines_meet_no_error(monkeypatch):
    """A line that cannot be formatted raises nothing where it is logged: it fails the test."""
    errors: list[str] = []
    monkeypatch.setattr(loggers, "report", lambda: errors.append(traceback.format_exc()))
    yield
    assert not errors, errors[0]
