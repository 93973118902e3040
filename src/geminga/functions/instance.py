"""Process of a function instance: ``python -m geminga.functions.instance``, settings on standard input."""

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
"""Grace period after ``drain_seconds``; a longer shutdown counts as hung and the process is ended."""


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("geminga").setLevel(logging.WARNING)
    # Ignore a terminal's Ctrl-C; the parent process ends this process by closing its standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = FunctionSettings.from_json(sys.stdin.readline())
    runner = FunctionRunner(settings)
    signal.signal(signal.SIGTERM, lambda *_: runner.stop())

    def until_closed() -> None:
        sys.stdin.read()
        runner.stop()
        time.sleep(settings.drain_seconds + STUCK_SECONDS)
        os._exit(1)  # an async callable blocks the loop, and the parent may be gone

    threading.Thread(target=until_closed, daemon=True).start()
    try:
        runner.run(signals=False)
    except PulsarException as error:
        logging.getLogger("geminga.functions").error("%s: %s", type(error).__name__, error)
        return 2 if isinstance(error, UsageError) else 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
