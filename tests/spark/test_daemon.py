from __future__ import annotations

import subprocess
import sys


def test_preload_leaves_a_process_that_can_be_forked() -> None:
    """Workers are forked right after: no event loop, no client, no pandas, and kernels that work."""
    script = (
        "import os, sys, threading\n"
        "from geminga.spark.daemon import preload\n"
        "preload()\n"
        "assert threading.active_count() == 1\n"
        "assert 'pandas' not in sys.modules\n"
        "assert 'geminga.wire.columnar_kernels' in sys.modules\n"
        "child = os.fork()\n"
        "preload()\n"
        "if not child: os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_preload_that_fails_stops_no_worker() -> None:
    script = (
        "import sys\n"
        "sys.modules['geminga.client.entry_reader'] = None\n"
        "from geminga.spark.daemon import preload_if_possible\n"
        "preload_if_possible()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=55, check=True
    )
    assert "workers start without preloading" in done.stderr
