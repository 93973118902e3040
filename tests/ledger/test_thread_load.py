"""Load of a thread, as far as the operating system reports it."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from geminga.ledger.offloading import APART_REST_TIMES, SHARING_REST_TIMES, rest_times
from geminga.ledger.thread_load import ThreadLoad, is_rationed

linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux tells")


@linux
def test_the_load_of_idle_and_busy_threads_is_measured() -> None:
    found: dict[str, ThreadLoad] = {}
    made, stop = threading.Barrier(3), threading.Event()

    def work() -> None:
        found["busy"] = ThreadLoad()
        made.wait()
        while not stop.is_set():
            pass

    def sleep() -> None:
        found["idle"] = ThreadLoad()
        made.wait()
        stop.wait()

    threads = [threading.Thread(target=one) for one in (work, sleep)]
    for thread in threads:
        thread.start()
    made.wait()
    deadline = time.monotonic() + 60
    while not found["busy"].take():
        assert time.monotonic() < deadline
    idle = found["idle"].take()
    assert idle is not None
    assert 0 <= idle <= 1
    stop.set()
    for thread in threads:
        thread.join()
    while found["busy"].take() is not None or found["idle"].take() is not None:
        assert time.monotonic() < deadline, "they have ended"


def test_load_is_none_where_the_system_does_not_report_it(monkeypatch: pytest.MonkeyPatch) -> None:
    load = ThreadLoad()
    monkeypatch.setattr(load, "_path", "/nowhere")
    assert load.take() is None


@pytest.mark.parametrize("between", [SHARING_REST_TIMES, APART_REST_TIMES])
def test_the_worker_pauses_longer_beside_a_busy_thread(between: tuple[float, float]) -> None:
    times = [rest_times(load, between) for load in (0.0, 0.3, 0.4, 0.5, 0.7, 1.0)]
    assert times == sorted(times)
    assert (times[0], times[-1]) == between
    assert between[0] < rest_times(None, between) < between[1]


@pytest.mark.parametrize(
    ("groups", "files", "is_it"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, False),
        ("0::/a/b\n", {"a/cpu.max": "50000 100000\n", "a/b/cpu.max": "max 100000\n"}, True),
        ("0::/of/the/host\n", {"cpu.max": "200000 100000\n"}, True),
        ("4:memory:/m\n2:cpu,cpuacct:/x\n0::/\n", {"cpu,cpuacct/x/cpu.cfs_quota_us": "-1\n"}, False),
        ("4:memory:/m\n1:cpu:/x\n0::/\n", {"cpu/cpu.cfs_quota_us": "150000\n"}, True),
        ("what is this\n", {}, False),
    ],
)
def test_cpu_quotas_of_containers_are_found(
    tmp_path: Path, groups: str, files: dict[str, str], is_it: bool
) -> None:
    listed = tmp_path / "groups"
    listed.write_text(groups)
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert is_rationed(str(tmp_path / "root"), str(listed)) is is_it
    assert not is_rationed(str(tmp_path / "root"), str(tmp_path / "nowhere"))
