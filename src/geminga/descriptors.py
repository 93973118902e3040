"""Standard descriptors: opens any of 0 to 2 that the process was started without."""

from __future__ import annotations

import os


def fill_standard() -> None:
    """Open the closed ones of descriptors 0 to 2: otherwise a socket would get the number and receive printed
    text, and libuv ends a program that closes one of them."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
