"""Standard descriptors: 0 to 2 are open, whatever a program was started with."""

from __future__ import annotations

import os


def fill_standard() -> None:
    """Open what is closed of descriptors 0 to 2, or a socket would get the number and be taken for it: what
    is printed would go there, and libuv ends a program that has it close one of them."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
