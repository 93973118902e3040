"""Offload worker process: writes the files of offloaded ledgers, at a low priority.

The process handles one request after the other (`geminga.ledger.tier.writing`), and ends when the
socket is closed.
"""

import contextlib
import os
import signal
import socket
import sys
import traceback

from geminga._util.descriptors import fill_standard

NICENESS = 10
"""Niceness added to that of the broker: next to a thread of the broker that always works, the process gets a
tenth of a processor."""
NO_MEMORY = 12
"""Exit code when the process is out of memory."""


def main() -> None:
    """Run the process, which has the socket as its standard input; never returns."""
    # Only the parent ends this process: ignore signals sent to all processes of a terminal or a service.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _end_with_parent()
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # when memory is short the system should kill this process, not the broker
    fill_standard()  # first, so that output printed by a library goes neither to the socket nor to a file
    connection = socket.socket(fileno=os.dup(0))
    os.close(0)
    fill_standard()
    try:
        # Imported here because it loads large libraries, which may print: the descriptors are replaced now.
        from geminga.ledger.tier.writing import serve

        serve(connection)
    except (OSError, EOFError):
        pass  # the parent is gone, or has closed the socket
    except MemoryError:
        os._exit(NO_MEMORY)
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(1)  # at once, without the work that libraries do at an exit


def _end_with_parent() -> None:
    """Make the system kill this process with the thread that started it, where it supports that (Linux)."""
    if sys.platform == "linux":
        with contextlib.suppress(Exception):
            import ctypes

            set_death_signal = 1
            ctypes.CDLL(None).prctl(set_death_signal, int(signal.SIGKILL), 0, 0, 0)
