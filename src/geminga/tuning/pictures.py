"""Shared parts of the pictures. Matplotlib is loaded when the first picture is drawn."""

from pathlib import Path
from typing import Any

from geminga.extras import need

COLOURS = {"formula": "#2a7fb8", "stock": "#c8743c"}
"""Colours by a word in a subject's title."""


def colour_of(title: str) -> str:
    """Return the colour of a subject, grey without a word of `COLOURS`."""
    return next((colour for word, colour in COLOURS.items() if word in title), "#888888")


def new_figure(width_inches: float, height_inches: float) -> Any:
    """Return an empty figure. Raises `MissingExtra` without Matplotlib."""
    need("drawing", "matplotlib")
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "geminga"  # equal figures make equal files
    return Figure(figsize=(width_inches, height_inches), layout=None)


def save(figure: Any, path: Path) -> None:
    """Write a figure as SVG or PNG."""
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    figure.savefig(path, metadata=metadata, bbox_inches="tight", dpi=130)
