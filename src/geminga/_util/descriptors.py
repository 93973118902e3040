"""Standard streams: opens any of the descriptors 0 to 2 that the process was started without."""

import os
import sys


def fill_standard() -> None:
    """Open the closed ones of descriptors 0 to 2: otherwise a socket would get the number and receive printed
    text, and libuv ends a program that closes one of them. Python's streams are then None: open them, too."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r", closefd=False))
