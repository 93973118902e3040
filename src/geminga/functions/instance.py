"""One instance as a process: ``python -m geminga.functions.instance``, its settings on standard input."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback

from geminga.errors import PulsarException, UsageError
from geminga.functions.runner import FunctionRunner
from geminga.functions.settings import FunctionSettings

STUCK_SECONDS = 20.0
"""Beyond ``drain_seconds``, an end that takes so long is none."""


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("geminga").setLevel(logging.WARNING)
    # Ctrl-C at a terminal reaches every process; the parent ends this one by its standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = FunctionSettings.from_json(sys.stdin.readline())
    runner = FunctionRunner(settings)
    signal.signal(signal.SIGTERM, lambda *_: runner.stop())

    def until_closed() -> None:
        sys.stdin.read()
        runner.stop()
        time.sleep(settings.drain_seconds + STUCK_SECONDS)
        os._exit(1)  # an async callable keeps the loop for itself, and nobody may be there to kill it

    threading.Thread(target=until_closed, daemon=True).start()
    try:
        runner.run(signals=False)
    except PulsarException as error:
        print(f"geminga: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 2 if isinstance(error, UsageError) else 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
